#include "sessions/fsck.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sessions/fsck_internal.h"

static fsck_phase *const phases[] = {
    fsck_database, fsck_rows,  fsck_sessions, fsck_orphans, fsck_search,
    fsck_graph,    fsck_heads, fsck_extents,  fsck_packs,
};

#define N_PHASES (sizeof phases / sizeof phases[0])

void fsck_say(struct fsck *f, const char *kind, const char *action, const char *fmt, ...)
{
    struct fsck_finding x = {.kind = kind, .action = action};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(x.what, sizeof x.what, fmt, ap);
    va_end(ap);
    x.repaired = f->repair && strcmp(action, "none") != 0;
    f->report.found++;
    f->report.repaired += x.repaired;
    if (f->fn)
        f->fn(f->user, &x);
}

enum err fsck_begin(struct store *st, bool repair, fsck_fn *fn, void *user, struct fsck **out,
                    struct error *e)
{
    struct fsck *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(e, ERR_NOMEM, "fsck: out of memory");
    *f = (struct fsck){.st = st, .repair = repair, .fn = fn, .user = user};
    forest_init(&f->forest, st);
    *out = f;
    return OK;
}

enum err fsck_step(struct fsck *f, bool *done, struct error *e)
{
    bool phase_done = false;
    *done = f->part == N_PHASES;
    if (*done)
        return OK;
    enum err rc = phases[f->part](f, &phase_done, e);
    if (rc)
        return err_wrap(e, rc, "fsck");
    if (phase_done) {
        f->part++;
        f->table = 0;
        f->at = 0;
    }
    *done = f->part == N_PHASES;
    return OK;
}

const struct fsck_report *fsck_so_far(const struct fsck *f)
{
    return &f->report;
}

void fsck_end(struct fsck *f)
{
    if (!f)
        return;
    forest_fini(&f->forest);
    free(f);
}

enum err fsck_run(struct store *st, bool repair, fsck_fn *fn, void *user,
                  struct fsck_report *out, struct error *e)
{
    struct fsck *f = NULL;
    enum err rc = fsck_begin(st, repair, fn, user, &f, e);
    if (rc)
        return rc;
    for (bool done = false; !done && !rc;)
        rc = fsck_step(f, &done, e);
    if (!rc)
        *out = f->report;
    fsck_end(f);
    return rc;
}
