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

/* Where the library is, by the order of cuda.h. */
static const char *find(char *path, size_t size)
{
    static const char *const places[] = {LIBRARY, "../lib/agentd/" LIBRARY};
    char folder[PATH_MAX - 64];
    program_folder(folder, sizeof folder);
    for (size_t i = 0; i < 2 && *folder; i++) {
        (void)snprintf(path, size, "%s%s", folder, places[i]);
        if (!access(path, R_OK))
            return path;
    }
    return LIBRARY;
}

enum err kernels_cuda(struct kernels *k, const char *library, int device, struct error *e)
{
    char path[PATH_MAX];
    const char *name = library ? library : find(path, sizeof path);
    void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return err_set(e, ERR_UNSUPPORTED,
                       library ? "backend cuda: %s" : "backend cuda: %s (make cuda builds it)",
                       dlerror());
    void *symbol = dlsym(lib, K_CUDA_OPEN);
    open_fn *open;
    if (!symbol)
        return err_set(e, ERR_INVAL, "backend cuda: %s has no " K_CUDA_OPEN, name);
    memcpy(&open, &symbol, sizeof open); /* ISO C knows no cast from object to function */
    return open(k, device, e);           /* the library stays: tables point into it */
}
