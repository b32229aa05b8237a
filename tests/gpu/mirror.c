#include "tests/gpu/mirror.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 256
#define GUARD_BYTE 0xa5
#define MAX_PARTS 8192 /* a layer's experts, six each */

/* One array of an op, on both sides. */
struct part {
    void *host;
    uint8_t *block; /* on the device: guard, bytes, guard */
    uint8_t *d;
    size_t bytes;
    bool is_written;
};

struct mirror {
    struct kernels host, device;
    const char *op;
    struct part parts[MAX_PARTS];
    size_t n_parts;
};

static struct mirror *mirror_of(struct kernels *k)
{
    return (struct mirror *)(void *)k->ctx;
}

static void stop(const struct mirror *m, const char *what)
{
    fprintf(stderr, "mirror: %s: %s\n", m->op, what);
    abort();
}

/* ---- one array ----------------------------------------------------------------------------
 */

static void *add(struct mirror *m, const void *host, size_t bytes, bool is_written)
{
    struct kernels *d = &m->device;
    if (!host || !bytes)
        return NULL;
    for (size_t i = 0; i < m->n_parts; i++) { /* in place */
        if (m->parts[i].host != host || m->parts[i].bytes < bytes)
            continue;
        m->parts[i].is_written |= is_written;
        return m->parts[i].d;
    }
    uint8_t guard[2 * GUARD];
    size_t skip = GUARD + (uintptr_t)host % 64, total = skip + bytes + GUARD;
    struct part *p = &m->parts[m->n_parts++];
    if (m->n_parts == MAX_PARTS)
        stop(m, "too many arrays");
    memset(guard, GUARD_BYTE, sizeof(guard));
    *p = (struct part){.block = d->alloc(d, total), .bytes = bytes, .is_written = is_written};
    memcpy(&p->host, &host, sizeof(host));
    if (!p->block)
        stop(m, "no memory on the device");
    p->d = p->block + skip;
    d->copy_in(d, p->block, guard, skip);
    d->copy_in(d, p->d, host, bytes);
    d->copy_in(d, p->d + bytes, guard, GUARD);
    return p->d;
}

static void check_guard(struct mirror *m, const uint8_t *d, size_t n)
{
    uint8_t got[2 * GUARD];
    m->device.copy_out(&m->device, got, d, n);
    for (size_t i = 0; i < n; i++)
        if (got[i] != GUARD_BYTE)
            stop(m, "wrote beside an array");
}

static void begin(struct mirror *m, const char *op)
{
    m->op = op;
    m->n_parts = 0;
}

static void end(struct mirror *m)
{
    struct kernels *d = &m->device;
    struct error e = {0};
    if (d->sync(d, &e))
        stop(m, e.msg);
    for (size_t i = 0; i < m->n_parts; i++) {
        struct part *p = &m->parts[i];
        if (p->is_written)
            d->copy_out(d, p->host, p->d, p->bytes);
        check_guard(m, p->block, (size_t)(p->d - p->block));
        check_guard(m, p->d + p->bytes, GUARD);
        d->free(d, p->block);
    }
}

#define IN(member, bytes) (x.member = add(m, x.member, (bytes), false))
#define OUT(member, bytes) (x.member = add(m, x.member, (bytes), true))
#define F sizeof(float)

/* Bytes of n rows of d floats, `stride` floats apart unless that is 0. */
static size_t rows_bytes(size_t n, size_t stride, size_t d)
{
    return n ? ((n - 1) * (stride ? stride : d) + d) * F : 0;
}

static struct k_weight weight(struct mirror *m, const struct k_weight *w)
{
    struct k_weight x = *w;
    size_t data = 0, scale = 0;
    if (!k_weight_bytes(w, &data, &scale))
        stop(m, "a weight of no size");
    x.packed = NULL;
    x.data = add(m, w->data, data, false);
    x.scale = add(m, w->scale, scale, false);
    return x;
}

/* ---- the ops ------------------------------------------------------------------------------
 */

#define BEGIN(type, name)                                                                      \
    struct mirror *m = mirror_of(k);                                                           \
    struct type x = *a;                                                                        \
    begin(m, name)
