#include "engine/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config.h"

static size_t type_bytes(enum observed_type t)
{
    return t == OBSERVED_U64 ? 8 : 4;
}

static void keep(struct record *r, struct record_tensor *t, uint64_t pos0, uint32_t n,
                 const void *rows)
{
    size_t row = t->width * type_bytes(t->type);
    if (t->n + n > t->cap) {
        uint64_t cap = t->n + n > 2 * t->cap ? t->n + n : 2 * t->cap;
        uint64_t *p = realloc(t->positions, cap * sizeof(*p));
        if (p)
            t->positions = p;
        void *d = p ? realloc(t->data, cap * row) : NULL;
        if (!d) {
            if (!r->error.code)
                err_set(&r->error, ERR_NOMEM, "record: %s", t->name);
            return;
        }
        t->data = d;
        t->cap = cap;
    }
    memcpy((char *)t->data + t->n * row, rows, n * row);
    for (uint32_t i = 0; i < n; i++)
        t->positions[t->n++] = pos0 + i;
}

void record_logits(void *user, struct seq *s, uint64_t position, const float *logits)
{
    struct record *r = user;
    (void)s;
    keep(r, &r->logits, position, 1, logits);
}

static struct record_tensor *tensor_of(struct record *r, const struct observed *o)
{
    for (size_t i = 0; i < r->n_tensors; i++)
        if (r->tensors[i].layer == o->layer && !strcmp(r->tensors[i].name, o->name))
            return &r->tensors[i];
    if (r->n_tensors == r->cap_tensors) {
        size_t cap = r->cap_tensors ? 2 * r->cap_tensors : 64;
        struct record_tensor *p = realloc(r->tensors, cap * sizeof(*p));
        if (!p) {
            err_set(&r->error, ERR_NOMEM, "record: %s", o->name);
            return NULL;
        }
        r->tensors = p;
        r->cap_tensors = cap;
    }
    struct record_tensor *t = &r->tensors[r->n_tensors++];
    *t = (struct record_tensor){.layer = o->layer, .type = o->type, .width = o->width};
    snprintf(t->name, sizeof(t->name), "%s", o->name);
    return t;
}

void record_observed(void *user, struct seq *s, const struct observed *o)
{
    struct record *r = user;
    struct record_tensor *t = tensor_of(r, o);
    (void)s;
    if (t)
        keep(r, t, o->pos0, o->n, o->data);
}

void record_init(struct record *r, struct engine *m, bool wants_tensors)
{
    *r = (struct record){.engine = m, .wants_tensors = wants_tensors};
    r->logits.width = engine_describe(m)->vocab_size;
    snprintf(r->logits.name, sizeof(r->logits.name), "logits");
    engine_observe(m, &(struct observer){.user = r,
                                         .logits = record_logits,
                                         .tensor = wants_tensors ? record_observed : NULL});
}

static void free_rows(struct record_tensor *t)
{
    free(t->positions);
    free(t->data);
    t->positions = NULL;
    t->data = NULL;
    t->n = t->cap = 0;
}

void record_clear(struct record *r)
{
    free_rows(&r->logits);
    for (size_t i = 0; i < r->n_tensors; i++)
        free_rows(&r->tensors[i]);
}

void record_fini(struct record *r)
{
    if (r->engine)
        engine_observe(r->engine, NULL);
    record_clear(r);
    free(r->tensors);
    *r = (struct record){0};
}

const struct record_tensor *record_find(const struct record *r, const char *name,
                                        uint32_t layer)
{
    for (size_t i = 0; i < r->n_tensors; i++)
        if (r->tensors[i].layer == layer && !strcmp(r->tensors[i].name, name))
            return &r->tensors[i];
    return NULL;
}

const void *record_row(const struct record_tensor *t, uint64_t position)
{
    for (uint64_t i = t->n; i-- > 0;)
        if (t->positions[i] == position)
            return (const char *)t->data + i * t->width * type_bytes(t->type);
    return NULL;
}
