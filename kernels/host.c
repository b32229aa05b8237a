#include "kernels/host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define HUGE ((size_t)2 << 20)
#define HUGE_FROM (2 * HUGE) /* smaller blocks are not worth an address of their own */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1; refused before */
#endif
#define SERIAL_NS 10000               /* about what waking a pool costs */
#define SCRATCH_MAX ((size_t)1 << 38) /* no op of a real step comes near */

/* ---- huge pages ---------------------------------------------------------------------------
 * Rows that attention reads lie anywhere, and a weight is read once a token: with pages of 4 KB
 * each is a miss in the TLB. Only what lies whole in [p + from, p + to) is asked for, so
 * nothing takes more memory than its size. Advice that is refused costs time and nothing else.
 */

static size_t up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static void ask_huge(uint8_t *p, size_t from, size_t to)
{
    uintptr_t begin = up((uintptr_t)p + from, HUGE), end = ((uintptr_t)p + to) / HUGE * HUGE;
    if (end > begin)
        (void)madvise(p + (begin - (uintptr_t)p), end - begin, MADV_HUGEPAGE);
}

void *k_block(size_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, bytes < HUGE_FROM ? 64 : HUGE, bytes ? bytes : 1))
        return NULL;
    if (bytes >= HUGE_FROM)
        ask_huge(p, 0, bytes);
    return p;
}

/* ---- memory -------------------------------------------------------------------------------
 */

static void *host_alloc(struct kernels *k, size_t bytes)
{
    (void)k;
    size_t align = bytes < HUGE_FROM ? PAGE : HUGE;
    if (bytes > SIZE_MAX - 2 * HUGE)
        return NULL;
    /* calloc leaves untouched pages of a large plane to the kernel, an aligned memset would
     * not. The block's own address stands in front of the aligned one. */
    uint8_t *raw = calloc(1, bytes + 2 * align);
    if (!raw)
        return NULL;
    uint8_t *p = raw + align - (uintptr_t)raw % align;
    memcpy(p - sizeof raw, &raw, sizeof raw);
    if (align == HUGE)
        ask_huge(p, 0, bytes);
    return p;
}

static void host_free(struct kernels *k, void *p)
{
    void *raw;
    (void)k;
    if (!p)
        return;
    memcpy(&raw, (uint8_t *)p - sizeof raw, sizeof raw);
    free(raw);
}

/* Address space only: pages come when they are touched, a limit is met when they are allowed.
 * It begins where a huge page can; what lies in front and behind goes back. */
