/* What the RULER tasks share: the two generators, the search for a size, the current sample. */
#ifndef EVALS_RULER_INTERNAL_H
#define EVALS_RULER_INTERNAL_H

#include "engine/ids.h"
#include "evals/pyrandom.h"
#include "evals/ruler.h"

#define RULER_MAX_TEXT_BYTES ((size_t)256 << 20)
#define RULER_MAX_TOKENS ((size_t)1 << 27)

struct ruler {
    const struct ruler_options *o;
    ruler_fn *fn;
    void *user;
    struct pyrandom py, np; /* the original's two global generators */
    struct buf text;        /* the current prompt, answer prefix included */
    struct wordlist outputs;
    struct wordlist lines; /* of the current haystack */
    struct ids ids;        /* of the last count */
};

/* Draws a sample of `size` units of filler into r->text and r->outputs. ERR_CONFLICT: the
 * original would have raised an exception here. */
typedef enum err ruler_draw_fn(struct ruler *r, void *task, uint32_t size, struct error *e);

struct ruler_fit {
    ruler_draw_fn *draw;
    void *task;
    uint32_t step;     /* smallest size, and by how much a sample that is too long shrinks */
    uint32_t upper;    /* largest size to try */
    uint64_t overhead; /* tokens beside the text */
    uint64_t n_tokens; /* that text and overhead may have */
};

enum err ruler_niah(struct ruler *r, struct error *e);
enum err ruler_vt(struct ruler *r, struct error *e);
enum err ruler_cwe(struct ruler *r, struct error *e);
enum err ruler_fwe(struct ruler *r, struct error *e);

/* Tokens of n bytes. */
NODISCARD enum err ruler_count(struct ruler *r, const void *text, size_t n, uint64_t *out,
                               struct error *e);
/* Sets fit->upper from the tokens of one sample of fit->step units. */
NODISCARD enum err ruler_estimate(struct ruler *r, struct ruler_fit *fit, struct error *e);
/* The largest size that the bisection finds to fit; step when none did. */
NODISCARD enum err ruler_search(struct ruler *r, const struct ruler_fit *fit, uint32_t *size,
                                struct error *e);
/* Draws samples, each `step` smaller than the one before, until one fits; *length with
 * overhead. ERR_LIMIT when that does not happen. */
NODISCARD enum err ruler_draw_fitting(struct ruler *r, const struct ruler_fit *fit,
                                      uint32_t size, uint64_t *length, struct error *e);
/* Hands r->text, cut in front of the last `prefix_mark`, and r->outputs to the caller's fn. */
NODISCARD enum err ruler_emit(struct ruler *r, struct ruler_sample *s, const char *prefix_mark,
                              struct error *e);

#endif
