#include "engine/loader.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bits.h"

#define LOADER_TEXT_BYTES 400

/* ---- finding ------------------------------------------------------------------------------
 */

static void shape_text(char *out, size_t cap, const uint64_t *shape, uint32_t n)
{
    size_t at = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < n && at < cap; i++) {
        int k = snprintf(out + at, cap - at, "%s%" PRIu64, i ? ", " : "", shape[i]);
        at += k > 0 ? (size_t)k : 0;
    }
}

/* Notes what is wrong, or stops at it. */
static enum err problem(struct loader *ld, enum problem_kind kind, const char *text)
{
    if (ld->inventory) {
        inventory_add_problem(ld->inventory, kind, text);
        return OK;
    }
    return err_set(ld->e, kind == PROBLEM_MISSING ? ERR_NOTFOUND : ERR_FORMAT, "%s", text);
}

static void tally(struct loader *ld, const struct tensor *t, bool is_scale)
{
    struct inventory *v = ld->inventory;
    struct inventory_sum *sum = &v->sum[ld->kind];
    uint64_t n = is_scale ? 0 : t->n_bytes / dtype_bytes(t->dtype);
    if (t->dtype == DTYPE_I8) /* two packed numbers */
        n *= 2;
    sum->n_tensors++;
    sum->n_bytes += t->n_bytes;
    sum->n_params += n;
    if (ld->kind != KIND_DENSE && ld->kind != KIND_EXPERT)
        return;
    /* A token uses n_active of n_of equal tensors: each counts with that share. */
    v->n_active_decode += n * ld->n_active / ld->n_of;
    v->n_active_prefill += ld->in_prefill ? n * ld->n_active / ld->n_of : 0;
}

/* Finds prefix + name + suffix, checks dtype and shape and marks it as used. When surveying,
 * *out stays NULL where it does not fit. */
static enum err find(struct loader *ld, const char *name, const char *suffix, enum dtype dtype,
                     uint32_t n_dims, const uint64_t *shape, const struct tensor **out)
{
    char full[LOADER_NAME_BYTES], have[80], want[80], text[LOADER_TEXT_BYTES];
    snprintf(full, sizeof(full), "%s%s%s", ld->prefix, name, suffix);
    shape_text(want, sizeof(want), shape, n_dims);
    const struct tensor *t = safetensors_find(ld->st, full);
    *out = NULL;
    if (!t) {
        snprintf(text, sizeof(text), "tensor %s: missing, want %s [%s]", full,
                 dtype_name(dtype), want);
        return problem(ld, PROBLEM_MISSING, text);
    }
    size_t n;
    ld->used[t - safetensors_list(ld->st, &n)] = 1;
    if (t->dtype != dtype || t->n_dims != n_dims ||
        memcmp(t->shape, shape, n_dims * sizeof(*shape)) != 0) {
        shape_text(have, sizeof(have), t->shape, t->n_dims);
        snprintf(text, sizeof(text), "tensor %s: %s [%s], want %s [%s]", full,
                 dtype_name(t->dtype), have, dtype_name(dtype), want);
        return problem(ld, PROBLEM_MISMATCH, text);
    }
    if (ld->inventory)
        tally(ld, t, dtype == DTYPE_E8M0);
    *out = t;
    return OK;
}

size_t find_nan_scale(const uint8_t *scales, size_t n)
{
    const uint8_t *at = n ? memchr(scales, 0xff, n) : NULL;
    return at ? (size_t)(at - scales) : n;
}

/* ---- placing ------------------------------------------------------------------------------
 */

static enum err own(struct loader *ld, size_t n_bytes, void **out)
{
    struct weights *w = ld->w;
    if (w->n_owned == w->cap_owned) {
        size_t cap = w->cap_owned ? 2 * w->cap_owned : 64;
        void **p = realloc(w->owned, cap * sizeof(*p));
        if (!p)
            return err_set(ld->e, ERR_NOMEM, "weights");
        w->owned = p;
        w->cap_owned = cap;
    }
    void *p = ld->k->alloc(ld->k, n_bytes);
    if (!p)
        return err_set(ld->e, ERR_NOMEM, "weights: %zu bytes", n_bytes);
    w->owned[w->n_owned++] = p;
    *out = p;
    return OK;
}

