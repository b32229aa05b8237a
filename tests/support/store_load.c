#include "tests/support/store_load.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fs.h"
#include "sessions/bundle.h"
#include "sessions/evict.h"
#include "sessions/gc.h"
#include "tests/support/test.h"

#define MAX_APPEND 40

const char *const load_kind_names[LOAD_KINDS] = {
    "new",    "append", "finish-call", "save",  "restore", "fork",   "rewind", "compact",
    "remove", "gc",     "purge",       "evict", "export",  "import", "reopen"};

struct load *load_new(uint64_t seed, enum layout_shape shape)
{
    struct load *l =
        mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (l == MAP_FAILED)
        abort();
    l->random = seed;
    state_layout_make(&l->layout, shape);
    return l;
}

void load_free(struct load *l)
{
    munmap(l, sizeof *l);
}

/* SplitMix64. */
uint64_t load_draw(struct load *l, uint64_t below)
{
    uint64_t z = (l->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

static bool wrong(struct load *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool wrong(struct load *l, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(l->violation, sizeof l->violation, fmt, ap);
    va_end(ap);
    return false;
}

/* ---- the operation in flight ------------------------------------------------------------- */

/* Begins an operation on the session in this slot; the caller changes *after. */
static struct load_session *begin(struct load *l, enum load_kind kind, size_t slot)
{
    l->op = (struct load_op){.kind = kind, .n = 1, .slot = {slot}};
    l->op.after[0] = l->sessions[slot];
    return &l->op.after[0];
}

/* It makes a session, too. */
static struct load_session *begin_second(struct load *l, size_t slot,
                                         const struct load_session *like)
{
    struct load_session *s = &l->op.after[1];
    l->op.n = 2;
    l->op.slot[1] = slot;
    *s = *like;
    s->exists = true;
    snprintf(s->name, sizeof s->name, "s-%06u", l->n_names++);
    return s;
}

static void tell(const struct load *l, const char *what)
{
    if (!l->loud)
        return;
    fprintf(stderr, "%s%s", what, load_kind_names[l->op.kind]);
    for (size_t i = 0; i < l->op.n; i++) {
        const struct load_session *s = &l->op.after[i];
        fprintf(stderr, " %s tokens %llu events %llu saved %lld%s;", s->name,
                (unsigned long long)s->n_tokens, (unsigned long long)s->n_events,
                (long long)s->saved, s->has_tip ? " tip" : "");
    }
    fputc('\n', stderr);
}

/* From here on the store may have it. */
static void go(struct load *l)
{
    l->op.begun = true;
    tell(l, "");
    if (l->fault.n) {
        fault_use_errno(l->fault.sys);
        fault_arm(l->fault.action, NULL, l->fault.n);
    }
}

/* It has answered. */
static void came_back(struct load *l)
{
    if (l->fault.n)
        l->fault.fired = fault_disarm() || l->fault.fired;
}

/* The store says that it has. */
static bool done(struct load *l)
{
    came_back(l);
    for (size_t i = 0; i < l->op.n; i++)
        l->sessions[l->op.slot[i]] = l->op.after[i];
    l->n_done[l->op.kind]++;
    l->op.begun = false;
    return true;
}

static bool failed(struct load *l, const struct error *e)
{
    came_back(l);
    l->op.refused = true;
    return wrong(l, "%s: %s", load_kind_names[l->op.kind], e->msg);
}

/* Whether an operation has something to do in this slot. */
static bool fits(const struct load *l, enum load_kind kind, size_t slot)
{
    const struct load_session *s = &l->sessions[slot];
    if (kind == LOAD_NEW || kind == LOAD_IMPORT)
        return !s->exists;
    if (!s->exists)
        return false;
    if (kind == LOAD_APPEND)
        return s->n_tokens + MAX_APPEND <= LOAD_TOKENS && s->n_events < LOAD_EVENTS;
    if (kind == LOAD_FINISH_CALL)
        return s->n_open_calls > 0;
    return kind != LOAD_SAVE || s->saved < s->n_tokens;
}

/* LOAD_SESSIONS: there is none. */
static size_t pick(struct load *l, enum load_kind kind)
{
    size_t start = load_draw(l, LOAD_SESSIONS);
    for (size_t i = 0; i < LOAD_SESSIONS; i++)
        if (fits(l, kind, (start + i) % LOAD_SESSIONS))
            return (start + i) % LOAD_SESSIONS;
    return LOAD_SESSIONS;
}

/* ---- reading the store ------------------------------------------------------------------- */

static bool see_event(void *user, const struct tape_event *ev)
{
    struct load_session *s = user;
    if (s->n_events < LOAD_EVENTS)
        s->at[s->n_events] = ev->position;
    s->n_events++;
    return true;
}

static bool see_call(void *user, const struct tape_call *c)
{
    struct load_session *s = user;
    s->n_calls++;
    s->n_open_calls += call_is_open(c->status);
    return true;
}

/* What the store has under this name, and its id. False: it cannot be read. */
static bool read_session(struct load *l, struct store *st, const char *name,
                         struct load_session *out, char id[SESSION_ID_CAP])
{
    struct error e;
    AUTO(session_info) struct session_info s = {0};
    AUTO(tape) struct tape t = {0};
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", name);
    enum err rc = session_find(st, name, &s, &e);
    if (rc == ERR_NOTFOUND)
        return true;
    if (rc || (rc = tape_load(st, s.id, &t, &e)) ||
        (rc = tape_events(st, s.id, 0, 0, see_event, out, &e)) ||
        (rc = tape_calls(st, s.id, NULL, false, see_call, out, &e)))
        return wrong(l, "read %s: %s", name, e.msg);
    if (s.damaged || t.damaged)
        return wrong(l, "%s is damaged", name);
    if (s.n_tokens != t.view.n_ids || s.n_tokens > LOAD_TOKENS || s.last_seq != out->n_events)
        return wrong(l, "%s says %llu tokens and %llu events, has %llu and %llu", name,
                     (unsigned long long)s.n_tokens, (unsigned long long)s.last_seq,
                     (unsigned long long)t.view.n_ids, (unsigned long long)out->n_events);
    if (s.state_position > s.n_tokens)
        return wrong(l, "%s: state of %llu tokens, tape of %llu", name,
                     (unsigned long long)s.state_position, (unsigned long long)s.n_tokens);
    out->exists = true;
    out->n_tokens = s.n_tokens;
    out->saved = s.state_position;
    if (t.view.n_ids)
        memcpy(out->ids, t.ids, (size_t)t.view.n_ids * sizeof *t.ids);
    snprintf(id, SESSION_ID_CAP, "%s", s.id);
    return true;
}

static bool is_like(uint64_t want, uint64_t have)
{
    return want == LOAD_ANY || want == have;
}

static bool is_as_wanted(const struct load_session *want, const struct load_session *have)
{
    if (!want->exists || !have->exists)
        return want->exists == have->exists;
    return want->n_tokens == have->n_tokens && want->n_events == have->n_events &&
           is_like(want->n_calls, have->n_calls) &&
           is_like(want->n_open_calls, have->n_open_calls) &&
           is_like(want->saved, have->saved) &&
           memcmp(want->ids, have->ids, (size_t)want->n_tokens * sizeof *want->ids) == 0 &&
           memcmp(want->at, have->at, (size_t)want->n_events * sizeof *want->at) == 0;
}

static bool not_as_wanted(struct load *l, const char *when, const struct load_session *want,
                          const struct load_session *have)
{
    return wrong(l,
                 "%s: %s: want exists %d tokens %llu events %llu calls %lld/%lld saved %lld, "
                 "have %d %llu %llu %lld/%lld %lld",
                 when, want->name, want->exists, (unsigned long long)want->n_tokens,
                 (unsigned long long)want->n_events, (long long)want->n_calls,
                 (long long)want->n_open_calls, (long long)want->saved, have->exists,
                 (unsigned long long)have->n_tokens, (unsigned long long)have->n_events,
                 (long long)have->n_calls, (long long)have->n_open_calls,
                 (long long)have->saved);
}

/* Fills in what the model left to the store; the tip is known only where it was said. */
static void learn(struct load_session *want, const struct load_session *have)
{
    if (want->saved == LOAD_ANY)
        want->has_tip = false;
    want->saved = have->saved;
    want->n_calls = have->n_calls;
    want->n_open_calls = have->n_open_calls;
}

/* Decides, after a crash, whether the operation in flight happened. */
static bool settle(struct load *l, struct store *st)
{
    char id[SESSION_ID_CAP];
    struct load_session have[2];
    bool before = true, after = true;
    for (size_t i = 0; i < l->op.n; i++) {
        const struct load_session *old = &l->sessions[l->op.slot[i]];
        if (!read_session(l, st, l->op.after[i].name, &have[i], id))
            return false;
        before = before && is_as_wanted(old, &have[i]);
        after = after && is_as_wanted(&l->op.after[i], &have[i]);
    }
    l->n_cut[l->op.kind]++;
    l->op.begun = false;
    after = after && !l->op.refused;
    tell(l, before ? "cut, did not happen: " : "cut, happened: ");
    if (!before && !after)
        return not_as_wanted(l, load_kind_names[l->op.kind], &l->op.after[0], &have[0]);
    /* Where both fit, nothing that counts was changed; a tip is then not promised. */
    for (size_t i = 0; i < l->op.n; i++) {
        struct load_session *s = &l->sessions[l->op.slot[i]];
        bool had_tip = s->has_tip;
        if (!before)
            *s = l->op.after[i];
        if (before && after)
            s->has_tip = had_tip && l->op.after[i].has_tip;
        learn(s, &have[i]);
    }
    l->n_went_through += !before;
    return true;
}

/* ---- operations: tape -------------------------------------------------------------------- */

static bool op_new(struct load *l, struct store_fixture *f, size_t slot)
{
    struct error e;
    struct load_session *s = begin(l, LOAD_NEW, slot);
    memset(s, 0, sizeof *s);
    s->exists = true;
    snprintf(s->name, sizeof s->name, "s-%06u", l->n_names++);
    struct session_new n = {.name = s->name, .cwd = "/w", .config = "{\"approve\":\"ask\"}"};
    go(l);
    return session_new(f->st, &n, NULL, &e) ? failed(l, &e) : done(l);
}

static bool id_of(struct load *l, struct store *st, const char *name, char id[SESSION_ID_CAP])
{
    struct error e;
    AUTO(session_info) struct session_info s = {0};
    if (session_find(st, name, &s, &e))
        return wrong(l, "find %s: %s", name, e.msg);
    snprintf(id, SESSION_ID_CAP, "%s", s.id);
    return true;
}

/* Tokens, an event, and now and then a call that begins. Half of all tokens follow from their
 * position alone, so that sessions share blocks. */
static bool op_append(struct load *l, struct store_fixture *f, size_t slot)
{
    struct error e;
    char id[SESSION_ID_CAP], call_id[24];
    struct load_session *s = begin(l, LOAD_APPEND, slot);
    uint64_t n = 1 + load_draw(l, MAX_APPEND), at = s->n_tokens;
    uint32_t salt = load_draw(l, 2) ? 0 : (uint32_t)load_draw(l, 1000);
    for (uint64_t i = at; i < at + n; i++)
        s->ids[i] = (uint32_t)(i * 7919 + salt);
    bool with_call = load_draw(l, 3) == 0;
    snprintf(call_id, sizeof call_id, "c-%llu", (unsigned long long)s->n_events);
    struct tape_segment seg = {
        .seg = {at, n, load_draw(l, 2) ? SEGMENT_INPUT : SEGMENT_GENERATED, PREFILL_CED}};
    struct tape_event ev = {.type = "item", .item = call_id, .position = TAPE_END};
    struct tape_call call = {.id = call_id,
                             .turn = "turn",
                             .name = "run",
                             .arguments = "{}",
                             .status = CALL_STARTED};
    if (!id_of(l, f->st, s->name, id))
        return false;
    struct tape_commit c = {.session = id,
                            .position = at,
                            .ids = s->ids + at,
                            .n_ids = n,
                            .segments = &seg,
                            .n_segments = 1,
                            .events = &ev,
                            .n_events = 1,
                            .calls = &call,
                            .n_calls = with_call};
    s->n_tokens += n;
    s->at[s->n_events++] = s->n_tokens;
    s->n_calls += with_call;
    s->n_open_calls += with_call;
    go(l);
    return tape_commit(f->st, &c, NULL, &e) ? failed(l, &e) : done(l);
}

static bool first_call(void *user, const struct tape_call *c)
{
    snprintf(user, TAPE_ID_CAP, "%s", c->id);
    return false;
}

static bool op_finish_call(struct load *l, struct store_fixture *f, size_t slot)
{
    struct error e;
    char id[SESSION_ID_CAP], call_id[TAPE_ID_CAP] = "";
    struct load_session *s = begin(l, LOAD_FINISH_CALL, slot);
    if (!id_of(l, f->st, s->name, id))
        return false;
    if (tape_calls(f->st, id, NULL, true, first_call, call_id, &e))
        return wrong(l, "calls of %s: %s", s->name, e.msg);
    struct tape_call call = {
        .id = call_id, .status = CALL_DONE, .result = "result", .n_result = 6};
    struct tape_commit c = {.session = id, .calls = &call, .n_calls = 1};
    s->n_open_calls--;
    go(l);
    return tape_commit(f->st, &c, NULL, &e) ? failed(l, &e) : done(l);
}

/* ---- operations: state ------------------------------------------------------------------- */

/* Nothing is promised any more but that what comes back is right. */
static void forget_state(struct load *l, size_t but)
{
    for (size_t i = 0; i < LOAD_SESSIONS; i++) {
        l->sessions[i].has_tip = l->sessions[i].has_tip && i == but;
        l->sessions[i].may_be_gone = l->sessions[i].may_be_gone || i != but;
    }
}

/* An input segment that `to` cuts. */
static bool is_inside(const struct tape *t, uint64_t to)
{
    for (size_t i = 0; i < t->view.n_segments; i++) {
        const struct segment *g = &t->segments[i];
        if (g->kind == SEGMENT_INPUT && g->start < to && to < g->start + g->len)
            return true;
    }
    return false;
}

static bool op_save(struct load *l, struct store_fixture *f, size_t slot)
{
    struct error e;
    char id[SESSION_ID_CAP];
    AUTO(tape) struct tape t = {0};
    AUTO(state_image) struct state_image image = {0};
    struct load_session *s = begin(l, LOAD_SAVE, slot);
    uint64_t from = s->may_be_gone ? 0 : s->saved, to = s->n_tokens;
    if (load_draw(l, 4) == 0)
        to = s->saved + 1 + load_draw(l, to - s->saved);
    if (!id_of(l, f->st, s->name, id))
        return false;
    if (tape_load(f->st, id, &t, &e))
        return wrong(l, "load %s: %s", s->name, e.msg);
    state_image_make(&image, &l->layout, t.ids, to);
    s->has_tip = load_draw(l, 4) != 0;
    s->saved = to;
    s->may_be_gone = false;
    struct head_save h = {.session = id,
                          .layout = &l->layout,
                          .from = from,
                          .to = to,
                          .tip = s->has_tip ? image.tip : NULL,
                          .inside_segment = is_inside(&t, to),
                          .digest_rows = to};
    for (uint32_t p = 0; p < l->layout.n_planes; p++)
        h.plane[p] = (uint8_t *)image.regions.plane[p] +
                     from / l->layout.planes[p].ratio * l->layout.planes[p].row_bytes;
    if (l->with_quota)
        forget_state(l, slot);
    go(l);
    enum err rc = head_save(f->st, &h, NULL, &e);
    /* What the others need may leave no room. */
    if (rc == ERR_LIMIT && l->with_quota && !l->fault.n) {
        l->op.begun = false;
        return true;
    }
    return rc ? failed(l, &e) : done(l);
}

/* Bytes of the first n tokens and the tip, against those that follow from the ids. */
static bool is_right(struct load *l, const struct load_session *s,
                     const struct state_image *got, const struct head_restored *r)
{
    AUTO(state_image) struct state_image want = {0};
    state_image_make(&want, &l->layout, s->ids, r->n_tokens);
    for (uint32_t p = 0; p < l->layout.n_planes; p++) {
        const struct plane_spec *spec = &l->layout.planes[p];
        size_t n = (size_t)(state_rows(spec, r->n_tokens) * spec->row_bytes);
        if (n && memcmp(want.regions.plane[p], got->regions.plane[p], n) != 0)
            return wrong(l, "restore %s: plane %s is wrong", s->name, spec->name);
    }
    if (r->has_tip && memcmp(want.tip, got->tip, (size_t)l->layout.tip_bytes) != 0)
        return wrong(l, "restore %s: wrong tip at %llu", s->name,
                     (unsigned long long)r->n_tokens);
    return true;
}

/* The position of the newest state is the store's to say; the model asks once it is there. */
static bool ask(struct load *l, struct store_fixture *f)
{
    came_back(l);
    for (size_t i = 0; i < l->op.n; i++) {
        struct load_session have, *want = &l->op.after[i];
        char id[SESSION_ID_CAP];
        if (!read_session(l, f->st, want->name, &have, id))
            return false;
        if (!is_as_wanted(want, &have))
            return not_as_wanted(l, load_kind_names[l->op.kind], want, &have);
        learn(want, &have);
    }
    return done(l);
}

/* What was acknowledged is found and comes back whole and right. */
static bool op_restore(struct load *l, struct store_fixture *f, size_t slot)
{
    struct error e;
    char id[SESSION_ID_CAP];
    struct load_session *s = begin(l, LOAD_RESTORE, slot);
    struct head_plan *plan = NULL;
    struct head_restored r = {0};
    AUTO(state_image) struct state_image got = {0};
    if (!id_of(l, f->st, s->name, id))
        return false;
    if (head_find(f->st, id, &l->layout, TAPE_END, s->has_tip ? HEAD_TIP : HEAD_ROWS, &plan,
                  &e))
        return failed(l, &e);
    uint64_t n = plan->n_tokens;
    /* Without planes there are no rows: only a tip restores anything. */
    if (n < s->saved && !s->may_be_gone && (s->has_tip || l->layout.n_planes)) {
        head_plan_free(plan);
        return wrong(l, "%s: state of %llu tokens acknowledged, tip %d, %llu found", s->name,
                     (unsigned long long)s->saved, s->has_tip, (unsigned long long)n);
    }
    state_image_blank(&got, &l->layout, n);
    struct head_restore h = {.session = id,
                             .layout = &l->layout,
                             .plan = plan,
                             .dst = &got.regions,
                             .tip = plan->has_tip ? got.tip : NULL};
    /* Where state was evicted the position says for how long what was there is remembered. */
    s->may_be_gone = n < s->saved;
    s->saved = n < s->saved ? LOAD_ANY : n;
    s->has_tip = plan->has_tip && n == s->saved;
    bool has_tip = plan->has_tip;
    go(l);
    enum err rc = n ? head_restore(f->st, &h, &r, &e) : OK;
    head_plan_free(plan);
    if (rc)
        return failed(l, &e);
    if (r.n_tokens != n || r.has_tip != has_tip)
        return wrong(l, "%s: %llu tokens found, %llu restored, tip %d and %d", s->name,
                     (unsigned long long)n, (unsigned long long)r.n_tokens, has_tip, r.has_tip);
    if (!n)
        *s = l->sessions[slot];
    return is_right(l, s, &got, &r) && ask(l, f);
}

/* ---- operations: sessions ---------------------------------------------------------------- */

/* Cuts a session behind one of its events, or (may_be_0) before all of them; what is left. */
static uint64_t cut_at(struct load *l, struct load_session *s, bool may_be_0)
{
    uint64_t seq = s->n_old + 1 + load_draw(l, s->n_events - s->n_old + may_be_0);
    if (seq > s->n_events)
        seq = 0;
    s->n_events = seq;
    s->n_old = seq ? s->n_old : 0;
    s->n_tokens = seq ? s->at[seq - 1] : 0;
    s->saved = s->n_calls = s->n_open_calls = LOAD_ANY;
    return seq;
}

static bool op_fork(struct load *l, struct store_fixture *f, size_t slot, size_t free_slot)
{
    struct error e;
    char id[SESSION_ID_CAP];
    const struct load_session *parent = begin(l, LOAD_FORK, slot);
    struct load_session *s = begin_second(l, free_slot, parent);
    uint64_t seq = 0;
    s->n_calls = s->n_open_calls = s->saved = LOAD_ANY;
    if (s->n_events > s->n_old && load_draw(l, 2))
        seq = cut_at(l, s, false);
    if (!id_of(l, f->st, parent->name, id))
        return false;
    struct session_fork k = {.parent = id, .at_seq = seq, .name = s->name};
    go(l);
    return session_fork(f->st, &k, NULL, &e) ? failed(l, &e) : ask(l, f);
}

/* Rewind and compaction: the session goes on from the cut, another keeps what it had. */
static bool op_cut(struct load *l, struct store_fixture *f, enum load_kind kind, size_t slot,
                   size_t free_slot)
{
    struct error e;
    char id[SESSION_ID_CAP];
    struct load_session *s = begin(l, kind, slot);
    struct load_session *keep = begin_second(l, free_slot, s);
    uint64_t seq = 0;
    keep->n_calls = keep->n_open_calls = keep->saved = LOAD_ANY;
    if (kind == LOAD_REWIND) {
        seq = cut_at(l, s, true);
    } else {
        s->n_tokens = 0;
        s->n_old = s->n_events;
        s->saved = s->n_calls = s->n_open_calls = LOAD_ANY;
    }
    if (!id_of(l, f->st, s->name, id))
        return false;
    struct session_cut c = {
        .id = id, .at_seq = seq, .restart = kind == LOAD_COMPACT, .keep_name = keep->name};
    go(l);
    return session_cut(f->st, &c, NULL, &e) ? failed(l, &e) : ask(l, f);
}

static bool op_remove(struct load *l, struct store_fixture *f, size_t slot)
{
    struct error e;
    char id[SESSION_ID_CAP];
    struct load_session *s = begin(l, LOAD_REMOVE, slot);
    if (!id_of(l, f->st, s->name, id))
        return false;
    s->exists = false;
    go(l);
    return session_delete(f->st, id, &e) ? failed(l, &e) : done(l);
}

static bool op_gc(struct load *l, struct store_fixture *f, enum load_kind kind)
{
    struct error e;
    struct gc_report r;
    struct evict_keep keep = {0};
    l->op = (struct load_op){.kind = kind};
    if (kind == LOAD_EVICT || l->with_quota)
        forget_state(l, LOAD_SESSIONS);
    go(l);
    enum err rc = kind == LOAD_GC      ? gc_run(f->st, &r, &e)
                  : kind == LOAD_PURGE ? gc_purge(f->st, &r, &e)
                                       : evict_room(f->st, 20000, &keep, &e);
    /* There may be less than that. */
    if (kind == LOAD_EVICT && rc == ERR_LIMIT && !l->fault.n)
        rc = OK;
    return rc ? failed(l, &e) : done(l);
}

static bool op_reopen(struct load *l, struct store_fixture *f)
{
    struct error e;
    l->op = (struct load_op){.kind = LOAD_REOPEN};
    go(l);
    store_close(f->st);
    f->st = NULL;
    return store_fixture_open(f, &e) ? failed(l, &e) : done(l);
}

/* ---- operations: bundles ----------------------------------------------------------------- */

static void bundle_path(const struct store_fixture *f, char out[96])
{
    snprintf(out, 96, "%s/a.bundle", f->dir);
}

static bool hash_bundle(const struct store_fixture *f, uint8_t out[HASH_BYTES])
{
    char path[96];
    AUTO(buf) struct buf b = BUF_INIT(1 << 26);
    bundle_path(f, path);
    if (fs_read_file(path, &b, NULL))
        return false;
    hash_bytes(NULL, b.data, b.len, out);
    return true;
}

static bool op_export(struct load *l, struct store_fixture *f, size_t slot)
{
    struct error e;
    char id[SESSION_ID_CAP], path[96];
    begin(l, LOAD_EXPORT, slot);
    if (!id_of(l, f->st, l->sessions[slot].name, id))
        return false;
    bundle_path(f, path);
    struct bundle_export x = {.session = id, .path = path};
    go(l);
    if (bundle_export(f->st, &x, NULL, &e))
        return failed(l, &e);
    came_back(l);
    if (!hash_bundle(f, l->export_hash))
        return wrong(l, "the bundle is not there");
    l->exported = l->sessions[slot];
    l->has_export = true;
    return done(l);
}

static bool op_import(struct load *l, struct store_fixture *f, size_t slot)
{
    struct error e;
    char path[96];
    /* Events from before a compaction stand at positions that the tape does not have: a bundle
     * with such is refused. */
    if (!l->has_export || l->exported.n_old)
        return true;
    struct load_session *s = begin(l, LOAD_IMPORT, slot);
    *s = l->exported;
    s->saved = 0;
    s->has_tip = false;
    s->n_open_calls = 0;
    snprintf(s->name, sizeof s->name, "s-%06u", l->n_names++);
    bundle_path(f, path);
    struct bundle_import m = {.path = path, .name = s->name, .cwd = "/w"};
    struct bundle_imported out;
    go(l);
    return bundle_import(f->st, &m, &out, &e) ? failed(l, &e) : done(l);
}

/* The file under the bundle's name is the acknowledged one; or, where an export was cut, any
 * whole bundle. */
static bool check_bundle(struct load *l, struct store_fixture *f, bool was_cut)
{
    struct error e;
    char path[96];
    uint8_t hash[HASH_BYTES];
    bool there = hash_bundle(f, hash);
    if (l->has_export && !there)
        return wrong(l, "an exported bundle is gone");
    if (!there || (l->has_export && memcmp(hash, l->export_hash, sizeof hash) == 0))
        return true;
    if (!was_cut)
        return wrong(l, "an exported bundle has changed");
    bundle_path(f, path);
    l->has_export = false;
    if (l->op.after[0].n_old)
        return fs_unlink(path, &e) ? wrong(l, "%s", e.msg) : true;
    struct bundle_import m = {.path = path, .name = "dry", .cwd = "/w", .dry_run = true};
    struct bundle_imported out;
    if (bundle_import(f->st, &m, &out, &e))
        return wrong(l, "a bundle that was cut is there and not whole: %s", e.msg);
    return fs_unlink(path, &e) ? wrong(l, "%s", e.msg) : true;
}

/* ---- the load ---------------------------------------------------------------------------- */

static enum load_kind draw_kind(struct load *l)
{
    static const uint8_t weights[LOAD_KINDS] = {
        [LOAD_NEW] = 3,     [LOAD_APPEND] = 26, [LOAD_FINISH_CALL] = 5, [LOAD_SAVE] = 24,
        [LOAD_RESTORE] = 6, [LOAD_FORK] = 10,   [LOAD_REWIND] = 4,      [LOAD_COMPACT] = 2,
        [LOAD_REMOVE] = 5,  [LOAD_GC] = 3,      [LOAD_PURGE] = 1,       [LOAD_EVICT] = 1,
        [LOAD_EXPORT] = 4,  [LOAD_IMPORT] = 2,  [LOAD_REOPEN] = 4};
    uint64_t at = load_draw(l, 100);
    enum load_kind kind = 0;
    while (at >= weights[kind])
        at -= weights[kind++];
    return kind;
}

bool load_step(struct load *l, struct store_fixture *f)
{
    return load_run(l, f, draw_kind(l));
}

bool load_run(struct load *l, struct store_fixture *f, enum load_kind kind)
{
    bool makes_one_more = kind == LOAD_FORK || kind == LOAD_REWIND || kind == LOAD_COMPACT;
    size_t free_slot = pick(l, LOAD_NEW), slot = pick(l, kind);
    if (free_slot == LOAD_SESSIONS && makes_one_more)
        slot = LOAD_SESSIONS;
    /* Where there is nothing to do there is something to make room or to begin with. */
    if (slot == LOAD_SESSIONS) {
        kind = free_slot == LOAD_SESSIONS ? LOAD_REMOVE : LOAD_NEW;
        slot = kind == LOAD_NEW ? free_slot : pick(l, kind);
    }
    switch (kind) {
    case LOAD_NEW:
        return op_new(l, f, slot);
    case LOAD_APPEND:
        return op_append(l, f, slot);
    case LOAD_FINISH_CALL:
        return op_finish_call(l, f, slot);
    case LOAD_SAVE:
        return op_save(l, f, slot);
    case LOAD_RESTORE:
        return op_restore(l, f, slot);
    case LOAD_FORK:
        return op_fork(l, f, slot, free_slot);
    case LOAD_REWIND:
    case LOAD_COMPACT:
        return op_cut(l, f, kind, slot, free_slot);
    case LOAD_REMOVE:
        return op_remove(l, f, slot);
    case LOAD_GC:
    case LOAD_PURGE:
    case LOAD_EVICT:
        return op_gc(l, f, kind);
    case LOAD_EXPORT:
        return op_export(l, f, slot);
    case LOAD_IMPORT:
        return op_import(l, f, slot);
    case LOAD_REOPEN:
        return op_reopen(l, f);
    case LOAD_KINDS:
        break;
    }
    abort();
}

static bool count_session(void *user, const struct session_info *s)
{
    (void)s;
    ++*(size_t *)user;
    return true;
}

/* A crash leaves nothing that looks like damage. Packs of which nothing was committed may be
 * refused or junk. */
static bool check_counters(struct load *l, struct store *st)
{
    struct store_counters c;
    store_count(st, &c);
    if (c.wal_lost)
        return wrong(l, "the -wal is said to be gone");
    if (c.tape_commits_lost)
        return wrong(l, "%llu commits are said to be lost",
                     (unsigned long long)c.tape_commits_lost);
    if (c.extents_damaged || c.rows_damaged || c.rows_dropped || c.commits_lost ||
        c.sessions_damaged || c.chunks_rebuilt || (c.packs_killed && !l->fault.fired))
        return wrong(l,
                     "damage: extents %llu rows %llu dropped %llu commits lost %llu sessions "
                     "%llu packs killed %llu chunks %llu",
                     (unsigned long long)c.extents_damaged, (unsigned long long)c.rows_damaged,
                     (unsigned long long)c.rows_dropped, (unsigned long long)c.commits_lost,
                     (unsigned long long)c.sessions_damaged, (unsigned long long)c.packs_killed,
                     (unsigned long long)c.chunks_rebuilt);
    return true;
}

bool load_check(struct load *l, struct store_fixture *f)
{
    struct error e;
    bool export_cut = l->op.begun && l->op.kind == LOAD_EXPORT;
    size_t n = 0, n_have = 0;
    if ((l->op.begun && !settle(l, f->st)) || !check_bundle(l, f, export_cut))
        return false;
    for (size_t i = 0; i < LOAD_SESSIONS; i++) {
        struct load_session have, *want = &l->sessions[i];
        char id[SESSION_ID_CAP];
        if (!want->exists)
            continue;
        n++;
        if (!read_session(l, f->st, want->name, &have, id))
            return false;
        if (!is_as_wanted(want, &have))
            return not_as_wanted(l, "check", want, &have);
        if (!op_restore(l, f, i))
            return false;
    }
    if (session_list(f->st, count_session, &n_have, &e))
        return wrong(l, "list: %s", e.msg);
    if (n != n_have)
        return wrong(l, "%zu sessions, want %zu", n_have, n);
    return check_counters(l, f->st);
}
