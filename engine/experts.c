#include "engine/experts.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/loader.h"

#define N_PARTS 6 /* weight and scale of w1, w2, w3 */
#define DEPTH (N_PARTS * 32)
#define NO_SLOT UINT32_MAX
#define N_STAGING 8 /* slots in flight where what is read has to be copied to the backend */

/* COMING: read, and on its way from memory to home. */
enum slot_state { SLOT_EMPTY, SLOT_LOADING, SLOT_COMING, SLOT_READY };

struct slot {
    uint8_t *memory; /* slot_bytes that are read into; NULL: not taken yet, or given back */
    uint8_t *home;   /* slot_bytes of the backend's memory; NULL: memory is, or not taken yet */
    enum slot_state state;
    uint32_t layer, expert;
    uint32_t n_pending; /* parts in flight */
    bool is_wanted;     /* of the choice now, and not given back yet */
    bool is_out;        /* handed out by the last experts_next() */
    float log_weight;   /* log2 of the decayed number of choices ... */
    uint64_t run;       /* ... at this run of its layer */
    uint64_t used;      /* the choice in which what is queued may have begun to use home */
    struct tier_request part[N_PARTS];
    struct k_expert view; /* w1.data and so on point into memory */
};

struct held {
    bool is_tried;
    struct experts_table table; /* experts NULL: they are not held */
    struct k_expert *list;      /* [n_experts] */
    void *there;                /* [n_experts + 1] memory of the backend */
};

struct experts {
    struct tier tier;
    const struct config *c;
    const struct weights *w;
    struct kernels *k;
    bool is_copied; /* the backend cannot read where the disk writes */
    size_t slot_bytes;
    uint8_t *staging[N_STAGING]; /* buffers that no slot has; all of them are pinned */
    uint32_t n_staging, n_made;
    struct slot *coming[N_STAGING];
    uint32_t n_coming;
    uint64_t choice;    /* how many there have been */
    struct slot *slots; /* [n_slots] */
    uint32_t n_slots;
    uint32_t *slot_of; /* [n_layers][most]: where an expert is, or NO_SLOT */
    uint32_t most;     /* experts of the layer that has most */
    uint64_t *runs;    /* [n_layers] how often a layer has chosen */
    /* The choice now. */
    uint32_t layer;
    uint32_t *missing; /* [most] experts to load, ascending; from `first` on */
    uint32_t n_missing, first;
    uint32_t n_left;      /* not handed out yet */
    struct slot **wanted; /* [most] slots with is_wanted */
    uint32_t n_wanted;
    struct held *held;     /* [n_layers] of layers that have all their experts here */
    struct k_expert *view; /* [most] for the caller */
    uint8_t *only;         /* [most + 1] */
};

/* ---- sizes --------------------------------------------------------------------------------
 */

/* Weight and scale bytes of w1, w2, w3, in the order of slot.part. */
static void part_bytes(const struct config *c, size_t out[N_PARTS])
{
    size_t weight = (size_t)c->moe_dim * c->dim / 2, scale = (size_t)c->moe_dim * c->dim / 32;
    for (int i = 0; i < N_PARTS; i++)
        out[i] = i % 2 ? scale : weight;
}

size_t experts_slot_bytes(const struct config *c)
{
    size_t part[N_PARTS], sum = 0;
    part_bytes(c, part);
    for (int i = 0; i < N_PARTS; i++)
        sum += tier_room(part[i]);
    return sum;
}

uint64_t experts_all_bytes(const struct config *c)
{
    uint64_t n =
        (uint64_t)c->n_layers * c->n_experts + (uint64_t)c->n_drafts * c->draft_experts;
    return n * experts_slot_bytes(c);
}

/* ---- life ---------------------------------------------------------------------------------
 */