static enum err copy_floats(struct loader *ld, const struct tensor *t, const float **out)
{
    size_t n = t->n_bytes / dtype_bytes(t->dtype);
    float *host = malloc(n ? n * sizeof(*host) : 1);
    if (!host)
        return err_set(ld->e, ERR_NOMEM, "tensor %.100s", t->name);
    if (t->dtype == DTYPE_BF16) {
        for (size_t i = 0; i < n; i++) {
            uint16_t b;
            memcpy(&b, t->data + 2 * i, sizeof(b));
            host[i] = k_bf16_to_f32(b);
        }
    } else {
        memcpy(host, t->data, n * sizeof(*host));
    }
    void *p = NULL;
    enum err rc = own(ld, n * sizeof(float), &p);
    if (!rc) {
        ld->k->copy_in(ld->k, p, host, n * sizeof(float));
        *out = p;
    }
    free(host);
    return rc;
}

enum err load_floats(struct loader *ld, const char *name, const char *suffix, bool may_be_bf16,
                     uint32_t n_dims, const uint64_t *shape, const float **out)
{
    char full[LOADER_NAME_BYTES];
    snprintf(full, sizeof(full), "%s%s%s", ld->prefix, name, suffix);
    const struct tensor *t = safetensors_find(ld->st, full);
    bool bf16 = may_be_bf16 && t && t->dtype == DTYPE_BF16;
    enum err rc = find(ld, name, suffix, bf16 ? DTYPE_BF16 : DTYPE_F32, n_dims, shape, &t);
    if (rc || !t)
        return rc;
    if (ld->inventory) {
        ld->inventory->n_resident_bytes += t->n_bytes / dtype_bytes(t->dtype) * sizeof(float);
        return OK;
    }
    return copy_floats(ld, t, out);
}

enum err load_norm(struct loader *ld, const char *name, uint64_t n, const float **out)
{
    return load_floats(ld, name, ".weight", true, 1, &n, out);
}

enum err load_vector(struct loader *ld, const char *name, uint64_t n, const float **out)
{
    return load_floats(ld, name, "", false, 1, &n, out);
}

/* What a product never takes stays in the file where the backend can read it there. */
static enum err place(struct loader *ld, struct k_weight *w)
{
    return ld->k->host_memory ? OK : ld->k->pack(ld->k, w, ld->e);
}

static enum err pack(struct loader *ld, struct k_weight *w)
{
    return ld->k->pack ? ld->k->pack(ld->k, w, ld->e) : OK;
}

/* Products read BF16 where it lies. The format lets that be anywhere, though its writers pad
 * headers to eight bytes and put wide types first: what lies at an odd byte is copied. */
static enum err to_even_place(struct loader *ld, const struct tensor *t, const void **out)
{
    void *p = (void *)(uintptr_t)t->data;
    bool is_copied = ld->k->host_memory && (uintptr_t)t->data % dtype_bytes(t->dtype) != 0;
    enum err rc = is_copied ? own(ld, t->n_bytes, &p) : OK;
    if (rc)
        return rc;
    if (is_copied)
        memcpy(p, t->data, t->n_bytes);
    *out = p;
    return OK;
}

static enum err find_bf16(struct loader *ld, const char *name, uint64_t n_out, uint64_t n_in,
                          struct k_weight *w)
{
    const struct tensor *t = NULL;
    enum err rc = find(ld, name, ".weight", DTYPE_BF16, 2, (uint64_t[]){n_out, n_in}, &t);
    if (rc || !t)
        return rc;
    if (ld->inventory) {
        ld->inventory->n_resident_bytes += t->n_bytes;
        return OK;
    }
    *w = (struct k_weight){.type = K_W_BF16, .n_out = (uint32_t)n_out, .n_in = (uint32_t)n_in};
    return to_even_place(ld, t, &w->data);
}

enum err load_bf16(struct loader *ld, const char *name, uint64_t n_out, uint64_t n_in,
                   struct k_weight *w)
{
    enum err rc = find_bf16(ld, name, n_out, n_in, w);
    return rc || ld->inventory ? rc : place(ld, w);
}

enum err load_bf16_packed(struct loader *ld, const char *name, uint64_t n_out, uint64_t n_in,
                          struct k_weight *w)
{
    enum err rc = find_bf16(ld, name, n_out, n_in, w);
    return rc || ld->inventory ? rc : pack(ld, w);
}

