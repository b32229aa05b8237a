#include "agentd/score_dump.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "base/auto.h"
#include "engine/config.h"

enum dump_type { DUMP_F32, DUMP_I32, DUMP_I64 };

struct dump_tensor {
    char name[64];
    enum dump_type type;
    uint32_t n_dims;
    uint64_t shape[4];
    void *data;
    uint64_t n_bytes;
};

struct dump {
    struct dump_tensor *list;
    size_t n, cap;
};

enum err dump_new(struct dump **out, struct error *e)
{
    return (*out = calloc(1, sizeof(**out))) ? OK : err_set(e, ERR_NOMEM, "dump");
}

void dump_free(struct dump *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->n; i++)
        free(d->list[i].data);
    free(d->list);
    free(d);
}

/* A new tensor of this shape with room for its data. The name is prefix.name, or name alone. */
static enum err add(struct dump *d, const char *prefix, const char *name, enum dump_type type,
                    uint32_t n_dims, const uint64_t *shape, void **data, struct error *e)
{
    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 64;
        struct dump_tensor *p = realloc(d->list, cap * sizeof(*p));
        if (!p)
            return err_set(e, ERR_NOMEM, "dump of %s", name);
        d->list = p;
        d->cap = cap;
    }
    struct dump_tensor t = {
        .type = type, .n_dims = n_dims, .n_bytes = type == DUMP_I64 ? 8 : 4};
    for (uint32_t i = 0; i < n_dims; i++) {
        t.shape[i] = shape[i];
        t.n_bytes *= shape[i];
    }
    snprintf(t.name, sizeof(t.name), "%s%s%s", prefix, *prefix ? "." : "", name);
    if (!(t.data = calloc(1, t.n_bytes ? t.n_bytes : 1)))
        return err_set(e, ERR_NOMEM, "dump of %s: %" PRIu64 " bytes", t.name, t.n_bytes);
    d->list[d->n++] = t;
    *data = t.data;
    return OK;
}

#define SHAPE(...)                                                                             \
    (uint64_t[])                                                                               \
    {                                                                                          \
        __VA_ARGS__                                                                            \
    }

enum err dump_i32(struct dump *d, const char *name, int32_t value, struct error *e)
{
    void *p = NULL;
    enum err rc = add(d, "", name, DUMP_I32, 1, SHAPE(1), &p, e);
    if (!rc)
        memcpy(p, &value, sizeof(value));
    return rc;
}

/* ---- state --------------------------------------------------------------------------------
 */

enum err dump_windows(struct dump *d, const char *prefix, const struct engine *m,
                      const struct seq *s, struct error *e)
{
    const struct config *c = engine_config(m);
    void *keys = NULL, *pos = NULL;
    AUTO_FREE int64_t *held = calloc(c->window, sizeof(*held));
    if (!held)
        return err_set(e, ERR_NOMEM, "dump");
    enum err rc = add(d, prefix, "window_kv32", DUMP_F32, 3,
                      SHAPE(c->n_layers, c->window, c->head_dim), &keys, e);
    if (rc || (rc = add(d, prefix, "window_pos", DUMP_I32, 2, SHAPE(c->n_layers, c->window),
                        &pos, e)))
        return rc;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        size_t first = (size_t)l * c->window;
        engine_read_window(s, l, held, (float *)keys + first * c->head_dim);
        for (uint32_t i = 0; i < c->window; i++)
            ((int32_t *)pos)[first + i] = (int32_t)held[i];
    }
    return OK;
}

enum err dump_planes(struct dump *d, const char *prefix, const struct engine *m,
                     const struct seq *s, struct error *e)
{
    const struct state_layout *l = engine_describe(m)->layout;
    const struct config *c = engine_config(m);
    for (uint32_t i = 0; i < l->n_planes; i++) {
        char name[48];
        void *rows = NULL;
        uint64_t n = state_rows(&l->planes[i], seq_position(s));
        snprintf(name, sizeof(name), "L%u.%s", c->kv_sources[i / 2],
                 i % 2 ? "index_k32" : "compress_kv32");
        enum err rc =
            add(d, prefix, name, DUMP_F32, 2, SHAPE(n, engine_plane_width(m, i)), &rows, e);
        if (rc || (rc = engine_read_rows(s, i, 0, n, rows, e)))
            return rc;
    }
    return OK;
}