static enum err allocate(struct experts *x, uint32_t n_slots, struct error *e)
{
    uint32_t n_layers = x->w->n_layers;
    for (uint32_t l = 0; l < n_layers; l++)
        if (x->w->layers[l].n_experts > x->most)
            x->most = x->w->layers[l].n_experts;
    x->slots = calloc(n_slots, sizeof(*x->slots));
    x->slot_of = malloc((size_t)n_layers * x->most * sizeof(*x->slot_of));
    x->runs = calloc(n_layers, sizeof(*x->runs));
    x->held = calloc(n_layers, sizeof(*x->held));
    x->missing = calloc(x->most, sizeof(*x->missing));
    x->wanted = calloc(x->most, sizeof(*x->wanted));
    x->view = calloc(x->most, sizeof(*x->view));
    x->only = calloc((size_t)x->most + 1, 1);
    if (!x->slots || !x->slot_of || !x->runs || !x->held || !x->missing || !x->wanted ||
        !x->view || !x->only)
        return err_set(e, ERR_NOMEM, "cache of %u experts", n_slots);
    for (size_t i = 0; i < (size_t)n_layers * x->most; i++)
        x->slot_of[i] = NO_SLOT;
    x->n_slots = n_slots;
    return OK;
}

enum err experts_new(struct experts **out, const struct config *c, const struct weights *w,
                     const struct tier_files *files, uint64_t budget_bytes, struct error *e)
{
    size_t slot = experts_slot_bytes(c);
    uint64_t all = experts_all_bytes(c);
    if (budget_bytes < slot)
        return err_set(e, ERR_LIMIT,
                       "%" PRIu64 " bytes of memory for experts, one expert needs %zu",
                       budget_bytes, slot);
    struct experts *x = calloc(1, sizeof(*x));
    if (!x)
        return err_set(e, ERR_NOMEM, "cache of experts");
    x->c = c, x->w = w, x->slot_bytes = slot;
    x->k = w->k;
    x->is_copied = !w->k->host_memory;
    uint64_t n = (budget_bytes < all ? budget_bytes : all) / slot;
    enum err rc = n >= NO_SLOT ? err_set(e, ERR_LIMIT, "%" PRIu64 " experts", n)
                               : allocate(x, (uint32_t)n, e);
    if (rc || (rc = tier_init(&x->tier, "experts", files, DEPTH, e))) {
        experts_free(x);
        return rc;
    }
    x->tier.budget_bytes = budget_bytes;
    x->tier.minimum_bytes = slot;
    *out = x;
    return OK;
}

void experts_free(struct experts *x)
{
    if (!x)
        return;
    tier_fini(&x->tier);
    if (x->n_coming && x->k->upload_end(x->k, NULL))
        x->n_coming = 0; /* the device is lost, and nothing reads the buffers */
    for (uint32_t i = 0; i < x->n_slots; i++) {
        if (x->is_copied && x->slots[i].memory)
            x->staging[x->n_staging++] = x->slots[i].memory;
        else
            aio_buffer_free(x->slots[i].memory, x->slot_bytes);
        x->k->free(x->k, x->slots[i].home);
    }
    for (uint32_t i = 0; i < x->n_staging; i++) {
        x->k->unpin(x->k, x->staging[i]);
        aio_buffer_free(x->staging[i], x->slot_bytes);
    }
    for (uint32_t l = 0; x->held && l < x->w->n_layers; l++) {
        free(x->held[l].list);
        x->k->free(x->k, x->held[l].there);
    }
    free(x->held);
    free(x->slots);
    free(x->slot_of);
    free(x->runs);
    free(x->missing);
    free(x->wanted);
    free(x->view);
    free(x->only);
    free(x);
}

const struct tier *experts_tier(const struct experts *x)
{
    return &x->tier;
}

/* ---- names and checks ---------------------------------------------------------------------
 */

#define NAME_BYTES 96