#define RUN(op)                                                                                \
    do {                                                                                       \
        m->device.op(&m->device, &x);                                                          \
        end(m);                                                                                \
    } while (0)

static void mirror_embed(struct kernels *k, const struct k_embed *a)
{
    BEGIN(k_embed, "embed");
    struct k_weight w = weight(m, a->w);
    x.w = &w;
    IN(ids, x.n * sizeof(*x.ids));
    OUT(x, x.n * x.copies * w.n_in * F);
    OUT(pre, x.n * x.copies * F);
    RUN(embed);
}

static void mirror_hc_mix(struct kernels *k, const struct k_hc_mix *a)
{
    BEGIN(k_hc_mix, "hc_mix");
    struct k_weight fn = weight(m, a->fn);
    x.fn = &fn;
    IN(x, x.n * x.hc * x.d * F), IN(scale, 3 * F), IN(base, (size_t)(2 + x.hc) * x.hc * F);
    OUT(pre, x.n * x.hc * F), OUT(post, x.n * x.hc * F), OUT(comb, x.n * x.hc * x.hc * F);
    RUN(hc_mix);
}

static void mirror_hc_collapse(struct kernels *k, const struct k_hc_collapse *a)
{
    BEGIN(k_hc_collapse, "hc_collapse");
    IN(x, x.n * x.hc * x.d * F), IN(pre, x.n * x.hc * F), OUT(h, x.n * x.d * F);
    RUN(hc_collapse);
}

static void mirror_hc_update(struct kernels *k, const struct k_hc_update *a)
{
    BEGIN(k_hc_update, "hc_update");
    IN(x, x.n * x.hc * x.d * F), IN(y, x.n * x.d * F), IN(post, x.n * x.hc * F);
    IN(comb, x.n * x.hc * x.hc * F), OUT(out, x.n * x.hc * x.d * F);
    RUN(hc_update);
}

static void mirror_rmsnorm(struct kernels *k, const struct k_rmsnorm *a)
{
    BEGIN(k_rmsnorm, "rmsnorm");
    IN(x, rows_bytes(x.n, x.x_stride, x.d)), IN(w, x.d * F), OUT(y, x.n * x.d * F);
    RUN(rmsnorm);
}

static void mirror_linear(struct kernels *k, const struct k_linear *a)
{
    BEGIN(k_linear, "linear");
    struct k_weight w = weight(m, a->w);
    size_t groups = w.n_groups ? w.n_groups : 1;
    x.w = &w;
    IN(x, rows_bytes(x.n, x.x_stride, groups * w.n_in));
    OUT(y, rows_bytes(x.n, x.y_stride, w.n_out));
    RUN(linear);
}

static void mirror_rope_table(struct kernels *k, const struct k_rope_table *a)
{
    BEGIN(k_rope_table, "rope_table");
    IN(pos, x.n * sizeof(*x.pos)), IN(inv_freq, x.half * F);
    OUT(cos, x.n * x.half * F), OUT(sin, x.n * x.half * F);
    RUN(rope_table);
}

static void mirror_rope(struct kernels *k, const struct k_rope *a)
{
    BEGIN(k_rope, "rope");
    OUT(x, rows_bytes(x.n, x.x_stride, (size_t)x.n_head * x.d));
    IN(cos, x.n * x.half * F), IN(sin, x.n * x.half * F);
    RUN(rope);
}

/* A list of runs that points nowhere yet; handed to add() and freed by the op. */
static struct k_run *copy_runs(struct mirror *m, const struct k_run *list, uint32_t n)
{
    struct k_run *copy = list ? malloc(n * sizeof(*copy)) : NULL;
    if (!list)
        return NULL;
    if (!copy)
        stop(m, "no memory");
    memcpy(copy, list, n * sizeof(*copy));
    for (uint32_t i = 0; i < n; i++) {
        copy[i].ring = NULL, copy[i].pending = NULL;
        for (size_t k = 0; k < K_MAX_SOURCES; k++)
            copy[i].source[k].rows = copy[i].source[k].keys = NULL;
    }
    return copy;
}

