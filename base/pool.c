#include "base/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* 40 to 200 us of pauses, by processor: longer than what one thread does alone between two
 * loops of a step and between two steps of decode, so that a pool at work does not sleep; far
 * shorter than other work on the machine waits for a CPU anyway. */
#define SPIN_PAUSES 3000

/* A counter that threads wait on until it differs from what they saw. */
struct gate {
    _Atomic uint32_t value;
    _Atomic uint32_t n_asleep;
};

struct worker {
    struct pool *pool;
    uint32_t thread;
    pthread_t id;
};

struct pool {
    uint32_t n_threads, n_spin;
    /* The job: written by the caller before `start` moves on, read by workers after. */
    pool_fn *fn; /* NULL: end */
    void *arg;
    size_t n_items;
    _Alignas(64) struct gate start;          /* one more per job */
    _Alignas(64) struct gate done;           /* one more when the last worker is through */
    _Alignas(64) _Atomic uint32_t n_working; /* workers that are not through yet */
    struct worker workers[];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    sched_yield();
#endif
}

/* Returns when the value is no longer `seen`. */
static void gate_wait(struct gate *s, uint32_t seen, uint32_t n_spin)
{
    for (uint32_t i = 0; i < n_spin; i++) {
        if (atomic_load_explicit(&s->value, memory_order_acquire) != seen)
            return;
        pause_cpu();
    }
    /* Sequentially consistent with gate_open: it sees the sleeper, or we see the new value. */
    atomic_fetch_add(&s->n_asleep, 1);
    while (atomic_load(&s->value) == seen)
        futex_wait(&s->value, seen);
    atomic_fetch_sub(&s->n_asleep, 1);
}

static void gate_open(struct gate *s)
{
    atomic_fetch_add(&s->value, 1);
    if (atomic_load(&s->n_asleep) > 0)
        futex_wake(&s->value);
}

static void run_share(const struct pool *p, uint32_t thread)
{
    /* 128 bits: n_items * thread may not fit in 64. */
    __extension__ typedef unsigned __int128 wide;
    size_t first = (size_t)((wide)p->n_items * thread / p->n_threads);
    size_t last = (size_t)((wide)p->n_items * (thread + 1) / p->n_threads);
    if (first < last)
        p->fn(p->arg, first, last, thread);
}

static void *work(void *arg)
{
    const struct worker *w = arg;
    struct pool *p = w->pool;
    for (uint32_t seen = 0;; seen++) {
        gate_wait(&p->start, seen, p->n_spin);
        if (!p->fn)
            return NULL;
        run_share(p, w->thread);
        if (atomic_fetch_sub_explicit(&p->n_working, 1, memory_order_acq_rel) == 1)
            gate_open(&p->done);
    }
}

uint32_t pool_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return (uint32_t)CPU_COUNT(&set);
    /* More CPUs than a cpu_set_t holds. */
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}

enum err pool_new(uint32_t n_threads, struct pool **out, struct error *e)
{
    uint32_t cpus = pool_cpus();
    uint32_t n = n_threads ? n_threads : cpus < POOL_MAX_THREADS ? cpus : POOL_MAX_THREADS;
    if (n > POOL_MAX_THREADS)
        return err_set(e, ERR_INVAL, "%u threads: at most %d", n, POOL_MAX_THREADS);
    size_t bytes = sizeof(struct pool) + n * sizeof(struct worker);
    struct pool *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (!p)
        return err_set(e, ERR_NOMEM, "pool of %u threads: no memory", n);
    *p = (struct pool){.n_threads = 1, .n_spin = n <= cpus ? SPIN_PAUSES : 0};
    while (p->n_threads < n) {
        struct worker *w = &p->workers[p->n_threads];
        *w = (struct worker){.pool = p, .thread = p->n_threads};
        int sys = pthread_create(&w->id, NULL, work, w);
        if (sys) {
            uint32_t had = p->n_threads;
            pool_free(p);
            return err_set(e, ERR_LIMIT, "pool: thread %u of %u cannot be started (errno %d)",
                           had, n, sys);
        }
        p->n_threads++;
    }
    *out = p;
    return OK;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    p->fn = NULL;
    gate_open(&p->start);
    for (uint32_t t = 1; t < p->n_threads; t++)
        pthread_join(p->workers[t].id, NULL);
    free(p);
}

uint32_t pool_threads(const struct pool *p)
{
    return p ? p->n_threads : 1;
}

void pool_run(struct pool *p, pool_fn *fn, void *arg, size_t n_items)
{
    if (n_items == 0)
        return;
    if (!p || p->n_threads == 1) {
        fn(arg, 0, n_items, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->n_items = n_items;
    uint32_t seen = atomic_load_explicit(&p->done.value, memory_order_relaxed);
    atomic_store_explicit(&p->n_working, p->n_threads - 1, memory_order_relaxed);
    gate_open(&p->start);
    run_share(p, 0);
    gate_wait(&p->done, seen, p->n_spin);
}
