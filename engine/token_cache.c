#include "engine/token_cache.h"

#include <pthread.h>
#include <string.h>

/* Chunks are a few lines: one line in LINES_OF_CHUNK ends one, and any line that makes it this
 * long. Shorter than MIN_CHUNK, BPE is as fast as looking. */
#define LINES_OF_CHUNK 8
#define LONG_CHUNK ((size_t)4 << 10)
#define MIN_CHUNK 16
#define WAYS 4             /* places that a hash has */
#define BYTES_OF_PLACE 512 /* budget for each, about what an entry takes */
#define MOST_OF_BUDGET 8   /* an entry takes at most one in so many bytes of it */
#define MULTIPLIER UINT64_C(0x9e3779b97f4a7c15) /* 2^64 / golden ratio */

struct entry {
    uint64_t hash;
    size_t n_bytes, n_ids;
    bool is_hot;    /* asked for since the hand passed */
    uint32_t ids[]; /* then the text */
};

struct token_cache {
    pthread_mutex_t lock;
    struct entry **places; /* [n_places], WAYS next to each other */
    size_t n_places;       /* a power of two */
    size_t hand;
    struct token_cache_use use;
};

/* ---- life ---------------------------------------------------------------------------------
 */

enum err token_cache_new(struct token_cache **out, size_t budget_bytes, struct error *e)
{
    if (budget_bytes < TOKEN_CACHE_MIN_BYTES)
        return err_set(e, ERR_LIMIT, "%zu bytes for tokenised text, at least %zu", budget_bytes,
                       TOKEN_CACHE_MIN_BYTES);
    struct token_cache *c = calloc(1, sizeof(*c));
    size_t n_places = WAYS;
    while (n_places * BYTES_OF_PLACE < budget_bytes / 2)
        n_places *= 2;
    struct entry **places = calloc(n_places, sizeof(struct entry *));
    if (!c || !places) {
        free(c);
        free(places);
        return err_set(e, ERR_NOMEM, "no memory for a cache of tokenised text");
    }
    pthread_mutex_init(&c->lock, NULL); /* cannot fail: no attributes */
    c->places = places;
    c->n_places = n_places;
    c->use.budget_bytes = budget_bytes;
    c->use.used_bytes = sizeof(*c) + n_places * sizeof(struct entry *);
    *out = c;
    return OK;
}

void token_cache_free(struct token_cache *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n_places; i++)
        free(c->places[i]);
    pthread_mutex_destroy(&c->lock);
    free(c->places);
    free(c);
}

struct token_cache_use token_cache_use(struct token_cache *c)
{
    pthread_mutex_lock(&c->lock);
    struct token_cache_use use = c->use;
    pthread_mutex_unlock(&c->lock);
    return use;
}

/* ---- chunks -------------------------------------------------------------------------------
 */

static uint64_t mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * MULTIPLIER;
    return h ^ h >> 29;
}

static uint64_t hash_line(const uint8_t *p, size_t n)
{
    uint64_t h = n * MULTIPLIER, word;
    for (; n >= sizeof(word); p += sizeof(word), n -= sizeof(word)) {
        memcpy(&word, p, sizeof(word));
        h = mix(h, word);
    }
    word = 0;
    memcpy(&word, p, n);
    return mix(h, word);
}

/* White space up to its last line's end is one piece, so there must be no further end before
 * the next mark. */
bool token_cache_may_cut(const uint8_t *p, const uint8_t *end)
{
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    return p != end && *p > ' ' && *p < 0x7f;
}

size_t token_cache_cut(const uint8_t *bytes, size_t n, uint64_t *hash, bool *is_whole)
{
    const uint8_t *at = bytes, *end = bytes + n;
    uint64_t all = 0;
    *is_whole = false;
    while (at < end && !*is_whole) {
        const uint8_t *newline = memchr(at, '\n', (size_t)(end - at));
        const uint8_t *next = newline ? newline + 1 : end;
        uint64_t line = hash_line(at, (size_t)(next - at));
        all = mix(all, line);
        at = next;
        *is_whole = (line % LINES_OF_CHUNK == 0 || (size_t)(at - bytes) >= LONG_CHUNK) &&
                    token_cache_may_cut(at, end);
    }
    *hash = all;
    return (size_t)(at - bytes);
}