enum err dump_pending(struct dump *d, const struct engine *m, const struct seq *s,
                      struct error *e)
{
    const struct config *c = engine_config(m);
    for (uint32_t i = 0; i < c->n_kv_sources; i++) {
        const float *pending = engine_read_pending(s, i);
        for (int k = 0; pending && k < 2; k++) {
            char name[48];
            void *p = NULL;
            snprintf(name, sizeof(name), "pending.L%u.%s", c->kv_sources[i], k ? "g32" : "u32");
            enum err rc = add(d, "", name, DUMP_F32, 1, SHAPE(c->head_dim), &p, e);
            if (rc)
                return rc;
            memcpy(p, pending + (size_t)k * c->head_dim, c->head_dim * sizeof(float));
        }
    }
    return OK;
}

enum err dump_window_lo(struct dump *d, const int64_t *lo, size_t n, uint32_t n_layers,
                        struct error *e)
{
    void *all = NULL, *above = NULL;
    enum err rc = add(d, "", "window_lo", DUMP_I32, 2, SHAPE(n, n_layers), &all, e);
    if (rc || (rc = add(d, "", "dec_lo", DUMP_I32, 1, SHAPE(n), &above, e)))
        return rc;
    for (size_t i = 0; i < n * n_layers; i++)
        ((int32_t *)all)[i] = (int32_t)lo[i];
    for (size_t i = 0; i < n; i++)
        ((int32_t *)above)[i] = (int32_t)lo[i * n_layers + n_layers - 1];
    return OK;
}

/* ---- what was recorded --------------------------------------------------------------------
 */

/* Is this position in one of the tape's segments of this kind? */
static bool in_kind(const struct segment *segs, size_t n, enum segment_kind kind, uint64_t pos)
{
    for (size_t i = 0; i < n; i++)
        if (pos >= segs[i].start && pos - segs[i].start < segs[i].len)
            return segs[i].kind == kind;
    return false;
}

static bool is_last_of_input(const struct segment *segs, size_t n, uint64_t pos)
{
    for (size_t i = 0; i < n; i++)
        if (segs[i].kind == SEGMENT_INPUT && segs[i].len &&
            pos == segs[i].start + segs[i].len - 1)
            return true;
    return false;
}

enum pick { PICK_FIRST_INPUT, PICK_GENERATED, PICK_INPUT_LAST };

struct picker {
    const struct segment *segs;
    size_t n;
};

static bool is_picked(const struct picker *p, enum pick what, uint64_t pos)
{
    switch (what) {
    case PICK_FIRST_INPUT:
        return p->n && p->segs[0].kind == SEGMENT_INPUT && pos < p->segs[0].len;
    case PICK_GENERATED:
        return in_kind(p->segs, p->n, SEGMENT_GENERATED, pos);
    case PICK_INPUT_LAST:
        return is_last_of_input(p->segs, p->n, pos);
    }
    return false;
}

/* The shape of a recorded row in the file: [width], [width/inner][inner], or no axis of its
 * own. keep (0: all): so many values of each row, the first ones. */
struct row_shape {
    uint32_t inner, keep;
    bool scalar;
};

/* Rows of t at the picked positions as one tensor. */
static enum err add_rows(struct dump *d, const char *name, const struct record_tensor *t,
                         const struct picker *p, enum pick what, struct row_shape shape,
                         struct error *e)
{
    size_t element = t->type == OBSERVED_U64 ? 8 : 4, row = t->width * element, n = 0;
    uint32_t width = shape.keep && shape.keep < t->width ? shape.keep : t->width;
    enum dump_type type = t->type == OBSERVED_F32   ? DUMP_F32
                          : t->type == OBSERVED_I32 ? DUMP_I32
                                                    : DUMP_I64;
    void *out = NULL;
    for (uint64_t i = 0; i < t->n; i++)
        n += is_picked(p, what, t->positions[i]);
    if (!n)
        return OK;
    uint64_t dims[3] = {n, width, shape.inner};
    if (shape.inner)
        dims[1] = width / shape.inner;
    enum err rc = add(d, "", name, type, shape.inner ? 3 : shape.scalar ? 1 : 2, dims, &out, e);
    for (uint64_t i = 0; !rc && i < t->n; i++)
        if (is_picked(p, what, t->positions[i])) {
            memcpy(out, (const char *)t->data + i * row, width * element);
            out = (char *)out + width * element;
        }
    return rc;
}