/* part: 0..2 for w1, w2, w3. */
static void tensor_name(const struct config *c, uint32_t layer, uint32_t expert, int part,
                        char name[NAME_BYTES])
{
    bool draft = layer >= c->n_layers;
    snprintf(name, NAME_BYTES, "%s.%u.ffn.experts.%u.w%d", draft ? "mtp" : "layers",
             draft ? layer - c->n_layers : layer, expert, part + 1);
}

enum err experts_check(const struct config *c, uint32_t layer, uint32_t expert,
                       const struct k_expert *x, struct error *e)
{
    const struct k_weight *part[] = {&x->w1, &x->w2, &x->w3};
    for (int i = 0; i < 3; i++) {
        char name[NAME_BYTES];
        size_t width = part[i]->n_in / 32, n = part[i]->n_out * width;
        size_t nan = find_nan_scale(part[i]->scale, n);
        if (nan == n)
            continue;
        tensor_name(c, layer, expert, i, name);
        return err_set(e, ERR_FORMAT, "tensor %s.scale [%zu, %zu] is NaN", name, nan / width,
                       nan % width);
    }
    return OK;
}

/* ---- eviction -----------------------------------------------------------------------------
 */

static uint32_t *slot_of(const struct experts *x, uint32_t layer, uint32_t expert)
{
    return &x->slot_of[(size_t)layer * x->most + expert];
}

/* log2 of the number of choices as it has decayed by now. */
static float weight_now(const struct experts *x, const struct slot *s)
{
    return s->log_weight - (float)(x->runs[s->layer] - s->run) / EXPERTS_HALF_LIFE;
}

/* Layers that run before this slot's layer does again. */
static uint32_t distance(const struct experts *x, const struct slot *s)
{
    uint32_t n = x->w->n_layers;
    return (s->layer + n - x->layer - 1) % n;
}

static void count_choice(struct experts *x, struct slot *s)
{
    s->log_weight = log2f(exp2f(weight_now(x, s)) + 1);
    s->run = x->runs[s->layer];
}

static void forget(struct experts *x, struct slot *s)
{
    if (s->state != SLOT_EMPTY)
        *slot_of(x, s->layer, s->expert) = NO_SLOT;
    s->state = SLOT_EMPTY;
}

static void want(struct experts *x, struct slot *s)
{
    s->is_wanted = true;
    x->wanted[x->n_wanted++] = s;
}

/* A slot to load into, or NULL while every one is in use or in flight. */
static struct slot *find_room(struct experts *x)
{
    struct slot *best = NULL;
    float best_weight = 0;
    for (uint32_t i = 0; i < x->n_slots; i++) {
        struct slot *s = &x->slots[i];
        if (s->state == SLOT_EMPTY)
            return s;
        if (s->state != SLOT_READY || s->is_wanted)
            continue;
        float weight = floorf(weight_now(x, s));
        bool is_farther = best && distance(x, s) > distance(x, best);
        if (!best || weight < best_weight || (!(weight > best_weight) && is_farther)) {
            best = s;
            best_weight = weight;
        }
    }
    return best;
}

/* ---- loading ------------------------------------------------------------------------------
 */

static bool can_read(const struct experts *x)
{
    return !x->is_copied || x->n_staging || x->n_made < N_STAGING;
}

static enum err take_copied(struct experts *x, struct slot *s, struct error *e)
{
    void *p = NULL;
    if (!s->home) {
        if (!(s->home = x->k->alloc(x->k, x->slot_bytes)))
            return err_set(e, ERR_NOMEM, "%zu bytes for an expert", x->slot_bytes);
        s->used = x->choice; /* it is zeroed in its turn, as an op */
        tier_count(&x->tier.resident_bytes, x->slot_bytes);
    }
    if (!x->n_staging) {
        enum err rc = aio_buffer_new(x->slot_bytes, &p, e);
        if (rc)
            return rc;
        (void)x->k->pin(x->k, p, x->slot_bytes); /* or it is copied slower */
        x->staging[x->n_staging++] = p;
        x->n_made++;
    }
    s->memory = x->staging[--x->n_staging];
    return OK;
}

