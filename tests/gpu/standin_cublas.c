/* A library that bench_gpu takes for cuBLAS, for its test (kernels/test_gpu): memory of the
 * emulated device, plain loops, and an order of sums that depends on how many rows there are,
 * so that what looks for that has something to find. */
#include <stdint.h>

#include "kernels/bits.h"

int cublasCreate_v2(void **handle);
int cublasGemmEx(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha,
                 const void *a, int type_a, int lda, const void *b, int type_b, int ldb,
                 const void *beta, void *c, int type_c, int ldc, int compute, int algo);

int cublasCreate_v2(void **handle)
{
    static int there;
    *handle = &there;
    return 0;
}

/* c [n][m] = b [n][k] times a [m][k]: what the bench asks for, and nothing else. */
int cublasGemmEx(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha,
                 const void *a, int type_a, int lda, const void *b, int type_b, int ldb,
                 const void *beta, void *c, int type_c, int ldc, int compute, int algo)
{
    (void)handle, (void)alpha, (void)beta;
    if (op_a != 1 || op_b != 0 || type_a != 14 || type_b != 14 || compute != 68 || algo != -1 ||
        (type_c != 0 && type_c != 14))
        return 7; /* CUBLAS_STATUS_INVALID_VALUE */
    for (long j = 0; j < n; j++)
        for (long i = 0; i < m; i++) {
            float sum = 0;
            for (long x = 0; x < k; x++) {
                long at = n > 1 ? k - 1 - x : x;
                sum += k_bf16_to_f32(((const uint16_t *)a)[i * lda + at]) *
                       k_bf16_to_f32(((const uint16_t *)b)[j * ldb + at]);
            }
            if (type_c)
                ((uint16_t *)c)[j * ldc + i] = k_f32_to_bf16(sum);
            else
                ((float *)c)[j * ldc + i] = sum;
        }
    return 0;
}
