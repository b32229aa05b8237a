#include "tests/support/fenced.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* No address of a process has this bit, on x86-64 and on arm64. */
#define FENCE ((uintptr_t)1 << 54)

static size_t n_given, n_most, limit = SIZE_MAX;
static _Atomic size_t n_refused; /* uploads that are not begun */

struct upload {
    void *dst;
    const void *src;
    size_t bytes;
};

struct fenced {
    struct kernels real;
    pthread_mutex_t lock; /* of uploads, which come from any thread */
    struct upload *uploads;
    size_t n_uploads, cap_uploads;
    struct block { /* what was given out, and how much */
        void *p;
        size_t bytes;
    } * blocks;
    size_t n_blocks, cap_blocks;
};

static struct fenced *fenced_of(struct kernels *k)
{
    return (struct fenced *)(void *)k->ctx;
}

static struct kernels *real_of(struct kernels *k)
{
    return &fenced_of(k)->real;
}

/* ---- the fence ----------------------------------------------------------------------------
 */

static void *outside(void *p)
{
    return p ? (void *)((uintptr_t)p | FENCE) : NULL;
}

static uintptr_t inside(const void *p, const char *what)
{
    if (!p)
        return 0;
    if (!((uintptr_t)p & FENCE)) {
        fprintf(stderr, "fenced backend: %s is %p, memory of the host\n", what, p);
        abort();
    }
    return (uintptr_t)p & ~FENCE;
}

static const void *host(const void *p, const char *what)
{
    if ((uintptr_t)p & FENCE) {
        fprintf(stderr, "fenced backend: %s is %p, memory of the backend\n", what, p);
        abort();
    }
    return p;
}

#define IN(op, member) (x.member = (void *)inside(x.member, op "." #member))

static struct k_weight weight(const struct k_weight *w, const char *what)
{
    struct k_weight x = *w;
    x.packed = NULL;
    x.data = (void *)inside(w->data, what);
    x.scale = (void *)inside(w->scale, what);
    return x;
}

/* ---- memory -------------------------------------------------------------------------------
 */

size_t fenced_bytes(void)
{
    return n_given;
}

size_t fenced_most(void)
{
    size_t most = n_most;
    n_most = n_given;
    return most;
}

void fenced_refuse_uploads(size_t n)
{
    n_refused = n;
}

void fenced_limit(size_t bytes)
{
    limit = bytes;
}

static bool take(size_t bytes)
{
    if (bytes > limit || n_given > limit - bytes)
        return false;
    n_given += bytes;
    n_most = n_given > n_most ? n_given : n_most;
    return true;
}

static bool note(struct fenced *f, void *p, size_t bytes)
{
    if (f->n_blocks == f->cap_blocks) {
        size_t cap = f->cap_blocks ? 2 * f->cap_blocks : 256;
        struct block *more = realloc(f->blocks, cap * sizeof(*more));
        if (!more)
            return false;
        f->blocks = more;
        f->cap_blocks = cap;
    }
    f->blocks[f->n_blocks++] = (struct block){p, bytes};
    return true;
}

static struct block *find(struct fenced *f, const void *p)
{
    size_t i = f->n_blocks;
    while (i && f->blocks[i - 1].p != p)
        i--;
    if (i)
        return &f->blocks[i - 1];
    fprintf(stderr, "fenced backend: %p was not given out\n", p);
    abort();
}

static size_t forget(struct fenced *f, const void *p)
{
    struct block *b = find(f, p);
    size_t bytes = b->bytes;
    *b = f->blocks[--f->n_blocks];
    return bytes;
}

static void *fenced_alloc(struct kernels *k, size_t bytes)
{
    void *p = NULL;
    if (!take(bytes))
        return NULL;
    /* Of exactly this size, so that ASan sees what an op does beside it. */
    if (posix_memalign(&p, 256, bytes ? bytes : 1) || !note(fenced_of(k), p, bytes)) {
        free(p);
        n_given -= bytes;
        return NULL;
    }
    memset(p, 0, bytes);
    return outside(p);
}

