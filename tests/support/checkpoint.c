#include "tests/support/checkpoint.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "engine/config.h"
#include "engine/safetensors.h"
#include "kernels/bits.h"
#include "kernels/math.h"

/* ---- what there is to write ---------------------------------------------------------------
 */

enum fill {
    FILL_NORMAL,    /* mean + std * normal */
    FILL_FP8,       /* E4M3 codes */
    FILL_FP4,       /* two E2M1 codes a byte */
    FILL_FP8_SCALE, /* powers of two, so that codes times scales spread by std */
    FILL_FP4_SCALE,
    FILL_HC_BASE /* coefficients that keep each stream mostly to itself */
};

struct item {
    char name[96];
    enum dtype dtype;
    uint32_t n_dims;
    uint64_t shape[2];
    enum fill fill;
    double mean, std;
    uint32_t shard;
};

struct list {
    const struct config *c;
    struct item *items;
    size_t n, cap;
    uint32_t layer;
    enum err rc;
    struct error *e;
};

static uint64_t item_bytes(const struct item *t)
{
    return t->shape[0] * (t->n_dims > 1 ? t->shape[1] : 1) * dtype_bytes(t->dtype);
}

static void add(struct list *l, struct item t)
{
    if (l->rc)
        return;
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        struct item *p = realloc(l->items, cap * sizeof(*p));
        if (!p) {
            l->rc = err_set(l->e, ERR_NOMEM, "%zu tensors", cap);
            return;
        }
        l->items = p;
        l->cap = cap;
    }
    l->items[l->n++] = t;
}

static struct item item(const struct list *l, const char *name, const char *suffix)
{
    struct item t = {0};
    if (l->layer == UINT32_MAX)
        snprintf(t.name, sizeof(t.name), "%s%s", name, suffix);
    else
        snprintf(t.name, sizeof(t.name), "layers.%u.%s%s", l->layer, name, suffix);
    return t;
}

static void add_vector(struct list *l, const char *name, const char *suffix, enum dtype dtype,
                       uint64_t n, double mean, double std)
{
    struct item t = item(l, name, suffix);
    t.dtype = dtype, t.n_dims = 1, t.shape[0] = n, t.mean = mean, t.std = std;
    add(l, t);
}

static void add_norm(struct list *l, const char *name, uint64_t n, double mean)
{
    add_vector(l, name, ".weight", DTYPE_BF16, n, mean, 0.1 * mean);
}

/* A matrix whose products with inputs of size 1 have size `gain`. */
static void add_matrix(struct list *l, const char *name, const char *suffix, enum dtype dtype,
                       uint64_t n_out, uint64_t n_in, double gain)
{
    struct item t = item(l, name, suffix);
    t.dtype = dtype, t.n_dims = 2, t.shape[0] = n_out, t.shape[1] = n_in;
    t.std = gain / k_pow((double)n_in, 0.5);
    add(l, t);
}

static void add_quantised(struct list *l, const char *name, bool fp4, uint64_t n_out,
                          uint64_t n_in, uint64_t scale_rows, double std)
{
    struct item t = item(l, name, ".weight"), s = item(l, name, ".scale");
    t.dtype = fp4 ? DTYPE_I8 : DTYPE_E4M3, t.n_dims = 2;
    t.shape[0] = n_out, t.shape[1] = fp4 ? n_in / 2 : n_in;
    t.fill = fp4 ? FILL_FP4 : FILL_FP8;
    s.dtype = DTYPE_E8M0, s.n_dims = 2;
    s.shape[0] = scale_rows, s.shape[1] = n_in / 32;
    s.fill = fp4 ? FILL_FP4_SCALE : FILL_FP8_SCALE;
    s.std = std;
    add(l, t);
    add(l, s);
}

static void add_fp8(struct list *l, const char *name, uint64_t n_out, uint64_t n_in,
                    double gain)
{
    add_quantised(l, name, false, n_out, n_in, (n_out + 31) / 32,
                  gain / k_pow((double)n_in, 0.5));
}

static void add_fp4(struct list *l, const char *name, uint64_t n_out, uint64_t n_in,
                    double gain)
{
    add_quantised(l, name, true, n_out, n_in, n_out, gain / k_pow((double)n_in, 0.5));
}