enum err load_fp8(struct loader *ld, const char *name, uint64_t n_out, uint64_t n_in,
                  uint32_t n_groups, struct k_weight *w)
{
    const struct tensor *t = NULL, *s = NULL;
    uint64_t tiles[] = {(n_out + 31) / 32, n_in / 32};
    enum err rc = find(ld, name, ".weight", DTYPE_E4M3, 2, (uint64_t[]){n_out, n_in}, &t);
    if (rc || (rc = find(ld, name, ".scale", DTYPE_E8M0, 2, tiles, &s)) || !t || !s)
        return rc;
    if (ld->inventory) { /* at most: codes, or bf16 rows made of them */
        ld->inventory->n_resident_bytes += 2 * n_out * n_in;
        return OK;
    }
    size_t nan = find_nan_scale(s->data, s->n_bytes);
    if (nan < s->n_bytes)
        return err_set(ld->e, ERR_FORMAT, "tensor %.100s: scale [%zu, %zu] is NaN", s->name,
                       nan / (size_t)tiles[1], nan % (size_t)tiles[1]);
    *w = (struct k_weight){.type = K_W_FP8_32X32,
                           .n_out = (uint32_t)n_out,
                           .n_in = (uint32_t)n_in,
                           .n_groups = n_groups,
                           .data = t->data,
                           .scale = s->data};
    return pack(ld, w);
}

enum err load_fp4(struct loader *ld, const char *name, uint64_t n_out, uint64_t n_in,
                  struct k_weight *w)
{
    const struct tensor *t = NULL, *s = NULL;
    enum err rc = find(ld, name, ".weight", DTYPE_I8, 2, (uint64_t[]){n_out, n_in / 2}, &t);
    if (rc ||
        (rc = find(ld, name, ".scale", DTYPE_E8M0, 2, (uint64_t[]){n_out, n_in / 32}, &s)) ||
        !t || !s || ld->inventory)
        return rc;
    *w = (struct k_weight){.type = K_W_FP4_1X32,
                           .n_out = (uint32_t)n_out,
                           .n_in = (uint32_t)n_in,
                           .data = t->data,
                           .scale = s->data};
    return OK;
}

enum err load_table(struct loader *ld, const char *name, uint64_t rows, uint64_t d,
                    const uint8_t **codes, const uint8_t **scales)
{
    const struct tensor *t = NULL, *s = NULL;
    enum err rc = find(ld, name, ".weight", DTYPE_E4M3, 2, (uint64_t[]){rows, d}, &t);
    if (rc || (rc = find(ld, name, ".scale", DTYPE_E8M0, 2, (uint64_t[]){rows, d / 32}, &s)) ||
        !t || !s || ld->inventory)
        return rc;
    *codes = t->data;
    *scales = s->data;
    return OK;
}

/* ---- what is left over --------------------------------------------------------------------
 */

static bool has_prefix(const char *name, const char *const *prefixes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strncmp(name, prefixes[i], strlen(prefixes[i])))
            return true;
    return false;
}

/* Draft layers that the config switches off are no part of the model, nor is vision. */
static bool is_skipped(const struct config *c, const char *name, enum tensor_kind *kind)
{
    static const char *const VISION[] = {"vision.", "aligner.", "image_"}, *const DRAFT[] = {
                                                                               "mtp."};
    *kind = KIND_VISION;
    if (has_prefix(name, VISION, sizeof(VISION) / sizeof(*VISION)))
        return true;
    *kind = KIND_DRAFT;
    return !c->n_drafts && has_prefix(name, DRAFT, 1);
}

enum err load_leftovers(struct loader *ld)
{
    size_t n = 0;
    const struct tensor *t = safetensors_list(ld->st, &n);
    for (size_t i = 0; i < n; i++) {
        if (ld->used[i])
            continue;
        if (is_skipped(ld->c, t[i].name, &ld->kind)) {
            if (ld->inventory)
                tally(ld, &t[i], t[i].dtype == DTYPE_E8M0);
            else
                ld->w->n_skipped++;
            continue;
        }
        char shape[80], text[LOADER_TEXT_BYTES];
        shape_text(shape, sizeof(shape), t[i].shape, t[i].n_dims);
        snprintf(text, sizeof(text), "tensor %.100s: %s [%s], not of this model", t[i].name,
                 dtype_name(t[i].dtype), shape);
        enum err rc = problem(ld, PROBLEM_UNEXPECTED, text);
        if (rc)
            return rc;
    }
    return OK;
}