/* ---- entries ------------------------------------------------------------------------------
 */

static size_t entry_bytes(size_t n_bytes, size_t n_ids)
{
    return sizeof(struct entry) + n_ids * sizeof(uint32_t) + n_bytes;
}

static uint8_t *text_of(struct entry *x)
{
    return (uint8_t *)(x->ids + x->n_ids);
}

static struct entry **places_of(struct token_cache *c, uint64_t hash)
{
    return c->places + (hash & (c->n_places / WAYS - 1)) * WAYS;
}

static struct entry *find(struct token_cache *c, uint64_t hash, const uint8_t *bytes, size_t n)
{
    struct entry **set = places_of(c, hash);
    for (size_t i = 0; i < WAYS; i++)
        if (set[i] && set[i]->hash == hash && set[i]->n_bytes == n &&
            memcmp(text_of(set[i]), bytes, n) == 0)
            return set[i];
    return NULL;
}

static bool is_worth_it(const struct token_cache *c, size_t n)
{
    return n >= MIN_CHUNK && n <= c->use.budget_bytes / MOST_OF_BUDGET;
}

enum err token_cache_find(struct token_cache *c, uint64_t hash, const uint8_t *bytes, size_t n,
                          struct ids *out, bool *found, struct error *e)
{
    enum err rc = OK;
    *found = false;
    if (!is_worth_it(c, n))
        return OK;
    pthread_mutex_lock(&c->lock);
    struct entry *x = find(c, hash, bytes, n);
    if (x) {
        rc = ids_add_all(out, x->ids, x->n_ids, e);
        x->is_hot = true;
        c->use.hit_bytes += n;
        *found = rc == OK;
    } else {
        c->use.missed_bytes += n;
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static void evict(struct token_cache *c, struct entry **place)
{
    c->use.used_bytes -= entry_bytes((*place)->n_bytes, (*place)->n_ids);
    c->use.n_evicted++;
    free(*place);
    *place = NULL;
}

/* An entry fits in the eighth part of the budget, so the hand finds enough in two rounds. */
static void make_room(struct token_cache *c, size_t n_bytes)
{
    while (c->use.used_bytes + n_bytes > c->use.budget_bytes) {
        struct entry **place = &c->places[c->hand];
        c->hand = (c->hand + 1) & (c->n_places - 1);
        if (*place && !(*place)->is_hot)
            evict(c, place);
        else if (*place)
            (*place)->is_hot = false;
    }
}

/* An empty place for this hash, made so if need be. */
static struct entry **take_place(struct token_cache *c, uint64_t hash)
{
    struct entry **set = places_of(c, hash), **cold = NULL;
    for (size_t i = 0; i < WAYS; i++) {
        if (!set[i])
            return &set[i];
        if (!cold && !set[i]->is_hot)
            cold = &set[i];
    }
    for (size_t i = 0; i < WAYS && !cold; i++)
        set[i]->is_hot = false;
    cold = cold ? cold : set;
    evict(c, cold);
    return cold;
}

enum err token_cache_put(struct token_cache *c, uint64_t hash, const uint8_t *bytes, size_t n,
                         const uint32_t *ids, size_t n_ids, struct error *e)
{
    size_t size = entry_bytes(n, n_ids);
    if (!is_worth_it(c, n) || size > c->use.budget_bytes / MOST_OF_BUDGET)
        return OK;
    struct entry *x = malloc(size);
    if (!x)
        return err_set(e, ERR_NOMEM, "no memory to remember %zu bytes of text", n);
    *x = (struct entry){.hash = hash, .n_bytes = n, .n_ids = n_ids};
    memcpy(x->ids, ids, n_ids * sizeof(*ids));
    memcpy(text_of(x), bytes, n);
    pthread_mutex_lock(&c->lock);
    if (find(c, hash, bytes, n)) { /* another thread was here first */
        free(x);
    } else {
        make_room(c, size);
        *take_place(c, hash) = x;
        c->use.used_bytes += size;
    }
    pthread_mutex_unlock(&c->lock);
    return OK;
}
