/* A script: what the scripted engine answers, read from a JSONL file. One line is one generated
 * run, that is, one model step:
 *
 *     {"text": "...", "token_ms": 5}        or  {"ids": [104, 105], "crash": "after"}
 *
 * text or ids   the run's tokens; in text, literal spellings of added tokens are those ids. The
 *               run ends at the first EOS; one is added where there is none
 * prefill_ms    how long the input segment in front of this run takes
 * token_ms      how long each token takes
 * stall_ms      how long nothing happens before the first token
 * crash         "before": the process kills itself in place of the first token; "after": when
 * the last token was handed out, in place of reporting the end of the run
 *
 * Blank lines count for nothing; unknown fields are errors. Constant once loaded. */
#ifndef ENGINE_SCRIPT_FILE_H
#define ENGINE_SCRIPT_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/tokenizer.h"

enum script_crash { SCRIPT_CRASH_NEVER, SCRIPT_CRASH_BEFORE, SCRIPT_CRASH_AFTER };

struct script_step {
    uint32_t *ids; /* the last one is EOS, and no other */
    size_t n;
    uint32_t prefill_ms, token_ms, stall_ms;
    enum script_crash crash;
};

struct script {
    struct script_step *steps;
    size_t n;
};

/* Most bytes of a script. */
#define SCRIPT_MAX_BYTES (64u << 20)

/* Errors name path and line: ERR_NOTFOUND, ERR_IO; ERR_FORMAT for what is no such line, an id
 * that the tokenizer does not have, or more than SCRIPT_MAX_BYTES (ERR_LIMIT). *out is to be
 * freed with script_fini in every case. */
NODISCARD enum err script_load(struct script *out, const char *path, const struct tokenizer *t,
                               uint32_t eos, struct error *e);
void script_fini(struct script *s);

#endif