static enum err add_argmax(struct dump *d, const struct record_tensor *t,
                           const struct picker *p, struct error *e)
{
    size_t n = 0;
    void *out = NULL;
    for (uint64_t i = 0; i < t->n; i++)
        n += is_picked(p, PICK_FIRST_INPUT, t->positions[i]);
    if (!n)
        return OK;
    enum err rc = add(d, "", "prefill_argmax", DUMP_I32, 1, SHAPE(n), &out, e);
    int32_t *best = out;
    for (uint64_t i = 0; !rc && i < t->n; i++) {
        const float *row = (const float *)t->data + i * t->width;
        if (!is_picked(p, PICK_FIRST_INPUT, t->positions[i]))
            continue;
        for (uint32_t k = 1; k < t->width; k++)
            if (row[k] > row[*best])
                *best = (int32_t)k;
        best++;
    }
    return rc;
}

/* decode.route_idx [steps][layers][k]: all layers side by side. */
static enum err add_routes(struct dump *d, const struct record *r, const struct picker *p,
                           uint32_t n_layers, struct error *e)
{
    const struct record_tensor *first = record_find(r, "route_idx", n_layers - 1);
    size_t n = 0;
    void *out = NULL;
    for (uint64_t i = 0; first && i < first->n; i++)
        n += is_picked(p, PICK_GENERATED, first->positions[i]);
    if (!n)
        return OK;
    uint32_t k = first->width;
    enum err rc = add(d, "", "decode.route_idx", DUMP_I32, 3, SHAPE(n, n_layers, k), &out, e);
    for (uint32_t l = 0; !rc && l < n_layers; l++) {
        const struct record_tensor *t = record_find(r, "route_idx", l);
        int32_t *at = (int32_t *)out + (size_t)l * k;
        for (uint64_t i = 0; t && i < t->n; i++)
            if (is_picked(p, PICK_GENERATED, t->positions[i])) {
                memcpy(at, (const int32_t *)t->data + i * k, k * sizeof(*at));
                at += (size_t)n_layers * k;
            }
    }
    return rc;
}

/* engram_rows [positions][Engram layers][tables] of the first input segment. */
static enum err add_engram_rows(struct dump *d, const struct record *r, const struct config *c,
                                const struct picker *p, struct error *e)
{
    void *out = NULL;
    size_t n = 0;
    if (!c->n_engram)
        return OK;
    const struct record_tensor *t = record_find(r, "engram_rows", c->engram_layers[0]);
    for (uint64_t i = 0; t && i < t->n; i++)
        n += is_picked(p, PICK_FIRST_INPUT, t->positions[i]);
    if (!n)
        return OK;
    enum err rc =
        add(d, "", "engram_rows", DUMP_I64, 3, SHAPE(n, c->n_engram, t->width), &out, e);
    for (uint32_t k = 0; !rc && k < c->n_engram; k++) {
        int64_t *at = (int64_t *)out + (size_t)k * t->width;
        const struct record_tensor *x = record_find(r, "engram_rows", c->engram_layers[k]);
        for (uint64_t i = 0, done = 0; x && i < x->n && done < n; i++)
            if (is_picked(p, PICK_FIRST_INPUT, x->positions[i])) {
                memcpy(at, (const int64_t *)x->data + i * x->width, x->width * sizeof(*at));
                at += (size_t)c->n_engram * x->width;
                done++;
            }
    }
    return rc;
}

static bool is_stream(const char *name)
{
    return !strncmp(name, "hc_", 3);
}

/* One tensor of a layer: the first input segment's rows, and of selections the decoded ones'.
 */
