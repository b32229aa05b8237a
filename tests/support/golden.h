/* Golden vectors for tests: safetensors files, read whole. A missing file, a missing tensor or
 * a wrong dtype fails the test that asks, with its name. Arrays belong to the golden and live
 * until golden_close(). */
#ifndef TESTS_SUPPORT_GOLDEN_H
#define TESTS_SUPPORT_GOLDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct golden;

#define GOLDEN_MAX_DIMS 6

struct golden_shape {
    size_t n_dims;
    size_t dim[GOLDEN_MAX_DIMS];
    size_t n; /* elements */
};

/* path from the top of the tree: GOLDEN "d_ops/ops.safetensors". */
struct golden *golden_open(const char *path);
void golden_close(struct golden *g);

bool golden_has(const struct golden *g, const char *name);
struct golden_shape golden_shape(struct golden *g, const char *name);
/* F32 as it is, BF16 expanded. *n (may be NULL) gets the number of elements. */
const float *golden_f32(struct golden *g, const char *name, size_t *n);
/* I64, I32, I8 or U8, widened. */
const int64_t *golden_i64(struct golden *g, const char *name, size_t *n);
/* The bytes as stored, of any dtype; *n gets the number of bytes. */
const uint8_t *golden_bytes(struct golden *g, const char *name, size_t *n);

#endif