static void fenced_free(struct kernels *k, void *p)
{
    void *real = (void *)inside(p, "free");
    if (!p)
        return;
    n_given -= forget(fenced_of(k), real);
    free(real);
}

static void *fenced_reserve(struct kernels *k, size_t bytes)
{
    void *p = real_of(k)->reserve(real_of(k), bytes);
    if (p && !note(fenced_of(k), p, 0)) {
        real_of(k)->release(real_of(k), p, bytes);
        return NULL;
    }
    return outside(p);
}

static enum err fenced_grow(struct kernels *k, void *p, size_t from, size_t to, struct error *e)
{
    void *real = (void *)inside(p, "grow");
    size_t more = to > from ? to - from : 0;
    if (!take(more))
        return err_set(e, ERR_NOMEM, "fenced backend: %zu bytes", more);
    enum err rc = real_of(k)->grow(real_of(k), real, from, to, e);
    if (rc)
        n_given -= more;
    else
        find(fenced_of(k), real)->bytes += more;
    return rc;
}

static enum err fenced_describe(struct kernels *k, struct k_device *out, struct error *e)
{
    enum err rc = real_of(k)->describe(real_of(k), out, e);
    snprintf(out->name, sizeof(out->name), "fenced memory");
    if (limit != SIZE_MAX)
        out->total_bytes = limit, out->free_bytes = limit > n_given ? limit - n_given : 0;
    return rc;
}

static void fenced_discard(struct kernels *k, void *p, size_t from, size_t to)
{
    void *real = (void *)inside(p, "discard");
    struct k_device d;
    if (fenced_describe(k, &d, NULL))
        abort();
    size_t page = (size_t)d.grow_bytes, first = (from + page - 1) / page, last = to / page;
    if (last > first) {
        find(fenced_of(k), real)->bytes -= (last - first) * page;
        n_given -= (last - first) * page;
    }
    real_of(k)->discard(real_of(k), real, from, to);
}

static void fenced_release(struct kernels *k, void *p, size_t bytes)
{
    void *real = (void *)inside(p, "release");
    if (!p)
        return;
    n_given -= forget(fenced_of(k), real);
    real_of(k)->release(real_of(k), real, bytes);
}

static bool fenced_pin(struct kernels *k, void *p, size_t bytes)
{
    (void)k, (void)bytes;
    return host(p, "pin") != NULL;
}

static void fenced_unpin(struct kernels *k, void *p)
{
    (void)k, (void)host(p, "unpin");
}

static void fenced_copy_in(struct kernels *k, void *dst, const void *src, size_t bytes)
{
    struct kernels *r = real_of(k);
    if (bytes)
        r->copy_in(r, (void *)inside(dst, "copy_in.dst"), host(src, "copy_in.src"), bytes);
}

/* Done as late as it may be: whoever touches either side before that is found. */
static bool fenced_upload(struct kernels *k, void *dst, const void *src, size_t bytes)
{
    struct fenced *f = fenced_of(k);
    struct upload u = {(void *)inside(dst, "upload.dst"), host(src, "upload.src"), bytes};
    if (n_refused) {
        n_refused--;
        return false;
    }
    pthread_mutex_lock(&f->lock);
    if (f->n_uploads == f->cap_uploads) {
        f->cap_uploads = f->cap_uploads ? 2 * f->cap_uploads : 64;
        f->uploads = realloc(f->uploads, f->cap_uploads * sizeof(*f->uploads));
        if (!f->uploads)
            abort();
    }
    f->uploads[f->n_uploads++] = u;
    pthread_mutex_unlock(&f->lock);
    return true;
}

static enum err fenced_upload_end(struct kernels *k, struct error *e)
{
    struct fenced *f = fenced_of(k);
    (void)e;
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < f->n_uploads; i++)
        memcpy(f->uploads[i].dst, f->uploads[i].src, f->uploads[i].bytes);
    f->n_uploads = 0;
    pthread_mutex_unlock(&f->lock);
    return OK;
}

