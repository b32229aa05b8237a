/* Main rows that a restore left in the packs turn out not to be there: damaged, or given back
 * since. The step that needed them has computed nothing; the sequence is let go of, the extents
 * are set aside, and the turn goes on as after a restart: from what verifies, the rest computed
 * again from the tape. What a run has sampled so far is on the tape first, and is sampled no
 * second time. */
#include <string.h>

#include "agentd/turn_internal.h"
#include "base/log.h"
#include "sessions/late.h"

/* Each time at least one extent less is used; so many are no accident any more. */
#define MAX_STARTS 16

/* Whether rows that stayed behind are not to be had, and the turn can go on without. */
static bool is_spoiled(const struct turn *t)
{
    const struct late *late = t->session->model.late;

    return late && late_is_damaged(late) && t->n_starts < MAX_STARTS && !t->cancelled &&
           !t->failed && !t->session->daemon->stopping;
}

/* What it cost stays; what the tokens were is counted anew, as after a restart. */
static void count_anew(struct turn *t)
{
    struct ledger old = t->ledger;

    t->ledger = (struct ledger){.bytes_read = old.bytes_read,
                                .bytes_written = old.bytes_written,
                                .replayed = old.replayed};
    memcpy(t->ledger.ns, old.ns, sizeof(old.ns));
    t->left_behind = 0;
    t->recovered = true;
}

void turn_start_again(struct turn *t)
{
    struct run *r = t->run;

    if (turn_stops(t))
        return;
    if (r) {
        t->open_run = r->start;
        t->seen.step = t->step;
        memcpy(t->seen.shown, r->shown, sizeof(r->shown));
        run_free(r);
        t->run = NULL;
    }
    feed_fini(&t->feed);
    t->n_digests = 0; /* those of segments that are computed again are known again */
    count_anew(t);
    turn_move(t, TURN_RESTORE);
    turn_restore(t);
}

bool turn_start_over(struct turn *t, const struct error *why)
{
    struct live *s = t->session;

    if (!is_spoiled(t))
        return false;
    log_warn("session=%s: saved rows are not to be had, the turn goes on from what is left: %s",
             s->id, why->msg);
    t->n_starts++;
    t->spoiled = late_ref(s->model.late);
    live_drop_seq(s);
    if (t->phase == TURN_RESTORE) {
        turn_restore_again(t);
        return true;
    }
    turn_flush(t); /* in a run: its ids; goes on when they are durable */
    if (!t->run || !t->run->flushing)
        turn_start_again(t);
    return true;
}