static void add_hc(struct list *l, const char *half)
{
    const struct config *c = l->c;
    uint64_t n = (2 + c->hc) * c->hc;
    char name[32];
    snprintf(name, sizeof(name), "hc_%s_fn", half);
    add_matrix(l, name, "", DTYPE_F32, n, (uint64_t)c->hc * c->dim, 1);
    snprintf(name, sizeof(name), "hc_%s_base", half);
    struct item t = item(l, name, "");
    t.dtype = DTYPE_F32, t.n_dims = 1, t.shape[0] = n, t.fill = FILL_HC_BASE;
    add(l, t);
    snprintf(name, sizeof(name), "hc_%s_scale", half);
    add_vector(l, name, "", DTYPE_F32, 3, 0.5, 0.15);
}

/* The gains of the golden models: inputs of attention are small (its norm weight is 0.025),
 * what must not be small behind them has a large gain. */
static void add_attention(struct list *l)
{
    const struct config *c = l->c;
    uint64_t q = (uint64_t)c->n_heads * c->head_dim, o = (uint64_t)c->o_groups * c->o_lora;
    add_norm(l, "attn_norm", c->dim, 0.025);
    add_fp8(l, "attn.wq_a", c->q_lora, c->dim, 1.6);
    add_norm(l, "attn.q_norm", c->q_lora, 1);
    add_fp8(l, "attn.wq_b", q, c->q_lora, 0.95);
    add_fp8(l, "attn.wkv", c->head_dim, c->dim, 1.8);
    add_norm(l, "attn.kv_norm", c->head_dim, 0.4);
    add_vector(l, "attn.attn_sink", "", DTYPE_F32, c->n_heads, 0, 0.5);
    add_fp8(l, "attn.wo_a", o, q / c->o_groups, 1.6);
    add_fp8(l, "attn.wo_b", c->dim, o, 0.3);
    if (config_is_index_source(c, l->layer)) {
        add_fp8(l, "attn.indexer.wq_b", (uint64_t)c->index_heads * c->index_dim, c->q_lora,
                0.95);
        add_matrix(l, "attn.indexer.weights_proj", ".weight", DTYPE_BF16, c->index_heads,
                   c->dim, 20);
    }
    if (!config_is_kv_source(c, l->layer))
        return;
    add_matrix(l, "attn.compressor.wkv", ".weight", DTYPE_BF16, c->head_dim, c->dim, 1.8);
    add_norm(l, "attn.compressor.norm", c->head_dim, 0.6);
    if (c->ratio[l->layer] > 1)
        add_matrix(l, "attn.compressor.wgate", ".weight", DTYPE_BF16, c->head_dim, c->dim, 20);
    add_matrix(l, "attn.indexer.wk", ".weight", DTYPE_BF16, c->index_dim, c->head_dim, 1);
    add_norm(l, "attn.indexer.k_norm", c->index_dim, 0.5);
}

static void add_moe(struct list *l)
{
    const struct config *c = l->c;
    add_norm(l, "ffn_norm", c->dim, 0.2);
    add_matrix(l, "ffn.gate", ".weight", DTYPE_BF16, c->n_experts, c->dim, 4);
    add_vector(l, "ffn.gate.bias", "", DTYPE_F32, c->n_experts, 0, 0.08);
    add_vector(l, "ffn.gate.bias_vl", "", DTYPE_F32, c->n_experts, 0, 0.08);
    for (uint32_t i = 0; i <= c->n_experts; i++) {
        static const char *const PARTS[] = {"w1", "w2", "w3"};
        for (int k = 0; k < 3; k++) {
            char name[64];
            uint64_t n_out = k == 1 ? c->dim : c->moe_dim, n_in = k == 1 ? c->moe_dim : c->dim;
            double gain = k == 1 ? 1.05 : 1.5;
            if (i < c->n_experts) {
                snprintf(name, sizeof(name), "ffn.experts.%u.%s", i, PARTS[k]);
                add_fp4(l, name, n_out, n_in, gain);
            } else {
                snprintf(name, sizeof(name), "ffn.shared_experts.%s", PARTS[k]);
                add_fp8(l, name, n_out, n_in, gain);
            }
        }
    }
}