static void fenced_copy_out(struct kernels *k, void *dst, const void *src, size_t bytes)
{
    struct kernels *r = real_of(k);
    (void)host(dst, "copy_out.dst");
    if (bytes)
        r->copy_out(r, dst, (void *)inside(src, "copy_out.src"), bytes);
}

static void fenced_copy(struct kernels *k, void *dst, const void *src, size_t bytes)
{
    struct kernels *r = real_of(k);
    if (bytes)
        r->copy(r, (void *)inside(dst, "copy.dst"), (void *)inside(src, "copy.src"), bytes);
}

static enum err fenced_sync(struct kernels *k, struct error *e)
{
    return real_of(k)->sync(real_of(k), e);
}

static enum err fenced_pack(struct kernels *k, struct k_weight *w, struct error *e)
{
    size_t data = 0, scale = 0;
    if (!k_weight_bytes(w, &data, &scale))
        return err_set(e, ERR_INVAL, "weight of %u x %u", w->n_out, w->n_in);
    uint8_t *p = fenced_alloc(k, data + scale);
    if (!p)
        return err_set(e, ERR_NOMEM, "fenced backend: weight of %zu bytes", data + scale);
    fenced_copy_in(k, p, w->data, data);
    fenced_copy_in(k, p + data, w->scale, scale);
    w->packed = p;
    w->data = p;
    w->scale = scale ? p + data : NULL;
    return OK;
}

static void fenced_unpack(struct kernels *k, struct k_weight *w)
{
    fenced_free(k, w->packed);
    w->packed = NULL;
    w->data = NULL;
    w->scale = NULL;
}

