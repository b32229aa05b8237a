/* A suite's samples asked of a daemon, so that it can be killed at any moment and go on.
 *
 * In the folder of the suite (evals/suite.h) a run keeps:
 *
 *   run.jsonl      the journal (evals/journal.h): {"key": {...}, "run": ULID} first, then for
 *                  each sample {"begin": id} before it is asked and {"id", "status", "text"}
 *                  once it is answered. A sample with an answer there is acknowledged: it is
 *                  never asked again
 *   timings.jsonl  {"id", "ms", "ledger"} of each answer, apart, so that results compare byte
 *                  for byte
 *   answers.jsonl, scores.jsonl, results.json   written when all are answered (evals/score.h)
 *
 * The key covers suite, tokenizer, model, template, thinking, effort and sampler; another key
 * than the journal's is ERR_CONFLICT. A context that several samples ask about is ingested once
 * in a session of its own, which each of them forks; a sample with a context of its own is one
 * prompt. Sessions have names that follow from the run and the sample and prompts have client
 * ids, so that a prompt that was sent before a kill is found again, not sent twice. */
#ifndef EVALS_RUN_H
#define EVALS_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "agentd/client.h"
#include "base/err.h"

struct run_options {
    const char *dir, *socket; /* socket NULL: as client_socket_path() */
    const char *effort;       /* of thinking; NULL: the daemon's */
    bool thinking;
    int timeout_ms;     /* of one sample: it is cancelled then and counts as "timeout" */
    int wake_fd;        /* readable: stop with ERR_CANCELLED */
    bool is_tty, quiet; /* of stderr: one status line, else a line every 10 s */
};

struct run_counts {
    uint64_t n, n_done, n_asked; /* samples; answered in all; of them by this call */
    uint64_t n_ledgers;          /* whose identity was checked */
};

/* Asks what is not answered yet and scores. ERR_CONFLICT: another key. ERR_CORRUPT: the
 * journal is damaged, or a ledger does not add up. ERR_CLOSED: the daemon is gone; start again
 * when it is back. ERR_CANCELLED: wake_fd. In every case what was answered is kept. */
NODISCARD enum err run_suite(const struct run_options *o, struct run_counts *counts,
                             struct error *e);

struct run_plan {
    uint64_t n_samples, n_done, n_contexts;
    uint64_t prefill_tokens; /* of contexts that are not finished, without the questions */
    uint64_t decode_tokens;  /* most that samples may generate */
    double ms_per_sample;    /* of those timed so far; negative: none */
};
/* What run_suite() would do; needs no daemon. */
NODISCARD enum err run_dry(const char *dir, struct run_plan *out, struct error *e);

/* prompt_tokens = resident + restored + recomputed + relost + prefilled. ERR_CORRUPT with the
 * figures; ERR_FORMAT when a field is missing. */
NODISCARD enum err run_check_ledger(const json_t *ledger, struct error *e);

#endif