/* What was read becomes the backend's: beside the ops, or, where they may still use what was in
 * the slot, behind them. False: not begun. */
static bool send(struct experts *x, struct slot *s, bool beside)
{
    size_t offset = 0;
    for (int i = 0; i < N_PARTS; i++) {
        const struct tier_request *q = &s->part[i];
        if (!beside)
            x->k->copy_in(x->k, s->home + offset, q->memory + q->skip, q->n_bytes);
        else if (!x->k->upload(x->k, s->home + offset, q->memory + q->skip, q->n_bytes))
            return false;
        offset += tier_room(q->n_bytes);
    }
    return true;
}

/* The slot is what ops may read, and its buffer is free. */
static void arrive(struct experts *x, struct slot *s)
{
    struct k_expert *v = &s->view;
    const uint8_t *at[N_PARTS], *home = s->home;
    for (int i = 0; i < N_PARTS; i++) {
        at[i] = home;
        home += tier_room(s->part[i].n_bytes);
    }
    v->w1.data = at[0], v->w1.scale = at[1];
    v->w2.data = at[2], v->w2.scale = at[3];
    v->w3.data = at[4], v->w3.scale = at[5];
    s->state = SLOT_READY;
    x->staging[x->n_staging++] = s->memory;
    s->memory = NULL;
}

/* All that come are there. ERR_GPU: none of them. */
static enum err arrive_all(struct experts *x, struct error *e)
{
    enum err rc = x->k->upload_end(x->k, e);
    for (uint32_t i = 0; i < x->n_coming; i++) {
        arrive(x, x->coming[i]);
        if (rc)
            forget(x, x->coming[i]);
    }
    x->n_coming = 0;
    return rc;
}

static enum err go_home(struct experts *x, struct slot *s, struct error *e)
{
    if (s->used != x->choice && send(x, s, true)) {
        s->state = SLOT_COMING;
        x->coming[x->n_coming++] = s;
        return OK;
    }
    /* Some parts may have been begun: nothing else may touch them before they have ended. */
    enum err rc = s->used != x->choice ? arrive_all(x, e) : OK;
    if (!rc)
        (void)send(x, s, false);
    arrive(x, s);
    return rc;
}

static enum err take_memory(struct experts *x, struct slot *s, struct error *e)
{
    void *p = NULL;
    if (x->is_copied)
        return take_copied(x, s, e);
    enum err rc = s->memory ? OK : aio_buffer_new(x->slot_bytes, &p, e);
    if (rc || s->memory)
        return rc;
    s->memory = p;
    tier_count(&x->tier.resident_bytes, x->slot_bytes);
    return OK;
}

static enum err load(struct experts *x, struct slot *s, uint32_t expert, struct error *e)
{
    const struct k_expert *from = &x->w->layers[x->layer].experts[expert];
    const struct k_weight *weight[] = {&from->w1, &from->w2, &from->w3};
    size_t bytes[N_PARTS];
    enum err rc = take_memory(x, s, e);
    if (rc)
        return rc;
    forget(x, s);
    part_bytes(x->c, bytes);
    uint8_t *memory = s->memory;
    for (int i = 0; i < N_PARTS; i++) {
        s->part[i] =
            (struct tier_request){.mapped = i % 2 ? weight[i / 2]->scale : weight[i / 2]->data,
                                  .n_bytes = bytes[i],
                                  .memory = memory,
                                  .owner = s};
        memory += tier_room(bytes[i]);
        if ((rc = tier_start(&x->tier, &s->part[i], e)))
            break;
        s->n_pending++;
    }
    assert(!rc); /* there is room, and the range is of a shard */
    s->state = SLOT_LOADING;
    s->layer = x->layer, s->expert = expert;
    s->log_weight = 0;
    s->run = x->runs[x->layer];
    want(x, s);
    *slot_of(x, s->layer, expert) = (uint32_t)(s - x->slots);
    return OK;
}

