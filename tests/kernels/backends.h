/* The backends that a kernel test runs on: ref first, then every CPU instruction set that this
 * machine has, each with a pool of three threads (backends) and with none (singles), then the
 * CUDA kernels: in emulation, or, where AGENTD_TEST_GPU names a library (tests/gpu/run), on the
 * device that it finds, behind a mirror (tests/gpu/mirror.h) as the tests hand in memory of the
 * host. */
#ifndef TESTS_KERNELS_BACKENDS_H
#define TESTS_KERNELS_BACKENDS_H

#include "base/pool.h"
#include "kernels/cuda.h"
#include "kernels/host.h"
#include "tests/gpu/mirror.h"
#include "tests/support/test.h"

#define MAX_BACKENDS 7

static struct kernels backends[MAX_BACKENDS], singles[MAX_BACKENDS];
static size_t n_backends;
static struct pool *backend_pool;

static enum err open_cuda(struct kernels *k, struct error *e)
{
    const char *library = getenv("AGENTD_TEST_GPU");
    struct kernels device = {0};
    if (!library)
        return k_cuda_open(k, 0, e);
    enum err rc = kernels_cuda(&device, library, 0, e);
    return rc ? rc : mirror_open(k, &device, e);
}

static void backends_open(void)
{
    static const char *const isas[] = {"portable", "avx2", "avx512", "avx512bf16-dot",
                                       "avx512bf16-fma"};
    struct error e = {0};
    if (pool_new(3, &backend_pool, &e) || kernels_ref(&backends[0], backend_pool, &e) ||
        kernels_ref(&singles[0], NULL, &e)) {
        fprintf(stderr, "backends: %s\n", e.msg);
        exit(1);
    }
    n_backends = 1;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        enum err rc = kernels_cpu(&backends[n_backends], isas[i], backend_pool, &e);
        if (!rc)
            rc = kernels_cpu(&singles[n_backends], isas[i], NULL, &e);
        if (!rc)
            n_backends++;
        else if (rc != ERR_UNSUPPORTED) {
            fprintf(stderr, "backends: %s\n", e.msg);
            exit(1);
        }
    }
    for (size_t b = 0; b < n_backends; b++)
        backends[b].ctx->serial_ns = 0; /* small shapes on all threads, too */
    if (open_cuda(&backends[n_backends], &e) || open_cuda(&singles[n_backends], &e)) {
        fprintf(stderr, "backends: %s\n", e.msg);
        exit(1);
    }
    n_backends++;
}

static void backends_close(void)
{
    for (size_t b = 0; b < n_backends; b++) {
        kernels_fini(&backends[b]);
        kernels_fini(&singles[b]);
    }
    pool_free(backend_pool);
}

#endif
