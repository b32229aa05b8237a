#include "agentd/bench_store.h"

#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/aio.h"
#include "sessions/gc.h"
#include "sessions/head.h"
#include "sessions/session.h"
#include "sessions/store.h"
#include "sessions/tape.h"

/* ---- the folder -------------------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb, (void)type, (void)ftw;
    return remove(path);
}

/* Bytes of state of one token. */
static double token_bytes(const struct state_layout *l)
{
    double n = 0;
    for (uint32_t p = 0; p < l->n_planes; p++)
        n += (double)l->planes[p].row_bytes / l->planes[p].ratio;
    return n;
}

/* Rows twice (tails and the blocks made of them), and what stands around them. */
static enum err check_space(const struct bench *b, struct error *e)
{
    struct statvfs fs;
    const struct bench_options *o = b->o;
    uint64_t tokens = o->n_tokens + o->n_appends * o->step;
    double need = (double)tokens * (token_bytes(&b->layout) * 2 + 40) + (64 << 20);
    if (statvfs(o->dir, &fs))
        return err_sys(e, errno, "statvfs %s", o->dir);
    double have = (double)fs.f_bavail * (double)fs.f_frsize;
    if (have < need)
        return err_set(e, ERR_LIMIT, "%s: %.1f GB free, the run needs %.1f", o->dir, have / 1e9,
                       need / 1e9);
    return OK;
}

static enum err open_store(struct bench *b, struct error *e)
{
    const struct store_options so = {
        .db_path = b->db,
        .packs_dir = b->packs,
        .state_dir = b->state,
        .block_tokens = b->o->block_tokens,
        .encrypt = b->o->encrypt ? STORE_ENCRYPT_ON : STORE_ENCRYPT_OFF,
    };
    return store_open(&b->store, &so, e);
}

enum err bench_begin(struct bench *b, const struct bench_options *o, struct error *e)
{
    *b = (struct bench){.o = o, .clock = clock_real()};
    bench_layout(o->geometry, &b->layout);
    enum err rc = check_space(b, e);
    if (rc || (rc = fs_path(b->dir, sizeof b->dir, e, "%s/bench-XXXXXX", o->dir)))
        return rc;
    if (!mkdtemp(b->dir)) {
        rc = err_sys(e, errno, "make %s", b->dir);
        b->dir[0] = '\0';
        return rc;
    }
    const struct session_new s = {.name = "bench", .cwd = "/", .config = "{}"};
    if ((rc = fs_path(b->db, sizeof b->db, e, "%s/agentd.db", b->dir)) ||
        (rc = fs_path(b->packs, sizeof b->packs, e, "%s/packs", b->dir)) ||
        (rc = fs_path(b->state, sizeof b->state, e, "%s/state", b->dir)) ||
        (rc = open_store(b, e)))
        return rc;
    return session_new(b->store, &s, b->session, e);
}

void bench_end(struct bench *b)
{
    store_close(b->store);
    b->store = NULL;
    if (b->dir[0])
        nftw(b->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    b->dir[0] = '\0';
}

enum err bench_reopen(struct bench *b, struct error *e)
{
    store_close(b->store);
    b->store = NULL;
    return open_store(b, e);
}

/* ---- filling ----------------------------------------------------------------------------- */

/* The verb blocks these signals, so that what it made is removed first. */
static enum err check_signals(struct error *e)
{
    sigset_t pending;
    if (sigpending(&pending) == 0 &&
        (sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1))
        return err_set(e, ERR_CANCELLED, "interrupted");
    return OK;
}

static enum err put_tape(struct bench *b, uint64_t from, uint64_t n, struct error *e)
{
    uint32_t *ids = malloc((size_t)n * sizeof *ids);
    if (!ids)
        return err_set(e, ERR_NOMEM, "bench: out of memory");
    bench_ids(from, n, ids);
    const struct tape_segment s = {.seg = {from, n, SEGMENT_INPUT, PREFILL_CED}};
    const struct tape_commit c = {.session = b->session,
                                  .position = from,
                                  .ids = ids,
                                  .n_ids = n,
                                  .segments = &s,
                                  .n_segments = 1};
    enum err rc = tape_commit(b->store, &c, NULL, e);
    free(ids);
    return rc;
}

enum err bench_append(struct bench *b, struct bench_room *room, uint64_t from, uint64_t n,
                      struct head_receipt *r, struct error *e)
{
    enum err rc = check_signals(e);
    if (rc || (rc = put_tape(b, from, n, e)))
        return rc;
    bench_room_fill(room, &b->layout, from, from + n);
    struct head_save s = {.session = b->session,
                          .layout = &b->layout,
                          .from = from,
                          .to = from + n,
                          .tip = room->tip,
                          .digest_rows = from + n};
    memcpy(s.plane, room->regions.plane, sizeof s.plane);
    return head_save(b->store, &s, r, e);
}

/* ---- figures ----------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

double bench_median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

bool bench_line_met(const struct bench_line *l)
{
    return l->at_least ? l->value >= l->limit : l->value <= l->limit;
}