static enum err load_missing(struct experts *x, struct error *e)
{
    bool any = false;
    while (x->first < x->n_missing && tier_n_free(&x->tier) >= N_PARTS && can_read(x)) {
        struct slot *s = find_room(x);
        if (!s)
            break;
        enum err rc = load(x, s, x->missing[x->first], e);
        if (rc)
            return rc;
        x->first++;
        any = true;
    }
    return any ? tier_submit(&x->tier, e) : OK;
}

/* All parts of a slot have arrived, or failed. */
static enum err settle(struct experts *x, struct slot *s, struct error *e)
{
    const struct k_expert *from = &x->w->layers[s->layer].experts[s->expert];
    enum err rc = OK;
    for (int i = 0; i < N_PARTS && !rc; i++) {
        char name[NAME_BYTES];
        if (!(rc = s->part[i].error.code))
            continue;
        tensor_name(x->c, s->layer, s->expert, i / 2, name);
        if (e)
            *e = s->part[i].error;
        rc = err_wrap(e, rc, "tensor %s%s", name, i % 2 ? ".scale" : "");
    }
    const uint8_t *at[N_PARTS];
    for (int i = 0; i < N_PARTS; i++)
        at[i] = s->part[i].memory + s->part[i].skip;
    s->view = *from;
    s->view.w1.data = at[0], s->view.w1.scale = at[1];
    s->view.w2.data = at[2], s->view.w2.scale = at[3];
    s->view.w3.data = at[4], s->view.w3.scale = at[5];
    if (!rc)
        rc = experts_check(x->c, s->layer, s->expert, &s->view, e);
    s->state = SLOT_READY;
    if (x->is_copied && !rc)
        rc = go_home(x, s, e);
    else if (x->is_copied)
        arrive(x, s);
    if (rc)
        forget(x, s);
    return rc;
}

/* Takes what has arrived. A failure counts only if the choice wants that expert; else it will
 * be read again when somebody does. */
static enum err collect(struct experts *x, bool wait, struct error *e)
{
    struct tier_request *done[32];
    size_t n = 0;
    enum err first = OK, rc = tier_wait(&x->tier, wait, done, 32, &n, e);
    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++) {
        struct slot *s = done[i]->owner;
        struct error why = {0};
        bool wanted = s->is_wanted;
        if (--s->n_pending || !(rc = settle(x, s, &why)) || !wanted || first)
            continue;
        first = rc;
        if (e)
            *e = why;
    }
    return first;
}

/* ---- a layer's choice ---------------------------------------------------------------------
 */

/* What was handed out before may be evicted from now on. */
static void take_back(struct experts *x)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < x->n_wanted; i++) {
        struct slot *s = x->wanted[i];
        if (s->is_out)
            s->is_wanted = s->is_out = false;
        else
            x->wanted[kept++] = s;
    }
    x->n_wanted = kept;
}

static void drop_choice(struct experts *x)
{
    for (uint32_t i = 0; i < x->n_wanted; i++)
        x->wanted[i]->is_wanted = x->wanted[i]->is_out = false;
    x->n_wanted = x->n_missing = x->first = x->n_left = 0;
}

enum err experts_choose(struct experts *x, uint32_t layer, const int32_t *chosen, size_t n,
                        struct error *e)
{
    drop_choice(x);
    x->choice++;
    x->layer = layer;
    x->runs[layer]++;
    memset(x->only, 0, (size_t)x->most + 1);
    for (size_t i = 0; i < n; i++)
        if (chosen[i] >= 0)
            x->only[chosen[i]] = 1;
    for (uint32_t k = 0; k < x->w->layers[layer].n_experts; k++) {
        uint32_t at = *slot_of(x, layer, k);
        if (x->is_copied) /* the sizes and types of all, whatever is there */
            x->view[k] = x->w->layers[layer].experts[k];
        if (!x->only[k])
            continue;
        x->n_left++;
        if (at == NO_SLOT) {
            x->missing[x->n_missing++] = k;
            continue;
        }
        want(x, &x->slots[at]);
        count_choice(x, &x->slots[at]);
    }
    tier_count(&x->tier.hits, x->n_left - x->n_missing);
    tier_count(&x->tier.misses, x->n_missing);
    return load_missing(x, e);
}