static void add_engram(struct list *l, uint32_t at)
{
    const struct config *c = l->c;
    uint64_t n_in = (uint64_t)(c->engram_ngram - 1) * c->engram_heads * c->engram_dim;
    add_quantised(l, "engram.embed", false, c->engram_rows[at], c->engram_dim,
                  c->engram_rows[at], 0.25);
    add_fp8(l, "engram.wkv", (uint64_t)(c->hc + 1) * c->dim, n_in, 1.8);
    static const char *const SIDES[] = {"engram.q_weight", "engram.k_weight"};
    for (int i = 0; i < 2; i++) {
        struct item t = item(l, SIDES[i], "");
        t.dtype = DTYPE_BF16, t.n_dims = 2, t.shape[0] = c->hc, t.shape[1] = c->dim;
        t.mean = 1, t.std = 0.3;
        add(l, t);
    }
}

static void list_tensors(struct list *l)
{
    const struct config *c = l->c;
    l->layer = UINT32_MAX;
    add_matrix(l, "embed", ".weight", DTYPE_BF16, c->vocab_size, c->dim,
               k_pow((double)c->dim, 0.5));
    add_matrix(l, "head", ".weight", DTYPE_BF16, c->vocab_size, c->dim, 3);
    add_norm(l, "norm", c->dim, 1);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        l->layer = i;
        add_hc(l, "attn");
        add_hc(l, "ffn");
        add_attention(l);
        add_moe(l);
        if (config_engram_at(c, i) != CONFIG_NO_LAYER)
            add_engram(l, config_engram_at(c, i));
    }
}

/* ---- random bytes -------------------------------------------------------------------------
 */

#define TABLE 4096 /* quantiles of the normal distribution */

struct tables {
    float normal[TABLE];
    uint8_t fp8[TABLE], fp4[TABLE];
    double fp8_std, fp4_std;
};

/* The x with P(normal < x) = p, 0 < p < 1/2 (Abramowitz and Stegun 26.2.23, within 4.5e-4: what
 * matters is that it is the same everywhere). */
static double quantile(double p)
{
    double t = k_pow(-2 * k_log(p), 0.5);
    return -(t - (2.515517 + t * (0.802853 + t * 0.010328)) /
                     (1 + t * (1.432788 + t * (0.189269 + t * 0.001308))));
}

static void make_tables(struct tables *t)
{
    double sum8 = 0, sum4 = 0;
    for (int i = 0; i < TABLE; i++) {
        double p = (i + 0.5) / TABLE, x = p < 0.5 ? quantile(p) : -quantile(1 - p);
        t->normal[i] = (float)x;
        t->fp8[i] = k_f32_to_e4m3((float)(x * 64));
        t->fp4[i] = k_f32_to_e2m1((float)(x * 2));
        double v8 = (double)k_e4m3_to_f32(t->fp8[i]), v4 = (double)k_e2m1_to_f32(t->fp4[i]);
        sum8 += v8 * v8;
        sum4 += v4 * v4;
    }
    t->fp8_std = k_pow(sum8 / TABLE, 0.5);
    t->fp4_std = k_pow(sum4 / TABLE, 0.5);
}