static void mirror_encode(struct kernels *k, const struct k_encode *a)
{
    BEGIN(k_encode, "encode");
    size_t row = k_row_bytes(x.format, x.d);
    struct k_run *list = copy_runs(m, a->runs, a->n_runs);
    for (uint32_t i = 0; list && i < a->n_runs; i++) {
        const struct k_run_source *from = &a->runs[i].source[a->source];
        struct k_run_source *s = &list[i].source[a->source];
        size_t bytes = (size_t)(s->row + s->n) * row;
        s->rows = add(m, a->keys ? NULL : from->rows, bytes, true);
        s->keys = add(m, a->keys ? from->keys : NULL, bytes, true);
    }
    x.runs = add(m, list, a->n_runs * sizeof(*list), false);
    IN(x, rows_bytes(x.n, x.x_stride, x.d)), OUT(rows, x.n * row);
    RUN(encode);
    free(list);
}

static void mirror_decode(struct kernels *k, const struct k_decode *a)
{
    BEGIN(k_decode, "decode");
    IN(rows, x.n * k_row_bytes(x.format, x.d)), OUT(x, x.n * x.d * F);
    RUN(decode);
}

static void mirror_fake_quant(struct kernels *k, const struct k_fake_quant *a)
{
    BEGIN(k_fake_quant, "fake_quant");
    IN(x, x.n * x.d * F), OUT(y, x.n * x.d * F);
    RUN(fake_quant);
}

static void mirror_compress(struct kernels *k, const struct k_compress *a)
{
    BEGIN(k_compress, "compress");
    size_t n = x.n * x.ratio;
    struct k_run *list = copy_runs(m, a->runs, a->n_runs);
    for (uint32_t i = 0; list && i < a->n_runs; i++)
        list[i].pending =
            add(m, a->runs[i].pending, (size_t)(x.source + 1) * 2 * x.d * F, false);
    if (list)
        n = a->runs[a->n_runs - 1].row + a->runs[a->n_runs - 1].n - a->row0;
    x.runs = add(m, list, a->n_runs * sizeof(*list), false);
    IN(u, n * x.d * F), IN(g, n * x.d * F), OUT(out, x.n * x.d * F);
    RUN(compress);
    free(list);
}

static void mirror_scale(struct kernels *k, const struct k_scale *a)
{
    BEGIN(k_scale, "scale");
    OUT(x, x.n * F);
    RUN(scale);
}

/* Rows that n numbers ask for. */
static size_t rows_named(const int32_t *sel, size_t n)
{
    int32_t most = -1;
    for (size_t i = 0; i < n; i++)
        most = sel[i] > most ? sel[i] : most;
    return (size_t)(most + 1);
}

static void mirror_attention(struct kernels *k, const struct k_attention *a)
{
    BEGIN(k_attention, "attention");
    size_t window = k_row_bytes(x.window_format, x.d), n_sel = x.n * x.n_sel;
    size_t row = k_row_bytes(x.row_format, x.d), n_rows = x.sel ? rows_named(x.sel, n_sel) : 0;
    struct k_run *list = copy_runs(m, a->runs, a->n_runs);
    for (uint32_t i = 0; list && i < a->n_runs; i++) {
        const struct k_run *from = &a->runs[i];
        list[i].ring = add(m, from->ring, x.ring_at + x.window * window, false);
        list[i].source[x.source].rows =
            add(m, from->source[x.source].rows, n_rows * row, false);
    }
    x.runs = add(m, list, a->n_runs * sizeof(*list), false);
    IN(q, x.n * x.n_head * x.d * F), OUT(out, x.n * x.n_head * x.d * F);
    IN(ring, x.window * window), IN(keys, x.window ? x.n * window : 0);
    IN(rows, n_rows * row), IN(sel, n_sel * sizeof(*x.sel));
    IN(sink, x.n_head * F);
    RUN(attention);
    free(list);
}

static void mirror_index(struct kernels *k, const struct k_index *a)
{
    BEGIN(k_index, "index");
    struct k_run *list = copy_runs(m, a->runs, a->n_runs);
    for (uint32_t i = 0; list && i < a->n_runs; i++)
        list[i].source[x.source].keys = add(
            m, a->runs[i].source[x.source].keys,
            (size_t)((list[i].pos0 + list[i].n) / x.ratio) * k_row_bytes(x.format, x.d), false);
    x.runs = add(m, list, a->n_runs * sizeof(*list), false);
    size_t blocks = x.n * x.n_blocks * sizeof(int32_t);
    IN(q, x.n * x.n_head * x.d * F), IN(w, x.n * x.n_head * F);
    IN(keys, (size_t)x.n_row * k_row_bytes(x.format, x.d));
    OUT(sel, x.n * x.top_k * sizeof(*x.sel));
    OUT(blocks_out, blocks), IN(blocks_in, blocks), OUT(score, x.n * (size_t)x.n_row * F);
    RUN(index);
    free(list);
}