static enum err dump_layer_tensor(struct dump *d, const struct record_tensor *t,
                                  const struct config *c, const struct picker *p,
                                  struct error *e)
{
    const struct row_shape whole = {0};
    bool is_selection = !strcmp(t->name, "topk_rows");
    struct row_shape shape = {.inner = is_stream(t->name) ? c->dim : 0,
                              .scalar = t->width == 1};
    char name[64];
    if (is_selection && p->n) { /* no more columns than there were rows */
        uint64_t rows = p->segs[0].len / c->ratio[t->layer];
        shape.keep = rows < t->width ? (uint32_t)rows : t->width;
    }
    snprintf(name, sizeof(name), "L%u.%s", t->layer, t->name);
    enum err rc = add_rows(d, name, t, p, PICK_FIRST_INPUT, shape, e);
    /* The golden files have these under two names. */
    if (!rc && (!strcmp(t->name, "pre_in32") || !strcmp(t->name, "pre_out32"))) {
        name[strlen(name) - 2] = 0;
        rc = add_rows(d, name, t, p, PICK_FIRST_INPUT, shape, e);
    }
    if (rc || !is_selection || !config_is_index_source(c, t->layer))
        return rc;
    snprintf(name, sizeof(name), "decode.L%u.topk_rows", t->layer);
    if ((rc = add_rows(d, name, t, p, PICK_GENERATED, whole, e)))
        return rc;
    snprintf(name, sizeof(name), "generated.L%u.topk_rows", t->layer);
    return add_rows(d, name, t, p, PICK_GENERATED, whole, e);
}

enum err dump_record(struct dump *d, const struct record *r, const struct segment *segs,
                     size_t n_segs, struct error *e)
{
    const struct config *c = engine_config(r->engine);
    struct picker p = {segs, n_segs};
    const struct row_shape whole = {0};
    enum err rc;
    if ((rc = add_rows(d, "prefill_logits", &r->logits, &p, PICK_FIRST_INPUT, whole, e)) ||
        (rc = add_argmax(d, &r->logits, &p, e)) ||
        (rc = add_rows(d, "decode_logits", &r->logits, &p, PICK_GENERATED, whole, e)) ||
        (rc = add_rows(d, "generated_logits", &r->logits, &p, PICK_GENERATED, whole, e)) ||
        (rc = add_rows(d, "input_logits", &r->logits, &p, PICK_INPUT_LAST, whole, e)) ||
        (rc = add_routes(d, r, &p, c->n_layers, e)) || (rc = add_engram_rows(d, r, c, &p, e)))
        return rc;
    for (size_t i = 0; i < r->n_tensors && !rc; i++)
        if (strcmp(r->tensors[i].name, "engram_rows") != 0)
            rc = dump_layer_tensor(d, &r->tensors[i], c, &p, e);
    return rc;
}

/* ---- the file -----------------------------------------------------------------------------
 */

static char *header_text(const struct dump *d)
{
    static const char *const TYPES[] = {"F32", "I32", "I64"};
    json_auto_t *top = json_object();
    uint64_t at = 0;
    for (size_t i = 0; i < d->n; i++) {
        const struct dump_tensor *t = &d->list[i];
        json_t *shape = json_array();
        for (uint32_t k = 0; k < t->n_dims; k++)
            json_array_append_new(shape, json_integer((json_int_t)t->shape[k]));
        json_object_set_new(top, t->name,
                            json_pack("{s:s,s:o,s:[I,I]}", "dtype", TYPES[t->type], "shape",
                                      shape, "data_offsets", (json_int_t)at,
                                      (json_int_t)(at + t->n_bytes)));
        at += t->n_bytes;
    }
    return json_dumps(top, JSON_COMPACT);
}

enum err dump_write(const struct dump *d, const char *path, struct error *e)
{
    AUTO_FREE char *text = header_text(d);
    AUTO_FILE FILE *f = fopen(path, "we");
    if (!text)
        return err_set(e, ERR_NOMEM, "%s: header", path);
    if (!f)
        return err_sys(e, errno, "%s", path);
    uint64_t len = strlen(text), padded = (len + 7) / 8 * 8;
    uint8_t le[8];
    for (int i = 0; i < 8; i++)
        le[i] = (uint8_t)(padded >> (8 * i));
    bool ok = fwrite(le, 1, 8, f) == 8 && fwrite(text, 1, len, f) == len;
    for (; ok && len < padded; len++)
        ok = fputc(' ', f) != EOF;
    for (size_t i = 0; ok && i < d->n; i++)
        ok = fwrite(d->list[i].data, 1, d->list[i].n_bytes, f) == d->list[i].n_bytes;
    return ok && !fflush(f) ? OK : err_sys(e, errno, "%s", path);
}
