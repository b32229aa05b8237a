/* The memory for sequences is used up (ERR_LIMIT of the engine): a turn that needs some takes
 * it from sessions that need none now, or waits.
 *
 * Who can do without: idle sessions, the longest unused one first, and turns whose tools run or
 * that wait for somebody. Their state is saved, so it costs them a restore. If there is none, a
 * turn gives up what it has itself, for two that hold what the other needs would wait for ever,
 * and begins again with a restore when somebody has ended or was saved: the one that waits
 * longest first. With nobody else in memory there is nothing to wait for: the turn tries once
 * more, for the others may have left while its answer was on the way, and then fails. */
#include <string.h>

#include "agentd/turn_internal.h"
#include "base/log.h"

/* ---- who can do without ----------------------------------------------------------- */

static bool is_idle(const struct live *s)
{
    return s->model.seq && !s->turn && !s->saver && !s->cut;
}

/* In its tools, and saved. */
static bool can_pause(const struct live *s)
{
    const struct turn *t = s->turn;

    return s->model.seq && t && t->phase == TURN_TOOLS && !s->saver && !t->engine_busy &&
           s->model.saved == s->model.position;
}

/* Its sequence goes, with what is ahead of it; what was computed counts for the ledger, and as
 * history. */
static void leave_memory(struct turn *t)
{
    struct live *s = t->session;

    turn_ahead_end(t);
    t->left_behind += s->model.position;
    t->recovered = true;
    live_drop_seq(s);
}

static bool make_room(const struct live *but)
{
    struct live *idle = NULL, *paused = NULL;

    for (struct live *s = but->daemon->sessions; s; s = s->next) {
        if (s == but)
            continue;
        if (is_idle(s) && (!idle || s->used_ns < idle->used_ns))
            idle = s;
        else if (can_pause(s) && !paused)
            paused = s;
    }
    struct live *s = idle ? idle : paused;
    if (!s)
        return false;
    log_info("session=%s leaves memory for session=%s", s->id, but->id);
    live_pin(s);
    if (s->turn)
        leave_memory(s->turn);
    else
        live_drop_seq(s);
    live_unpin(s);
    return true;
}

/* Whether anybody else is in memory, and so may leave it. */
static bool has_company(const struct live *but)
{
    for (const struct live *s = but->daemon->sessions; s; s = s->next)
        if (s != but && s->model.seq)
            return true;
    return false;
}

/* ---- the turn that needs some ----------------------------------------------------- */

static void again(struct turn *t)
{
    restore_free(t->restore);
    t->restore = NULL;
    if (t->phase == TURN_RESTORE)
        turn_restore(t);
    else if (t->phase == TURN_FEED)
        turn_feed(t);
    else
        turn_run_again(t);
}

static void starve(struct turn *t)
{
    struct live *s = t->session;

    log_info("turn=%s of session=%s waits for memory: %s", t->id, s->id, t->error.msg);
    saver_start(s, turn_input_end(t));
    if (s->model.seq)
        leave_memory(t);
    if (t->run) {
        t->seen.step = t->step;
        memcpy(t->seen.shown, t->run->shown, sizeof(t->run->shown));
    }
    run_free(t->run);
    t->run = NULL;
    feed_fini(&t->feed);
    restore_free(t->restore);
    t->restore = NULL;
    t->starved = true;
    if (t->phase != TURN_RESTORE)
        turn_move(t, TURN_RESTORE);
}

bool turn_gets_memory(struct turn *t)
{
    const struct live *s = t->session;
    /* Out of a step (a device that has less than it promised) nothing is left to go on from. */
    bool needs = t->failed && t->error.code == ERR_LIMIT && !t->cancelled && !t->is_full &&
                 s->length < s->daemon->context && /* else that is the limit */
                 (t->phase == TURN_RESTORE ||
                  (s->model.seq && (t->phase == TURN_FEED || t->phase == TURN_RUN)));

    if (!needs || t->engine_busy ||
        (t->run && (t->run->flushing || t->run->n_known != t->run->n_flushed)))
        return false;
    bool has_room = make_room(s), is_alone = !has_room && !has_company(s);
    if (is_alone && t->was_alone)
        return false;
    t->was_alone = is_alone;
    t->failed = false;
    if (has_room || is_alone)
        again(t);
    else
        starve(t);
    return true;
}

void turns_on_memory(struct daemon *d)
{
    struct turn *t = NULL;

    for (struct live *s = d->sessions; s; s = s->next)
        if (s->turn && s->turn->starved && (!t || s->turn->created_ns < t->created_ns))
            t = s->turn;
    if (!t || d->stopping)
        return;
    t->starved = false;
    turn_restore(t);
}