bool experts_are_here(const struct experts *x)
{
    for (uint32_t i = 0; i < x->n_wanted; i++)
        if (x->wanted[i]->state != SLOT_READY)
            return false;
    return x->n_wanted == x->n_left;
}

static size_t hand_out(struct experts *x)
{
    size_t n = 0;
    memset(x->only, 0, (size_t)x->most + 1);
    for (uint32_t i = 0; i < x->n_wanted; i++) {
        struct slot *s = x->wanted[i];
        if (s->state != SLOT_READY)
            continue;
        s->is_out = true;
        s->used = x->choice;
        x->only[s->expert] = 1;
        x->view[s->expert] = s->view;
        n++;
    }
    return n;
}

enum err experts_next(struct experts *x, struct experts_ready *out, struct error *e)
{
    size_t n = 0;
    enum err rc = OK;
    take_back(x);
    while (x->n_left && !n && !rc) {
        if ((rc = load_missing(x, e)) || (rc = collect(x, false, e)))
            break;
        if (!(n = hand_out(x)))
            rc = x->n_coming ? arrive_all(x, e) : collect(x, true, e);
    }
    if (rc) {
        drop_choice(x);
        return rc;
    }
    x->n_left -= (uint32_t)n;
    *out = (struct experts_ready){.experts = x->view, .only = x->only, .n = n};
    return OK;
}

/* ---- all of a layer -----------------------------------------------------------------------
 */

bool experts_can_hold(const struct experts *x)
{
    return x->is_copied && (uint64_t)x->n_slots * x->slot_bytes >= experts_all_bytes(x->c);
}

const struct experts_table *experts_held(const struct experts *x, uint32_t layer)
{
    const struct held *h = &x->held[layer];
    return h->table.experts ? &h->table : NULL;
}

/* Every expert of the layer into h->list. */
static enum err read_all(struct experts *x, uint32_t layer, struct held *h, struct error *e)
{
    uint32_t n = x->w->layers[layer].n_experts;
    AUTO_FREE int32_t *all = calloc(n, sizeof(*all));
    struct experts_ready ready;
    if (!all)
        return err_set(e, ERR_NOMEM, "experts of layer %u", layer);
    for (uint32_t i = 0; i < n; i++)
        all[i] = (int32_t)i;
    enum err rc = experts_choose(x, layer, all, n, e);
    while (!rc && !(rc = experts_next(x, &ready, e)) && ready.n)
        for (uint32_t i = 0; i < n; i++)
            if (ready.only[i])
                h->list[i] = ready.experts[i];
    return rc;
}

const struct experts_table *experts_hold(struct experts *x, uint32_t layer)
{
    struct held *h = &x->held[layer];
    const struct layer_weights *w = &x->w->layers[layer];
    size_t n_bytes = w->n_experts * sizeof(struct k_expert);
    if (h->is_tried || !experts_can_hold(x))
        return experts_held(x, layer);
    h->is_tried = true;
    h->list = calloc(w->n_experts, sizeof(*h->list));
    h->there = x->k->alloc(x->k, n_bytes + sizeof(w->shared));
    struct error why; /* told again, by name, when a router chooses that expert */
    if (!h->list || !h->there || read_all(x, layer, h, &why))
        return NULL;
    x->k->copy_in(x->k, h->there, h->list, n_bytes);
    x->k->copy_in(x->k, (uint8_t *)h->there + n_bytes, &w->shared, sizeof(w->shared));
    h->table = (struct experts_table){h->list, h->there};
    return &h->table;
}
