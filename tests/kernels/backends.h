/* The backends that a kernel test runs on: ref first, then every CPU instruction set that this
 * machine has. A test program includes this once. */
#ifndef TESTS_KERNELS_BACKENDS_H
#define TESTS_KERNELS_BACKENDS_H

#include "base/pool.h"
#include "kernels/kernels.h"
#include "tests/support/test.h"

static struct kernels backends[8];
static size_t n_backends;
static struct pool *backend_pool;

static void backends_open(void)
{
    struct error e = {0};
    if (pool_new(3, &backend_pool, &e) || kernels_ref(&backends[0], backend_pool, &e)) {
        fprintf(stderr, "backends: %s\n", e.msg);
        exit(1);
    }
    n_backends = 1;
}

static void backends_close(void)
{
    for (size_t b = 0; b < n_backends; b++)
        kernels_fini(&backends[b]);
    pool_free(backend_pool);
}

#endif
