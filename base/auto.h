/* Scope-bound cleanup for locals: AUTO(buf) calls buf_fini(&x) when x leaves scope.
 *
 * `AUTO(T) struct T x = ...;` calls T_fini(&x). `AUTO_FREE` frees a heap pointer, `AUTO_FD`
 * closes a descriptor (-1 is none), `AUTO_FILE` closes a FILE. Hand an object over with
 * TAKE(p), which yields p and leaves NULL behind. Never mix with goto-style cleanup in one
 * function. */
#ifndef BASE_AUTO_H
#define BASE_AUTO_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define AUTO(T) __attribute__((cleanup(T##_fini)))
#define AUTO_FREE __attribute__((cleanup(auto_free_)))
#define AUTO_FD __attribute__((cleanup(auto_close_)))
#define AUTO_FILE __attribute__((cleanup(auto_fclose_)))
#define TAKE(p)                                                                                \
    __extension__({                                                                            \
        __typeof__(p) taken_ = (p);                                                            \
        (p) = NULL;                                                                            \
        taken_;                                                                                \
    })
#define TAKE_FD(fd)                                                                            \
    __extension__({                                                                            \
        int taken_ = (fd);                                                                     \
        (fd) = -1;                                                                             \
        taken_;                                                                                \
    })

static inline void auto_free_(void *p)
{
    free(*(void **)p);
}

static inline void auto_close_(const int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

static inline void auto_fclose_(FILE **f)
{
    if (*f)
        fclose(*f);
}

#endif
