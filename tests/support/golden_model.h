/* Comparing a run of a model with golden vectors: how close, and where not. */
#ifndef TESTS_SUPPORT_GOLDEN_MODEL_H
#define TESTS_SUPPORT_GOLDEN_MODEL_H

#include "engine/record.h"
#include "tests/support/golden.h"

/* One backend in one precision mode, as the golden tests open it. */
struct golden_run {
    const char *backend;
    enum precision precision;
    uint32_t chunk; /* 0: the default */
    bool tensors;   /* record the tensors between the layers, too */
};

/* token_ids of an inputs.json; caller frees. */
uint32_t *golden_ids(const char *path, size_t *n);

struct engine *golden_model(const char *dir, const struct golden_run *run);

/* How far [rows][width] values are from what they should be. */
struct fit {
    double worst;     /* largest difference */
    double median;    /* over rows, of the row's largest difference */
    double differing; /* share of rows with a difference above `same` */
};
struct fit measure(const float *got, const float *want, size_t rows, size_t width, double same);

/* Fails, naming what and both numbers, unless every difference is at most max. */
void assert_close(const char *what, const float *got, const float *want, size_t rows,
                  size_t width, double max);
/* Fails unless at most share_differing of the rows differ by more than same, and none by more
 * than max. */
void assert_mostly(const char *what, const float *got, const float *want, size_t rows,
                   size_t width, double same, double share_differing, double max);

/* Selected rows [n][width] against golden [n][want_width], both -1 padded somewhere: same rows
 * in the same order. Returns how many of the n selections differ. */
size_t count_selections(const int32_t *got, size_t width, const int64_t *want,
                        size_t want_width, size_t n);

/* Rows of a recorded tensor at consecutive positions, copied; caller frees. Fails when one is
 * missing. Element size 4 (F32, I32). */
void *gather(const struct record *r, const char *name, uint32_t layer, uint64_t pos0, size_t n);
/* The same for logits. */
float *gather_logits(const struct record *r, uint64_t pos0, size_t n);

/* All rows of plane `plane` decoded, caller frees; *n rows. */
float *read_plane(const struct engine *m, const struct seq *s, uint32_t plane, size_t *n);

#endif