static void mirror_ring(struct kernels *k, const struct k_ring *a)
{
    BEGIN(k_ring, "ring");
    size_t row = x.row_bytes;
    OUT(ring, (size_t)x.n_layers * x.window * row);
    IN(keys, x.n_layers ? (x.n_layers - 1) * x.key_stride + x.n * row : 0);
    RUN(ring);
}

static void mirror_route(struct kernels *k, const struct k_route *a)
{
    BEGIN(k_route, "route");
    IN(logits, x.n * x.n_expert * F), IN(bias, x.n_expert * F), IN(bias_alt, x.n_expert * F);
    IN(alt, x.n), OUT(expert, x.n * x.top_k * sizeof(*x.expert));
    OUT(weight, x.n * x.top_k * F);
    RUN(route);
}

static struct k_expert expert(struct mirror *m, const struct k_expert *x)
{
    return (struct k_expert){weight(m, &x->w1), weight(m, &x->w3), weight(m, &x->w2)};
}

static void moe_with(struct kernels *k, const struct k_moe *a, const char *name,
                     void (*op)(struct kernels *, const struct k_moe *), bool needs_experts)
{
    BEGIN(k_moe, name);
    struct k_expert shared, *list = calloc(a->n_expert + (size_t)1, sizeof(*list));
    if (!list)
        stop(m, "no memory");
    for (uint32_t i = 0; needs_experts && i < a->n_expert; i++)
        list[i] = a->experts[i]; /* sizes of all; the memory of those that occur follows */
    for (size_t i = 0; needs_experts && i < a->n * a->top_k; i++) {
        int32_t c = a->expert[i];
        if (c >= 0 && list[c].w1.data == a->experts[c].w1.data && (!a->only || a->only[c]))
            list[c] = expert(m, &a->experts[c]);
    }
    if (needs_experts && a->shared) {
        shared = expert(m, a->shared);
        x.shared = &shared;
    }
    if (op == m->device.moe)
        x.part = NULL, x.only = NULL; /* not its arguments */
    x.experts = list, x.table = NULL;
    IN(x, needs_experts ? x.n * x.d * F : 0);
    IN(expert, x.n * x.top_k * sizeof(*x.expert)), IN(weight, x.n * x.top_k * F);
    OUT(y, x.n * x.d * F), OUT(part, x.n * (x.top_k + (size_t)1) * x.d * F);
    op(&m->device, &x);
    end(m);
    free(list);
}

static void mirror_moe(struct kernels *k, const struct k_moe *a)
{
    moe_with(k, a, "moe", mirror_of(k)->device.moe, true);
}

static void mirror_moe_part(struct kernels *k, const struct k_moe *a)
{
    moe_with(k, a, "moe_part", mirror_of(k)->device.moe_part, true);
}

static void mirror_moe_sum(struct kernels *k, const struct k_moe *a)
{
    moe_with(k, a, "moe_sum", mirror_of(k)->device.moe_sum, false);
}

static void mirror_engram_rows(struct kernels *k, const struct k_engram_rows *a)
{
    BEGIN(k_engram_rows, "engram_rows");
    uint64_t n_row = 0;
    for (size_t i = 0; i < x.n * x.n_id; i++)
        n_row = x.ids[i] >= n_row ? x.ids[i] + 1 : n_row;
    IN(codes, (size_t)n_row * x.d), IN(scales, (size_t)n_row * (x.d / 32));
    IN(ids, x.n * x.n_id * sizeof(*x.ids)), OUT(out, x.n * x.n_id * x.d * F);
    RUN(engram_rows);
}

