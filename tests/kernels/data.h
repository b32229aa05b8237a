/* Test data for kernels: seeded values, weights of every type, buffers between canaries. */
#ifndef TESTS_KERNELS_DATA_H
#define TESTS_KERNELS_DATA_H

#include "kernels/kernels.h"

/* n seeded values, uniform in [-scale, scale). free() them. */
float *values_new(size_t n, uint64_t seed, float scale);
uint8_t *bytes_new(size_t n, uint64_t seed);

/* A weight with random codes and scales of moderate size, no NaN. weight_free() it. */
struct k_weight weight_new(enum k_type type, uint32_t n_out, uint32_t n_in, uint32_t n_groups,
                           uint64_t seed);
void weight_free(struct k_weight *w);

/* n floats of NaN with canaries on both sides. */
float *guarded_new(size_t n);
void guarded_check(const char *what, const float *p, size_t n);
void guarded_free(float *p);

/* |got - want| <= tol * size[i] (size NULL: 1), NaN where and only where want has it. */
void check_near(const char *what, const float *got, const float *want, const float *size,
                size_t n, float tol);
/* Same bits. */
void check_same(const char *what, const float *got, const float *want, size_t n);

#endif
