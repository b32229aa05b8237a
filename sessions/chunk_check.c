#include "sessions/chunk_check.h"

#include <stdlib.h>
#include <string.h>

#include "base/workers.h"
#include "sessions/strand.h"

#define BATCH 64u /* chunks of one job: 0.15 ms */

struct chunk_batch {
    struct work work;
    const uint8_t *row_key;
    size_t n;
    struct row_later rows[BATCH];
    uint64_t chunk[BATCH];
    bool is_bad[BATCH];
};
_Static_assert(offsetof(struct chunk_batch, work) == 0, "a batch is its work");

enum err chunk_checks_init(struct chunk_checks *c, struct store *st, size_t n_chunks,
                           struct error *e)
{
    *c = (struct chunk_checks){.st = st};
    c->workers = store_workers(st, (uint64_t)n_chunks * STRAND_CHUNK_IDS * sizeof(uint32_t));
    if (!c->workers)
        return OK;
    c->cap_batches = (n_chunks + BATCH - 1) / BATCH;
    c->batches = calloc(c->cap_batches, sizeof *c->batches);
    if (!c->batches)
        return err_set(e, ERR_NOMEM, "tape of %zu chunks: out of memory", n_chunks);
    return OK;
}

static void run(struct work *w)
{
    struct chunk_batch *b = (struct chunk_batch *)w;
    for (size_t i = 0; i < b->n; i++)
        b->is_bad[i] = !row_later_holds(&b->rows[i], b->row_key, "tape");
}

static void submit(struct chunk_checks *c)
{
    struct chunk_batch *b = &c->batches[c->n_batches++];
    b->row_key = c->st->db.row_key;
    b->work.run = run;
    workers_submit(c->workers, &b->work);
}

bool chunk_checks_put(struct chunk_checks *c, const struct query *q, const uint32_t *ids)
{
    if (c->n_batches == c->cap_batches)
        return false;
    struct chunk_batch *b = &c->batches[c->n_batches];
    if (!row_later_take(q, ids, &b->rows[b->n]))
        return false;
    b->chunk[b->n++] = row_uint(q, 1);
    if (b->n == BATCH)
        submit(c);
    return true;
}

void chunk_checks_end(struct chunk_checks *c)
{
    if (c->n_batches < c->cap_batches && c->batches[c->n_batches].n)
        submit(c);
    while (workers_take(c->workers, true))
        ;
}

bool chunk_checks_bad(struct chunk_checks *c, uint64_t *chunk)
{
    for (; c->next_batch < c->n_batches; c->next_batch++, c->next_row = 0) {
        const struct chunk_batch *b = &c->batches[c->next_batch];
        while (c->next_row < b->n) {
            size_t i = c->next_row++;
            if (!b->is_bad[i])
                continue;
            *chunk = b->chunk[i];
            c->st->db.rows_damaged++;
            return true;
        }
    }
    return false;
}

void chunk_checks_fini(struct chunk_checks *c)
{
    while (workers_take(c->workers, true))
        ;
    free(c->batches);
    memset(c, 0, sizeof *c);
}