static uint64_t next(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t seed_of(uint64_t seed, const char *name)
{
    uint64_t s = seed;
    for (const char *p = name; *p; p++)
        s = (next(&s) ^ (uint8_t)*p) + 1;
    return s;
}

struct stream {
    const struct tables *t;
    uint64_t state, bits;
    int left;
};

/* A random index into the tables: 12 bits of a word at a time. */
static uint32_t draw(struct stream *s)
{
    if (!s->left) {
        s->bits = next(&s->state);
        s->left = 5;
    }
    uint32_t v = s->bits & (TABLE - 1);
    s->bits >>= 12;
    s->left--;
    return v;
}

/* Powers of two mixed so that code spread times scale has exactly the wanted mean square. */
static uint8_t scale_byte(struct stream *s, double want)
{
    int exponent = 0;
    while (want >= 2)
        want /= 2, exponent++;
    while (want < 1)
        want *= 2, exponent--;
    double up = (want * want - 1) / 3;
    return (uint8_t)(127 + exponent + (draw(s) < up * TABLE));
}

static float hc_base(struct stream *s, const struct config *c, uint64_t i)
{
    float x = s->t->normal[draw(s)];
    if (i < 2 * c->hc)
        return 0.45F * x;
    uint64_t k = i - 2 * c->hc;
    return 0.4F * x + (k / c->hc == k % c->hc ? 3.0F : 0.0F);
}

/* Elements [first, first + n) of a tensor; called in order. Returns bytes. */
static size_t fill(struct stream *s, const struct config *c, const struct item *t,
                   uint64_t first, size_t n, uint8_t *out)
{
    size_t width = dtype_bytes(t->dtype);
    for (size_t i = 0; i < n; i++) {
        float x = 0;
        switch (t->fill) {
        case FILL_FP8:
            out[i] = s->t->fp8[draw(s)];
            continue;
        case FILL_FP4:
            out[i] = s->t->fp4[draw(s)];
            out[i] |= (uint8_t)(s->t->fp4[draw(s)] << 4);
            continue;
        case FILL_FP8_SCALE:
            out[i] = scale_byte(s, t->std / s->t->fp8_std);
            continue;
        case FILL_FP4_SCALE:
            out[i] = scale_byte(s, t->std / s->t->fp4_std);
            continue;
        case FILL_HC_BASE:
            x = hc_base(s, c, first + i);
            break;
        case FILL_NORMAL:
            x = (float)(t->mean + t->std * (double)s->t->normal[draw(s)]);
            break;
        }
        uint16_t b = k_f32_to_bf16(x);
        memcpy(out + i * width, width == 4 ? (void *)&x : (void *)&b, width);
    }
    return n * width;
}

/* ---- files --------------------------------------------------------------------------------
 */

static int by_width(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    size_t wx = dtype_bytes(x->dtype), wy = dtype_bytes(y->dtype);
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    if (wx != wy) /* wide elements first: all are aligned then */
        return wx > wy ? -1 : 1;
    return strcmp(x->name, y->name);
}

static uint32_t assign_shards(struct list *l, uint64_t most)
{
    uint64_t used = 0;
    uint32_t shard = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (used && used + item_bytes(&l->items[i]) > most) {
            shard++;
            used = 0;
        }
        used += item_bytes(&l->items[i]);
        l->items[i].shard = shard;
    }
    qsort(l->items, l->n, sizeof(*l->items), by_width);
    return shard + 1;
}

static void shard_name(char *out, size_t cap, uint32_t i, uint32_t n)
{
    snprintf(out, cap, "model-%05u-of-%05u.safetensors", i + 1, n);
}

static enum err write_header(FILE *f, const struct item *t, size_t n, struct error *e)
{
    json_auto_t *top = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        json_t *shape = json_array();
        for (uint32_t k = 0; k < t[i].n_dims; k++)
            json_array_append_new(shape, json_integer((json_int_t)t[i].shape[k]));
        uint64_t end = at + item_bytes(&t[i]);
        json_object_set_new(top, t[i].name,
                            json_pack("{s:s,s:o,s:[I,I]}", "dtype", dtype_name(t[i].dtype),
                                      "shape", shape, "data_offsets", (json_int_t)at,
                                      (json_int_t)end));
        at = end;
    }
    char *text = json_dumps(top, JSON_COMPACT);
    if (!text)
        return err_set(e, ERR_NOMEM, "header");
    uint64_t len = strlen(text), padded = (len + 7) / 8 * 8;
    uint8_t le[8];
    for (int i = 0; i < 8; i++)
        le[i] = (uint8_t)(padded >> (8 * i));
    bool ok = fwrite(le, 1, 8, f) == 8 && fwrite(text, 1, len, f) == len;
    for (; ok && len < padded; len++)
        ok = fputc(' ', f) != EOF;
    free(text);
    return ok ? OK : err_set(e, ERR_IO, "header: cannot write");
}

