#include "kernels/cuda.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libagentd-cuda.so"

typedef enum err open_fn(struct kernels *k, int device, struct error *e);

/* The folder of the running program, with a slash; "" when it cannot be told. */
static void program_folder(char *path, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    path[n > 0 ? n : 0] = 0;
    char *slash = strrchr(path, '/');
    path[slash ? slash + 1 - path : 0] = 0;
}

static void *load(struct error *e)
{
    static const char *const places[] = {LIBRARY, "../lib/agentd/" LIBRARY};
    char folder[PATH_MAX - 64], path[PATH_MAX];
    program_folder(folder, sizeof folder);
    for (size_t i = 0; i < 2 && *folder; i++) {
        (void)snprintf(path, sizeof path, "%s%s", folder, places[i]);
        if (!access(path, R_OK))
            break;
        *path = 0;
    }
    void *lib = dlopen(*folder && *path ? path : LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        (void)err_set(e, ERR_UNSUPPORTED, "backend cuda: %s (make cuda builds it)", dlerror());
    return lib;
}

enum err kernels_cuda(struct kernels *k, int device, struct error *e)
{
    void *lib = load(e);
    if (!lib)
        return ERR_UNSUPPORTED;
    void *symbol = dlsym(lib, K_CUDA_OPEN);
    open_fn *open;
    if (!symbol)
        return err_set(e, ERR_UNSUPPORTED, "backend cuda: " LIBRARY " has no " K_CUDA_OPEN);
    memcpy(&open, &symbol, sizeof open); /* ISO C knows no cast from object to function */
    return open(k, device, e);           /* the library stays: tables point into it */
}