static void mirror_engram_put(struct kernels *k, const struct k_engram_put *a)
{
    BEGIN(k_engram_put, "engram_put");
    uint64_t n_row = 0;
    for (size_t i = 0; i < x.n; i++)
        n_row = x.at[i] >= n_row ? x.at[i] + 1 : n_row;
    OUT(codes, (size_t)n_row * x.d), OUT(scales, (size_t)n_row * (x.d / 32));
    IN(from_codes, x.n * x.d), IN(from_scales, x.n * (x.d / 32));
    IN(at, x.n * sizeof(*x.at));
    RUN(engram_put);
}

static void mirror_engram_gate(struct kernels *k, const struct k_engram_gate *a)
{
    BEGIN(k_engram_gate, "engram_gate");
    OUT(x, x.n * x.hc * x.d * F), IN(kv, x.n * (x.hc + (size_t)1) * x.d * F);
    IN(qw, (size_t)x.hc * x.d * F), IN(kw, (size_t)x.hc * x.d * F), IN(dead, x.n);
    OUT(gate, x.n * x.hc * F);
    RUN(engram_gate);
}

static void mirror_sample(struct kernels *k, const struct k_sample *a)
{
    BEGIN(k_sample, "sample");
    size_t n_bias = 0;
    for (uint32_t i = 0; i < x.n; i++)
        if (x.draw[i].bias_at + (size_t)x.draw[i].n_bias > n_bias)
            n_bias = x.draw[i].bias_at + (size_t)x.draw[i].n_bias;
    IN(logits, (size_t)x.n * x.n_vocab * F), IN(add, (size_t)x.n * x.n_vocab * F);
    IN(bias, n_bias * sizeof(*x.bias));
    IN(allowed, x.n * K_MASK_WORDS(x.n_vocab) * sizeof(*x.allowed));
    OUT(drawn, x.n * sizeof(*x.drawn));
    RUN(sample);
}

/* ---- the rest of the table ----------------------------------------------------------------
 */

static enum err mirror_sync(struct kernels *k, struct error *e)
{
    return mirror_of(k)->device.sync(&mirror_of(k)->device, e);
}

static enum err mirror_pack(struct kernels *k, struct k_weight *w, struct error *e)
{
    (void)k, (void)w, (void)e;
    return OK;
}

static void mirror_unpack(struct kernels *k, struct k_weight *w)
{
    (void)k;
    w->packed = NULL;
}

static void mirror_fini(struct kernels *k)
{
    struct mirror *m = mirror_of(k);
    kernels_fini(&m->device);
    kernels_fini(&m->host);
    free(m);
}

enum err mirror_open(struct kernels *k, struct kernels *device, struct error *e)
{
    struct mirror *m = calloc(1, sizeof(*m));
    enum err rc = m ? kernels_ref(&m->host, NULL, e) : err_set(e, ERR_NOMEM, "mirror");
    if (rc) {
        kernels_fini(device);
        free(m);
        return rc;
    }
    m->device = *device;
    *k = m->host; /* its memory hooks ask for nothing that is in its context */
    k->numerics = device->numerics;
    k->ctx = (struct k_ctx *)(void *)m;
    k->host_memory = false; /* it takes any, but is not what ops run on */
    k->fini = mirror_fini;
    k->sync = mirror_sync, k->pack = mirror_pack, k->unpack = mirror_unpack;
    k->embed = mirror_embed;
    k->hc_mix = mirror_hc_mix, k->hc_collapse = mirror_hc_collapse;
    k->hc_update = mirror_hc_update;
    k->rmsnorm = mirror_rmsnorm;
    k->linear = mirror_linear;
    k->rope_table = mirror_rope_table, k->rope = mirror_rope;
    k->encode = mirror_encode, k->decode = mirror_decode, k->fake_quant = mirror_fake_quant;
    k->compress = mirror_compress;
    k->attention = mirror_attention;
    k->index = mirror_index;
    k->ring = mirror_ring;
    k->route = mirror_route;
    k->scale = mirror_scale;
    k->moe = mirror_moe, k->moe_part = mirror_moe_part, k->moe_sum = mirror_moe_sum;
    k->engram_put = mirror_engram_put, k->engram_rows = mirror_engram_rows,
    k->engram_gate = mirror_engram_gate;
    k->sample = mirror_sample;
    return OK;
}