static void fenced_fini(struct kernels *k)
{
    struct fenced *f = fenced_of(k);
    if (f->n_blocks) {
        fprintf(stderr, "fenced backend: %zu pieces of memory were not given back\n",
                f->n_blocks);
        abort();
    }
    kernels_fini(&f->real);
    free(f->blocks);
    free(f->uploads);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

/* ---- the ops ------------------------------------------------------------------------------
 */

static void fenced_embed(struct kernels *k, const struct k_embed *a)
{
    struct k_embed x = *a;
    struct k_weight w = weight(a->w, "embed.w");
    x.w = &w;
    IN("embed", ids), IN("embed", x), IN("embed", pre);
    real_of(k)->embed(real_of(k), &x);
}

static void fenced_hc_mix(struct kernels *k, const struct k_hc_mix *a)
{
    struct k_hc_mix x = *a;
    struct k_weight fn = weight(a->fn, "hc_mix.fn");
    x.fn = &fn;
    IN("hc_mix", x), IN("hc_mix", scale), IN("hc_mix", base);
    IN("hc_mix", pre), IN("hc_mix", post), IN("hc_mix", comb);
    real_of(k)->hc_mix(real_of(k), &x);
}

static void fenced_hc_collapse(struct kernels *k, const struct k_hc_collapse *a)
{
    struct k_hc_collapse x = *a;
    IN("hc_collapse", x), IN("hc_collapse", pre), IN("hc_collapse", h);
    real_of(k)->hc_collapse(real_of(k), &x);
}

static void fenced_hc_update(struct kernels *k, const struct k_hc_update *a)
{
    struct k_hc_update x = *a;
    IN("hc_update", x), IN("hc_update", y), IN("hc_update", post), IN("hc_update", comb);
    IN("hc_update", out);
    real_of(k)->hc_update(real_of(k), &x);
}

static void fenced_rmsnorm(struct kernels *k, const struct k_rmsnorm *a)
{
    struct k_rmsnorm x = *a;
    IN("rmsnorm", x), IN("rmsnorm", w), IN("rmsnorm", y);
    real_of(k)->rmsnorm(real_of(k), &x);
}

static void fenced_linear(struct kernels *k, const struct k_linear *a)
{
    struct k_linear x = *a;
    struct k_weight w = weight(a->w, "linear.w");
    x.w = &w;
    IN("linear", x), IN("linear", y);
    real_of(k)->linear(real_of(k), &x);
}

static void fenced_rope_table(struct kernels *k, const struct k_rope_table *a)
{
    struct k_rope_table x = *a;
    IN("rope_table", pos), IN("rope_table", inv_freq);
    IN("rope_table", cos), IN("rope_table", sin);
    real_of(k)->rope_table(real_of(k), &x);
}

static void fenced_rope(struct kernels *k, const struct k_rope *a)
{
    struct k_rope x = *a;
    IN("rope", x), IN("rope", cos), IN("rope", sin);
    real_of(k)->rope(real_of(k), &x);
}

/* A list of runs as the real table may read it; to be freed. NULL: there is none. */
static struct k_run *runs(const struct k_run *list, uint32_t n, const char *what)
{
    if (!list)
        return NULL;
    struct k_run *copy = malloc(n * sizeof(*copy));
    if (!copy)
        abort();
    memcpy(copy, (void *)inside(list, what), n * sizeof(*copy));
    for (uint32_t i = 0; i < n; i++) {
        struct k_run *r = &copy[i];
        r->ring = (void *)inside(r->ring, what);
        r->pending = (void *)inside(r->pending, what);
        for (size_t s = 0; s < K_MAX_SOURCES; s++) {
            r->source[s].rows = (void *)inside(r->source[s].rows, what);
            r->source[s].keys = (void *)inside(r->source[s].keys, what);
        }
    }
    return copy;
}

static void fenced_encode(struct kernels *k, const struct k_encode *a)
{
    struct k_encode x = *a;
    struct k_run *list = runs(a->runs, a->n_runs, "encode.runs");
    x.runs = list;
    IN("encode", x), IN("encode", rows);
    real_of(k)->encode(real_of(k), &x);
    free(list);
}

static void fenced_decode(struct kernels *k, const struct k_decode *a)
{
    struct k_decode x = *a;
    IN("decode", rows), IN("decode", x);
    real_of(k)->decode(real_of(k), &x);
}

static void fenced_fake_quant(struct kernels *k, const struct k_fake_quant *a)
{
    struct k_fake_quant x = *a;
    IN("fake_quant", x), IN("fake_quant", y);
    real_of(k)->fake_quant(real_of(k), &x);
}

static void fenced_compress(struct kernels *k, const struct k_compress *a)
{
    struct k_compress x = *a;
    struct k_run *list = runs(a->runs, a->n_runs, "compress.runs");
    x.runs = list;
    IN("compress", u), IN("compress", g), IN("compress", out);
    real_of(k)->compress(real_of(k), &x);
    free(list);
}

static void fenced_attention(struct kernels *k, const struct k_attention *a)
{
    struct k_attention x = *a;
    struct k_run *list = runs(a->runs, a->n_runs, "attention.runs");
    x.runs = list;
    IN("attention", q), IN("attention", out), IN("attention", ring), IN("attention", keys);
    IN("attention", rows), IN("attention", sel), IN("attention", sink);
    real_of(k)->attention(real_of(k), &x);
    free(list);
}

static void fenced_index(struct kernels *k, const struct k_index *a)
{
    struct k_index x = *a;
    struct k_run *list = runs(a->runs, a->n_runs, "index.runs");
    x.runs = list;
    IN("index", q), IN("index", w), IN("index", keys), IN("index", sel);
    IN("index", blocks_out), IN("index", blocks_in), IN("index", score);
    real_of(k)->index(real_of(k), &x);
    free(list);
}

static void fenced_ring(struct kernels *k, const struct k_ring *a)
{
    struct k_ring x = *a;
    IN("ring", ring), IN("ring", keys);
    real_of(k)->ring(real_of(k), &x);
}

static void fenced_route(struct kernels *k, const struct k_route *a)
{
    struct k_route x = *a;
    IN("route", logits), IN("route", bias), IN("route", bias_alt), IN("route", alt);
    IN("route", expert), IN("route", weight);
    real_of(k)->route(real_of(k), &x);
}

static void fenced_scale(struct kernels *k, const struct k_scale *a)
{
    struct k_scale x = *a;
    IN("scale", x);
    real_of(k)->scale(real_of(k), &x);
}

static struct k_expert expert(const struct k_expert *x, const char *what)
{
    return (struct k_expert){weight(&x->w1, what), weight(&x->w3, what), weight(&x->w2, what)};
}

/* The weights of experts that occur, and only of those: the others may point nowhere. */
static struct k_expert *experts(const struct k_moe *a, const int32_t *chosen, size_t n)
{
    struct k_expert *list = calloc(a->n_expert + (size_t)1, sizeof(*list));
    if (!list)
        abort();
    for (size_t i = 0; i < n; i++) {
        int32_t c = chosen[i];
        if (c >= 0 && !list[c].w1.data && (!a->only || a->only[c]))
            list[c] = expert(&a->experts[c], "moe.experts");
    }
    return list;
}

static void fenced_moe_with(struct kernels *k, const struct k_moe *a,
                            void (*op)(struct kernels *, const struct k_moe *))
{
    struct k_moe x = *a;
    struct k_expert shared;
    IN("moe", x), IN("moe", expert), IN("moe", weight), IN("moe", y), IN("moe", part);
    struct k_expert *list = a->experts ? experts(a, x.expert, a->n * a->top_k) : NULL;
    if (a->shared) {
        shared = expert(a->shared, "moe.shared");
        x.shared = &shared;
    }
    (void)host(a->only, "moe.only"), (void)host(a->experts, "moe.experts");
    (void)inside(a->table, "moe.table");
    x.experts = list, x.table = NULL;
    op(real_of(k), &x);
    free(list);
}

static void fenced_moe(struct kernels *k, const struct k_moe *a)
{
    fenced_moe_with(k, a, real_of(k)->moe);
}

static void fenced_moe_part(struct kernels *k, const struct k_moe *a)
{
    fenced_moe_with(k, a, real_of(k)->moe_part);
}

static void fenced_moe_sum(struct kernels *k, const struct k_moe *a)
{
    struct k_moe x = *a;
    IN("moe_sum", expert), IN("moe_sum", y), IN("moe_sum", part);
    x.x = NULL, x.weight = NULL;
    real_of(k)->moe_sum(real_of(k), &x);
}

static void fenced_engram_rows(struct kernels *k, const struct k_engram_rows *a)
{
    struct k_engram_rows x = *a;
    IN("engram_rows", codes), IN("engram_rows", scales), IN("engram_rows", ids);
    IN("engram_rows", out);
    real_of(k)->engram_rows(real_of(k), &x);
}

static void fenced_engram_put(struct kernels *k, const struct k_engram_put *a)
{
    struct k_engram_put x = *a;
    IN("engram_put", codes), IN("engram_put", scales), IN("engram_put", from_codes);
    IN("engram_put", from_scales), IN("engram_put", at);
    real_of(k)->engram_put(real_of(k), &x);
}

static void fenced_engram_gate(struct kernels *k, const struct k_engram_gate *a)
{
    struct k_engram_gate x = *a;
    IN("engram_gate", x), IN("engram_gate", kv), IN("engram_gate", qw), IN("engram_gate", kw);
    IN("engram_gate", dead), IN("engram_gate", gate);
    real_of(k)->engram_gate(real_of(k), &x);
}

static void fenced_sample(struct kernels *k, const struct k_sample *a)
{
    struct k_sample x = *a;
    IN("sample", logits), IN("sample", add), IN("sample", bias), IN("sample", allowed),
        IN("sample", drawn);
    real_of(k)->sample(real_of(k), &x);
}

/* ---- opening ------------------------------------------------------------------------------
 */

/* Takes the table that real is. */
static enum err fence(struct kernels *k, struct kernels *real, struct error *e)
{
    struct fenced *f = calloc(1, sizeof(*f));
    if (!f) {
        kernels_fini(real);
        return err_set(e, ERR_NOMEM, "fenced backend");
    }
    f->real = *real;
    pthread_mutex_init(&f->lock, NULL);
    *k = (struct kernels){.numerics = real->numerics,
                          .ctx = (struct k_ctx *)(void *)f,
                          .fini = fenced_fini,
                          .alloc = fenced_alloc,
                          .free = fenced_free,
                          .reserve = fenced_reserve,
                          .grow = fenced_grow,
                          .discard = fenced_discard,
                          .release = fenced_release,
                          .pin = fenced_pin,
                          .unpin = fenced_unpin,
                          .describe = fenced_describe,
                          .copy_in = fenced_copy_in,
                          .copy_out = fenced_copy_out,
                          .copy = fenced_copy,
                          .upload = fenced_upload,
                          .upload_end = fenced_upload_end,
                          .sync = fenced_sync,
                          .pack = fenced_pack,
                          .unpack = fenced_unpack,
                          .embed = fenced_embed,
                          .hc_mix = fenced_hc_mix,
                          .hc_collapse = fenced_hc_collapse,
                          .hc_update = fenced_hc_update,
                          .rmsnorm = fenced_rmsnorm,
                          .linear = fenced_linear,
                          .rope_table = fenced_rope_table,
                          .rope = fenced_rope,
                          .encode = fenced_encode,
                          .decode = fenced_decode,
                          .fake_quant = fenced_fake_quant,
                          .compress = fenced_compress,
                          .attention = fenced_attention,
                          .index = fenced_index,
                          .ring = fenced_ring,
                          .route = fenced_route,
                          .scale = fenced_scale,
                          .moe = fenced_moe,
                          .moe_part = fenced_moe_part,
                          .moe_sum = fenced_moe_sum,
                          .engram_rows = fenced_engram_rows,
                          .engram_put = fenced_engram_put,
                          .engram_gate = fenced_engram_gate,
                          .sample = fenced_sample};
    return OK;
}

enum err fenced_open(struct kernels *k, struct pool *pool, struct error *e)
{
    struct kernels real = {0};
    enum err rc = kernels_cpu(&real, NULL, pool, e);
    return rc ? rc : fence(k, &real, e);
}

enum err fenced_ref_open(struct kernels *k, struct pool *pool, struct error *e)
{
    struct kernels real = {0};
    enum err rc = kernels_ref(&real, pool, e);
    return rc ? rc : fence(k, &real, e);
}

const char *emulated_library(void)
{
    if (getenv("AGENTD_TEST_GPU"))
        return getenv("AGENTD_TEST_GPU");
    static char path[256];
    const char *build = getenv("AGENTD_BUILD");
    snprintf(path, sizeof(path), "%s/tests/libagentd-cuda-emulated.so",
             build ? build : "build");
    return path;
}

void backend_option(struct engine_options *o, const char *name)
{
    o->backend = name;
    if (!strcmp(name, "fenced"))
        o->open_kernels = fenced_open;
    if (!strcmp(name, "fenced-ref"))
        o->open_kernels = fenced_ref_open;
    if (!strcmp(name, "emulated")) {
        o->backend = "cuda";
        o->cuda_library = emulated_library();
    }
}

void backend_override(struct engine_options *o)
{
    const char *library = getenv("AGENTD_TEST_GPU");
    if (o->open_kernels || o->isa || (!library && !getenv("AGENTD_TEST_FENCED")))
        return;
    if (library) {
        o->backend = "cuda";
        o->cuda_library = library;
        return;
    }
    o->open_kernels = o->backend && !strcmp(o->backend, "ref") ? fenced_ref_open : fenced_open;
}
