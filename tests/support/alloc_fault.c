/* The allocator of test programs: every allocation of our own code is the fault point "alloc"
 * (base/fault.h). The linker's --wrap sends our calls here; those inside shared libraries are
 * not touched, unless a test installs these functions there (alloc_fault.h). */
#include "tests/support/alloc_fault.h"

#include <errno.h>

#include "base/fault.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
int __real_posix_memalign(void **out, size_t align, size_t n);
char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
int __wrap_posix_memalign(void **out, size_t align, size_t n);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);

static bool refuse(void)
{
    if (!fault_point("alloc"))
        return false;
    errno = ENOMEM;
    return true;
}

void *__wrap_malloc(size_t n)
{
    return refuse() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return refuse() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *p, size_t n)
{
    return refuse() ? NULL : __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    return refuse() ? NULL : __real_aligned_alloc(align, n);
}

int __wrap_posix_memalign(void **out, size_t align, size_t n)
{
    return refuse() ? ENOMEM : __real_posix_memalign(out, align, n);
}

char *__wrap_strdup(const char *s)
{
    return refuse() ? NULL : __real_strdup(s);
}

char *__wrap_strndup(const char *s, size_t n)
{
    return refuse() ? NULL : __real_strndup(s, n);
}

void *alloc_fault_malloc(size_t n)
{
    return __wrap_malloc(n);
}
