#include "engine/cpu.h"

#include "kernels/kernels.h"

enum err cpu_numerics(const char **out, struct error *e)
{
    struct kernels k = {0};
    enum err rc = kernels_cpu(&k, NULL, NULL, e);
    if (!rc)
        *out = k.numerics;
    kernels_fini(&k);
    return rc;
}
