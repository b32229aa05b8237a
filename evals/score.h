/* Scoring a run: answers against a suite's samples.
 *
 *   answers.jsonl
 *       {"id", "status": "ok" | "error" | "timeout", "text"}, in any order;
 *       status may be missing (ok), text may be missing unless ok
 *   scores.jsonl
 *       {"id", "status", "score"}, in the order of samples.jsonl;
 *       status is also "empty", "unparsable" or "missing"
 *   results.json
 *       {"format": 1, "suite", "version", "seed", "tokenizer", "samples",
 *        "model"?: {"fingerprint", "numerics"}, "cells": [...]}
 *       model: the daemon's, where it was asked (run.jsonl); a cell is what shares
 *       SUITE/TASK/LENGTH:
 *       {"cell", "n", "n_contexts", "ok", "empty", "unparsable", "error", "timeout", "missing",
 *        "score": {"mean", "low", "high", "interval"}, "answered": {...}}
 *
 * `score` counts errors, timeouts and missing answers as 0; `answered` leaves them out. Both
 * are means with 95 % intervals: Wilson's where every sample has its own context and scores are
 * 0 or 1, Student's where they are not, a bootstrap over contexts where several samples share
 * one; "none" (low and high null) where there is just one context or one value. The same files
 * give the same bytes. */
#ifndef EVALS_SCORE_H
#define EVALS_SCORE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define SCORE_CONFIDENCE 0.95
#define SCORE_RESAMPLES 2000 /* of the bootstrap, and its seed */
#define SCORE_SEED 42

struct score_counts {
    uint64_t n, n_missing;
};

/* Scores the run in folder `dir` (suite.json, samples.jsonl) with the answers of a file (NULL:
 * its own answers.jsonl), writes scores.jsonl and results.json there, and hands out the latter
 * (to be decref'd). ERR_CONFLICT: the files do not belong together (samples.jsonl is not that
 * of suite.json, an answer to no sample). ERR_FORMAT: a line is not what it should be, or an id
 * was answered twice. */
NODISCARD enum err score_run(const char *dir, const char *answers, struct score_counts *counts,
                             json_t **results, struct error *e);

/* What an answer to a sample (an object of samples.jsonl) is worth. ERR_FORMAT: the sample's
 * metric or answers are not what they should be. */
struct metric_result;
NODISCARD enum err score_text(const json_t *sample, const char *text, size_t n,
                              struct metric_result *out, struct error *e);

#endif
