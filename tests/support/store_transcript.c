#include "tests/support/store_transcript.h"

#include "tests/support/test.h"

static void add(struct transcript_part *p, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void add(struct transcript_part *p, const char *fmt, ...)
{
    va_list ap;
    size_t n = strlen(p->text);
    va_start(ap, fmt);
    vsnprintf(p->text + n, sizeof p->text - n, fmt, ap);
    va_end(ap);
}

static bool see_event(void *user, const struct tape_event *ev)
{
    add(user, "[%llu %llu %s %s %s %s %s %zu %.*s]", (unsigned long long)ev->seq,
        (unsigned long long)ev->position, ev->turn ? ev->turn : "-", ev->type,
        ev->item ? ev->item : "-", ev->kind ? ev->kind : "-", ev->json ? ev->json : "-",
        ev->n_bytes, (int)ev->n_bytes, ev->bytes ? (const char *)ev->bytes : "");
    return true;
}

static bool see_call(void *user, const struct tape_call *c)
{
    add(user, "[%s %s %s %s %s %u %u %s %d %d %.*s %s %llu %llu %llu]", c->id, c->turn,
        c->item ? c->item : "-", c->name, c->arguments, c->step, c->index,
        call_status_name(c->status), c->is_error, c->ingested, (int)c->n_result,
        c->result ? (const char *)c->result : "", c->spill ? c->spill : "-",
        (unsigned long long)c->spill_bytes, (unsigned long long)c->created_ms,
        (unsigned long long)c->ended_ms);
    return true;
}

static bool see_turn(void *user, const char *session, const struct tape_turn *t)
{
    add(user, "[%s %s %s %s %llu %u %s %s %s %d %llu]", session, t->id,
        t->client_message ? t->client_message : "-", t->params,
        (unsigned long long)t->forced_next, t->step, t->state, t->reason, t->ledger,
        t->finished, (unsigned long long)t->first_seq);
    return true;
}

static bool see_session(void *user, const struct session_info *s)
{
    struct transcript_part *p = user;
    p->flagged |= s->damaged;
    add(p, "[%s %s]", s->id, s->name);
    return true;
}

static void read_tape(struct store *st, const char *id, struct transcript_part *p)
{
    AUTO(tape) struct tape t = {0};
    p->flagged = tape_load(st, id, &t, NULL) != OK || t.damaged;
    for (size_t i = 0; i < t.view.n_segments; i++) {
        const struct tape_segment *s = &t.tape_segments[i];
        /* Cut where the damage is, a segment keeps its beginning and kind. */
        add(p, "%llu:%d:%d ", (unsigned long long)s->seg.start, (int)s->seg.kind,
            (int)s->seg.mode);
        for (uint64_t k = s->seg.start; k < s->seg.start + s->seg.len; k++)
            add(p, "%u ", t.ids[k]);
        if (!p->flagged)
            add(p, "%d%d%u%llu;", s->open, s->has_digest, s->digest[0],
                (unsigned long long)s->n_rows);
    }
    if (!p->flagged)
        for (size_t i = 0; i < t.view.n_marks; i++)
            add(p, "m%llu-%llu", (unsigned long long)t.marks[i].at,
                (unsigned long long)t.marks[i].from);
}

static void read_session(struct store *st, const char *id, struct transcript_part *parts)
{
    AUTO(session_info) struct session_info s = {0};
    struct transcript_part *info = &parts[TRANSCRIPT_INFO], *turns = &parts[TRANSCRIPT_TURNS],
                           *unfinished = &parts[TRANSCRIPT_UNFINISHED],
                           *calls = &parts[TRANSCRIPT_CALLS],
                           *events = &parts[TRANSCRIPT_EVENTS],
                           *items = &parts[TRANSCRIPT_ITEMS];
    turns->flagged = tape_turn(st, id, NULL, see_turn, turns, NULL) != OK;
    unfinished->flagged = tape_unfinished(st, id, see_turn, unfinished, NULL) != OK;
    calls->flagged = tape_calls(st, id, NULL, false, see_call, calls, NULL) != OK;
    events->flagged = tape_events(st, id, 0, 0, see_event, events, NULL) != OK;
    items->flagged = tape_items(st, id, see_event, items, NULL) != OK;
    read_tape(st, id, &parts[TRANSCRIPT_TAPE]);
    /* Last: reading has marked what is damaged. */
    info->flagged = session_find(st, id, &s, NULL) != OK || s.damaged;
    if (!info->flagged)
        add(info, "%s %s %s %s %s %s %s %llu %llu %llu %llu", s.id, s.name, s.parent, s.state,
            s.reason, s.cwd, s.config, (unsigned long long)s.forked_at,
            (unsigned long long)s.n_tokens, (unsigned long long)s.last_seq,
            (unsigned long long)s.created_ms);
}

static uint64_t restore(struct store *st, const char *id, const struct state_layout *l)
{
    struct error e;
    struct head_restored r;
    /* Checks itself that every byte it hands over is right. */
    return state_restore(st, id, l, TAPE_END, HEAD_TIP, NULL, &r, &e) ? 0 : r.n_tokens;
}

struct lost {
    const struct store_sample *s;
    struct transcript *out;
};

static void see_lost(void *user, const char *id)
{
    struct lost *l = user;
    l->out->lost[0] |= strcmp(id, l->s->id) == 0;
    l->out->lost[1] |= strcmp(id, l->s->fork) == 0;
}

static void read_losses(struct store *st, const struct store_sample *s, struct transcript *out)
{
    struct store_counters c;
    struct lost l = {s, out};
    store_count(st, &c);
    store_lost_sessions(st, see_lost, &l);
    out->loss_told = c.wal_lost || c.tape_commits_lost || c.commits_lost;
}

void transcript_read(struct store_fixture *f, const struct store_sample *s,
                     struct transcript *out)
{
    memset(out, 0, sizeof *out);
    out->rc = store_fixture_open(f, &out->e);
    out->refused = out->rc != OK;
    if (out->refused)
        return;
    read_losses(f->st, s, out);
    read_session(f->st, s->id, out->parts[0]);
    read_session(f->st, s->fork, out->parts[1]);
    out->restored[0] = restore(f->st, s->id, &s->l);
    out->restored[1] = restore(f->st, s->fork, &s->l);
    out->list.flagged |= session_list(f->st, see_session, &out->list, NULL) != OK;
    store_close(f->st);
    f->st = NULL;
}

bool transcript_same(const struct transcript *a, const struct transcript *b, int s)
{
    bool same = true;
    for (int i = 0; i < TRANSCRIPT_PARTS; i++)
        same &= strcmp(a->parts[s][i].text, b->parts[s][i].text) == 0 &&
                a->parts[s][i].flagged == b->parts[s][i].flagged;
    return same;
}

static bool compare_part(const struct transcript_part *want, const struct transcript_part *got,
                         const char *what, int session, int part)
{
    size_t n = strlen(got->text);
    if (strncmp(want->text, got->text, n) != 0 || (!got->flagged && strlen(want->text) != n))
        fail_msg("%s: session %d part %d: \"%s\" instead of \"%s\"", what, session, part,
                 got->text, want->text);
    return got->flagged && !want->flagged; /* a fork has no turns in any case */
}

bool transcript_compare(const struct transcript *want, const struct transcript *got,
                        const char *what)
{
    bool flagged = got->refused;
    for (int s = 0; s < 2 && !got->refused; s++) {
        for (int i = 0; i < TRANSCRIPT_PARTS; i++)
            flagged |= compare_part(&want->parts[s][i], &got->parts[s][i], what, s, i);
        if (got->restored[s] > want->restored[s])
            fail_msg("%s: session %d: %llu tokens of state, there are %llu", what, s,
                     (unsigned long long)got->restored[s],
                     (unsigned long long)want->restored[s]);
    }
    /* A damaged session may be listed in another place, but every name is right. */
    if (!got->refused && !got->list.flagged)
        flagged |= compare_part(&want->list, &got->list, what, 2, 0);
    return flagged || got->list.flagged;
}