static enum err write_shard(const struct list *l, const struct item *t, size_t n,
                            const struct tables *tables, const struct checkpoint_options *o,
                            const char *name, struct error *e)
{
    static const size_t BLOCK = 1 << 16; /* elements */
    char path[FS_PATH_BYTES];
    enum err rc = fs_path(path, sizeof(path), e, "%s/%s", o->out, name);
    if (rc)
        return rc;
    AUTO_FREE uint8_t *block = malloc(BLOCK * 8);
    AUTO_FILE FILE *f = fopen(path, "we");
    if (!block || !f)
        return err_set(e, ERR_IO, "%s: cannot write", path);
    if ((rc = write_header(f, t, n, e)))
        return rc;
    for (size_t i = 0; i < n; i++) {
        struct stream s = {.t = tables, .state = seed_of(o->seed, t[i].name)};
        uint64_t left = item_bytes(&t[i]) / dtype_bytes(t[i].dtype), done = 0;
        for (; done < left; done += BLOCK) {
            size_t k = left - done < BLOCK ? (size_t)(left - done) : BLOCK;
            size_t bytes = fill(&s, l->c, &t[i], done, k, block);
            if (fwrite(block, 1, bytes, f) != bytes)
                return err_set(e, ERR_IO, "%s: cannot write (disk full?)", path);
        }
    }
    if (fflush(f))
        return err_set(e, ERR_IO, "%s: cannot write (disk full?)", path);
    return OK;
}

static enum err write_index(const struct list *l, uint32_t n_shards,
                            const struct checkpoint_options *o, struct error *e)
{
    json_auto_t *map = json_object();
    uint64_t total = 0;
    for (size_t i = 0; i < l->n; i++) {
        char name[64];
        shard_name(name, sizeof(name), l->items[i].shard, n_shards);
        json_object_set_new(map, l->items[i].name, json_string(name));
        total += item_bytes(&l->items[i]);
    }
    json_auto_t *top = json_pack("{s:{s:I},s:O}", "metadata", "total_size", (json_int_t)total,
                                 "weight_map", map);
    char path[FS_PATH_BYTES];
    enum err rc = fs_path(path, sizeof(path), e, "%s/model.safetensors.index.json", o->out);
    if (!rc && json_dump_file(top, path, JSON_INDENT(1)))
        rc = err_set(e, ERR_IO, "%s: cannot write", path);
    return rc;
}

static enum err copy_file(const char *from, const char *dir, const char *name, struct error *e)
{
    AUTO(buf) struct buf text = BUF_INIT(64 << 20);
    char path[FS_PATH_BYTES];
    enum err rc = fs_read_file(from, &text, e);
    if (rc || (rc = fs_path(path, sizeof(path), e, "%s/%s", dir, name)))
        return rc;
    return fs_write_atomic(path, text.data, text.len, 0644, e);
}

static enum err write_all(struct list *l, const struct checkpoint_options *o, struct error *e)
{
    AUTO_FREE struct tables *tables = malloc(sizeof(*tables));
    if (!tables)
        return err_set(e, ERR_NOMEM, "tables");
    make_tables(tables);
    uint32_t n_shards = assign_shards(l, o->shard_bytes ? o->shard_bytes : UINT64_C(2) << 30);
    size_t at = 0;
    for (uint32_t i = 0; i < n_shards; i++) {
        char name[64];
        size_t n = 0;
        while (at + n < l->n && l->items[at + n].shard == i)
            n++;
        shard_name(name, sizeof(name), i, n_shards);
        enum err rc = write_shard(l, l->items + at, n, tables, o, name, e);
        if (rc)
            return rc;
        at += n;
    }
    return write_index(l, n_shards, o, e);
}

enum err checkpoint_make(const struct checkpoint_options *o, struct error *e)
{
    AUTO(buf) struct buf text = BUF_INIT(CONFIG_MAX_BYTES);
    struct config c;
    enum err rc = fs_read_file(o->config, &text, e);
    if (rc || (rc = config_parse(&c, buf_str(&text), text.len, e)))
        return err_wrap(e, rc, "%s", o->config);
    if (c.n_drafts)
        return err_set(e, ERR_UNSUPPORTED, "%s: num_nextn_predict_layers is %u, want 0",
                       o->config, c.n_drafts);
    if ((rc = fs_mkdir_p(o->out, e)) || (rc = copy_file(o->config, o->out, "config.json", e)) ||
        (rc = copy_file(o->tokenizer, o->out, "tokenizer.json", e)))
        return rc;
    struct list l = {.c = &c, .e = e};
    list_tensors(&l);
    rc = l.rc ? l.rc : write_all(&l, o, e);
    free(l.items);
    return rc;
}