static void *host_reserve(struct kernels *k, size_t bytes)
{
    (void)k;
    if (bytes > SIZE_MAX - 2 * HUGE)
        return NULL;
    bytes = up(bytes ? bytes : 1, PAGE);
    uint8_t *raw =
        mmap(NULL, bytes + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    uint8_t *p = raw + up((uintptr_t)raw, HUGE) - (uintptr_t)raw;
    if (p > raw)
        (void)munmap(raw, (size_t)(p - raw));
    if (raw + HUGE > p)
        (void)munmap(p + bytes, (size_t)(raw + HUGE - p));
    return p;
}

/* Small pages of before are put together once a huge one is full. */
static void become_huge(uint8_t *p, size_t from, size_t to)
{
    size_t begun = from / HUGE * HUGE;
    ask_huge(p, begun, to);
    if (from > begun && to >= begun + HUGE)
        (void)madvise(p + begun, HUGE, MADV_COLLAPSE);
}

static enum err host_grow(struct kernels *k, void *p, size_t from, size_t to, struct error *e)
{
    (void)k;
    if (to > from && mprotect(p, to, PROT_READ | PROT_WRITE))
        return err_sys(e, errno, "%zu bytes of memory", to - from);
    become_huge(p, from, to);
    return OK;
}

static void host_discard(struct kernels *k, void *p, size_t from, size_t to)
{
    (void)k;
    from = (from + PAGE - 1) / PAGE * PAGE, to = to / PAGE * PAGE;
    /* Advice that is refused costs memory and nothing else. */
    if (to > from)
        (void)madvise((uint8_t *)p + from, to - from, MADV_DONTNEED);
}

static void host_release(struct kernels *k, void *p, size_t bytes)
{
    (void)k;
    if (p)
        (void)munmap(p, bytes ? bytes : 1);
}

static bool host_pin(struct kernels *k, void *p, size_t bytes)
{
    (void)k, (void)p, (void)bytes;
    return true; /* all of it is as fast */
}

static void host_unpin(struct kernels *k, void *p)
{
    (void)k, (void)p;
}

static enum err host_describe(struct kernels *k, struct k_device *out, struct error *e)
{
    (void)k, (void)e;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    *out = (struct k_device){.name = "host",
                             .total_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * page,
                             .free_bytes = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page,
                             .grow_bytes = page};
    return OK;
}

static void host_copy(struct kernels *k, void *dst, const void *src, size_t bytes)
{
    (void)k;
    if (bytes)
        memcpy(dst, src, bytes);
}

static bool host_upload(struct kernels *k, void *dst, const void *src, size_t bytes)
{
    host_copy(k, dst, src, bytes);
    return true;
}

static enum err host_upload_end(struct kernels *k, struct error *e)
{
    (void)k, (void)e;
    return OK;
}

static enum err host_sync(struct kernels *k, struct error *e)
{
    enum err rc = k->ctx->failed;
    if (!rc)
        return OK;
    k->ctx->failed = OK;
    return err_set(e, rc, "kernels %s: scratch of %zu bytes", k->numerics,
                   k->ctx->failed_bytes);
}

static enum err host_pack(struct kernels *k, struct k_weight *w, struct error *e)
{
    (void)k, (void)w, (void)e;
    return OK;
}

static void host_unpack(struct kernels *k, struct k_weight *w)
{
    (void)k;
    if (w->data == w->packed) /* a copy of the codes */
        w->data = NULL, w->scale = NULL;
    free(w->packed);
    w->packed = NULL;
}

static void host_fini(struct kernels *k)
{
    for (int i = 0; i < K_N_SLOTS; i++)
        free(k->ctx->slot[i].p);
    free(k->ctx);
}

enum err k_host_init(struct kernels *k, const char *numerics, struct pool *pool,
                     struct error *e)
{
    struct k_ctx *ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        return err_set(e, ERR_NOMEM, "kernels %s: context", numerics);
    ctx->pool = pool;
    ctx->serial_ns = SERIAL_NS;
    *k = (struct kernels){.numerics = numerics,
                          .host_memory = true,
                          .ctx = ctx,
                          .fini = host_fini,
                          .alloc = host_alloc,
                          .free = host_free,
                          .reserve = host_reserve,
                          .grow = host_grow,
                          .discard = host_discard,
                          .release = host_release,
                          .pin = host_pin,
                          .unpin = host_unpin,
                          .describe = host_describe,
                          .copy_in = host_copy,
                          .copy_out = host_copy,
                          .copy = host_copy,
                          .upload = host_upload,
                          .upload_end = host_upload_end,
                          .sync = host_sync,
                          .pack = host_pack,
                          .unpack = host_unpack};
    return OK;
}

void kernels_fini(struct kernels *k)
{
    if (k->fini)
        k->fini(k);
    *k = (struct kernels){0};
}

void k_run(struct kernels *k, pool_fn *fn, void *arg, size_t n_items, size_t cost_ns)
{
    if (n_items)
        pool_run(cost_ns < k->ctx->serial_ns ? NULL : k->ctx->pool, fn, arg, n_items);
}

uint32_t k_threads(const struct kernels *k)
{
    return k->ctx->pool ? pool_threads(k->ctx->pool) : 1;
}

void *k_scratch(struct kernels *k, enum k_slot slot, size_t bytes)
{
    struct k_scratch *s = &k->ctx->slot[slot];
    if (bytes <= s->bytes && s->p)
        return s->p;
    free(s->p);
    s->bytes = 0;
    s->p = bytes > SCRATCH_MAX ? NULL : k_block(bytes);
    if (!s->p) {
        k->ctx->failed = ERR_NOMEM;
        k->ctx->failed_bytes = bytes;
        return NULL;
    }
    s->bytes = bytes;
    return s->p;
}

void *k_scratch_threads(struct kernels *k, enum k_slot slot, size_t bytes, size_t *stride)
{
    *stride = (bytes + 127) / 64 * 64; /* a line between threads */
    return k_scratch(k, slot, *stride * k_threads(k));
}
