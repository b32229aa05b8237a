/* The arms that only a whole daemon has: stopped and started (X), killed (K), forked (F),
 * damaged on disk (I). What it computed is compared by session/verify with a process that never
 * stops, logits of every row. */
#include <assert.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/json.h"
#include "engine/tokenizer.h"
#include "evals/ask.h"
#include "evals/fidelity.h"
#include "evals/pyrandom.h"
#include "evals/run.h"
#include "evals/server.h"

#define MAX_TEXT ((size_t)15 << 20)
#define ANSWER 64       /* forced tokens of an ordinary turn */
#define LONG_ANSWER 256 /* of a turn that is killed */
#define DAMAGE_FROM 8192
#define DAMAGE_STRIDE 4096
#define MAX_NOTES 4 /* arms that one pass of session/verify answers for */

/* What an arm did, to be compared when the tape it stands on is. */
struct note {
    const char *arm;
    char what[64];
    json_t *wait;
    bool must; /* lose nothing: relost = 0 */
};

struct bench {
    const struct fidelity_options *o;
    const struct fidelity_tape *t;
    struct server s;
    struct tokenizer *tokenizer;
    struct pyrandom random;
    json_t *checks;
    struct note notes[MAX_NOTES];
    size_t n_notes;
    char id[27];
    double turn_ms; /* of a turn with a long answer */
    json_int_t fork_seq;
    unsigned n_turns;
};

static void bench_fini(struct bench *b)
{
    for (size_t i = 0; i < b->n_notes; i++)
        json_decref(b->notes[i].wait);
    server_fini(&b->s);
    tokenizer_free(b->tokenizer);
}

static double now_ms(void)
{
    return (double)clock_mono_ns(clock_real()) / 1e6;
}

static json_int_t figure(const json_t *o, const char *field)
{
    return json_integer_value(json_object_get(o, field));
}

/* ---- turns ------------------------------------------------------------------------------ */

/* Text of tape tokens [from, to), with n_forced tokens from `forced_at` on as the answer. */
static enum err start_turn(struct bench *b, const char *id, const char *message, uint64_t from,
                           uint64_t to, uint64_t forced_at, uint64_t n_forced, json_t **receipt,
                           struct error *e)
{
    AUTO(buf) struct buf text = BUF_INIT(MAX_TEXT);
    json_auto_t *ids = json_array();
    if (!ids)
        return err_set(e, ERR_NOMEM, "no memory for forced ids");
    enum err rc = tokenizer_decode(b->tokenizer, b->t->ids + from, to - from, &text, e);
    for (uint64_t i = 0; i < n_forced && !rc; i++) /* wraps: any tokens will do */
        if (json_array_append_new(ids,
                                  json_integer(b->t->ids[(forced_at + i) % b->t->view.n_ids])))
            rc = err_set(e, ERR_NOMEM, "no memory for forced ids");
    if (rc)
        return rc;
    return client_call(b->s.c, "session/prompt",
                       json_pack("{s:s, s:s, s:[{s:s, s:s%}], s:[{s:O}]}", "id", id,
                                 "clientMessageId", message, "content", "type", "text", "text",
                                 buf_str(&text), text.len, "forced", "ids", ids),
                       receipt, e);
}

static enum err wait_turn(struct bench *b, const char *id, json_t **out, struct error *e)
{
    enum err rc = client_call(b->s.c, "session/wait", json_pack("{s:s}", "id", id), out, e);
    return rc ? rc : run_check_ledger(json_object_get(*out, "ledger"), e);
}

static enum err turn(struct bench *b, const char *id, uint64_t from, uint64_t to,
                     uint64_t n_forced, json_t **out, struct error *e)
{
    char message[24];
    snprintf(message, sizeof message, "m%u", b->n_turns++);
    enum err rc = start_turn(b, id, message, from, to, to, n_forced, NULL, e);
    return rc ? rc : wait_turn(b, id, out, e);
}

/* ---- checks ----------------------------------------------------------------------------- */

static void note(struct bench *b, const char *arm, const char *what, json_t *wait, bool must)
{
    assert(b->n_notes < MAX_NOTES);
    struct note *n = &b->notes[b->n_notes++];
    *n = (struct note){.arm = arm, .wait = json_incref(wait), .must = must};
    snprintf(n->what, sizeof n->what, "%s", what);
}

/* verify's answer and the ledger of the arm's turn as a check. */
static enum err add_check(struct bench *b, const struct note *n, const json_t *v,
                          struct error *e)
{
    const json_t *ledger = json_object_get(n->wait, "ledger");
    const bool equal = json_is_true(json_object_get(v, "equal"));
    const bool kept = !n->must || figure(ledger, "relost") == 0;
    json_t *j =
        json_pack("{s:s, s:s, s:I, s:I, s:i, s:i, s:b, s:I, s:O, s:O}", "arm", n->arm, "what",
                  n->what, "position", figure(v, "tokens"), "rows", figure(v, "rows"),
                  "different", !equal, "missing", !kept, "equal", equal && kept, "replayed",
                  figure(ledger, "replayed"), "ms", json_object_get(v, "ms"), "ledger", ledger);
    if (j && json_object_get(n->wait, "resume"))
        json_object_set(j, "resume", json_object_get(n->wait, "resume"));
    if (j && json_object_get(v, "firstMismatch"))
        json_object_set(j, "first_mismatch", json_object_get(v, "firstMismatch"));
    return json_array_append_new(b->checks, j) ? err_set(e, ERR_NOMEM, "no memory for a check")
                                               : OK;
}

/* One pass over a session's whole tape answers for every arm noted since the last: their turns
 * all stand on it. (A pass costs what the session cost: at 64k tokens most of the run.) */
static enum err compare(struct bench *b, const char *id, struct error *e)
{
    json_auto_t *v = NULL;
    if (!b->n_notes)
        return OK;
    enum err rc = client_call(b->s.c, "session/verify", json_pack("{s:s}", "id", id), &v, e);
    if (rc)
        return err_wrap(e, rc, "%s: verify", b->notes[b->n_notes - 1].what);
    for (size_t i = 0; i < b->n_notes; i++) {
        rc = rc ? rc : add_check(b, &b->notes[i], v, e);
        json_decref(b->notes[i].wait);
    }
    b->n_notes = 0;
    return rc;
}

/* ---- the arms --------------------------------------------------------------------------- */

static enum err open_session(struct bench *b, struct error *e)
{
    const struct ask_session s = {.name = "fidelity", .max_tokens = 1 << 20};
    const uint64_t n = b->o->length * 9 / 10;
    json_auto_t *first = NULL, *second = NULL, *info = NULL;
    enum err rc = ask_open(b->s.c, &s, b->id, e);
    if (!rc)
        rc = turn(b, b->id, 0, n, ANSWER, &first, e);
    if (!rc)
        rc = client_call(b->s.c, "session/get", json_pack("{s:s}", "id", b->id), &info, e);
    b->fork_seq = figure(info, "lastSeq");
    const double t0 = now_ms();
    if (!rc)
        rc = turn(b, b->id, n, n + (b->o->length - n) / 2, LONG_ANSWER, &second, e);
    b->turn_ms = now_ms() - t0;
    return rc;
}

static enum err restarted(struct bench *b, struct error *e)
{
    json_auto_t *wait = NULL;
    const uint64_t n = b->o->length;
    enum err rc = server_stop(&b->s, e);
    if (!rc)
        rc = server_start(&b->s, e);
    if (!rc)
        rc = turn(b, b->id, n - n / 20, n, ANSWER, &wait, e);
    if (!rc)
        note(b, "X", "daemon stopped and started", wait, true);
    return rc;
}

/* In the middle of a turn, which then goes on by itself. */
static enum err killed(struct bench *b, struct error *e)
{
    enum err rc = OK;
    json_t *last = NULL;
    for (uint32_t i = 0; i < b->o->n_kills && !rc; i++) {
        char message[24];
        json_auto_t *receipt = NULL, *again = NULL, *wait = NULL;
        const double ms = pyrandom_real(&b->random) * b->turn_ms;
        const struct timespec t = {(time_t)(ms / 1e3), (long)(ms * 1e6) % 1000000000};
        const uint64_t at = (uint64_t)(pyrandom_real(&b->random) * (double)b->o->length / 2);
        snprintf(message, sizeof message, "k%u", i);
        rc = start_turn(b, b->id, message, at, at + 200, at + 200, LONG_ANSWER, &receipt, e);
        nanosleep(&t, NULL);
        if (!rc)
            rc = server_kill(&b->s, e);
        if (!rc)
            rc = server_start(&b->s, e);
        if (!rc)
            rc = start_turn(b, b->id, message, at, at + 200, at + 200, LONG_ANSWER, &again, e);
        if (!rc && !json_equal(receipt, again))
            rc = err_set(e, ERR_CORRUPT, "kill %u: an acknowledged turn was lost", i);
        if (!rc)
            rc = wait_turn(b, b->id, &wait, e);
        if (!rc && figure(json_object_get(wait, "ledger"), "relost"))
            rc = err_set(e, ERR_CORRUPT, "kill %u: %lld tokens relost", i,
                         (long long)figure(json_object_get(wait, "ledger"), "relost"));
        json_decref(last);
        last = json_incref(wait);
    }
    char what[64];
    snprintf(what, sizeof what, "daemon killed %u times in a turn", b->o->n_kills);
    if (!rc)
        note(b, "K", what, last, true);
    json_decref(last);
    return rc;
}

/* A turn on a fork, whose id is left in id [27]. */
static enum err forked(struct bench *b, bool inside, char *id, struct error *e)
{
    json_auto_t *fork = NULL, *wait = NULL;
    const char *text;
    json_t *params = json_pack("{s:s}", "id", b->id);
    if (inside && params)
        json_object_set_new(params, "atSeq", json_integer(b->fork_seq));
    enum err rc = client_call(b->s.c, "session/fork", params, &fork, e);
    if (!rc)
        rc = json_need_str(fork, "id", &text, NULL, e);
    if (rc)
        return rc;
    snprintf(id, 27, "%s", text);
    rc = turn(b, id, 100, 400, ANSWER, &wait, e);
    if (!rc)
        note(b, "F", inside ? "fork inside history" : "fork at the end", wait, true);
    return rc;
}

/* One bit in every DAMAGE_STRIDE bytes of a pack behind its first page. */
static enum err damage_pack(const char *path, uint64_t *n, struct error *e)
{
    uint64_t size = 0;
    AUTO_FD int fd = -1;
    enum err rc = fs_open(path, O_RDWR, 0, &fd, e);
    if (!rc)
        rc = fs_size(fd, path, &size, e);
    for (uint64_t at = DAMAGE_FROM; at < size && !rc; at += DAMAGE_STRIDE) {
        uint8_t byte;
        rc = fs_pread(fd, path, &byte, 1, at, e);
        byte ^= 0x10;
        if (!rc)
            rc = fs_pwrite(fd, path, &byte, 1, at, e);
        ++*n;
    }
    return rc;
}

static enum err damage(const struct bench *b, uint64_t *n, struct error *e)
{
    char dir[FS_PATH_BYTES], path[FS_PATH_BYTES];
    enum err rc = fs_path(dir, sizeof dir, e, "%s/packs", b->s.store);
    DIR *d = rc ? NULL : opendir(dir);
    if (!d)
        return rc ? rc : err_set(e, ERR_NOTFOUND, "%s", dir);
    for (struct dirent *f; !rc && (f = readdir(d));) {
        if (f->d_name[0] == '.')
            continue;
        rc = fs_path(path, sizeof path, e, "%s/%s", dir, f->d_name);
        if (!rc)
            rc = damage_pack(path, n, e);
    }
    closedir(d);
    return rc ? rc : *n ? OK : err_set(e, ERR_NOTFOUND, "%s: no pack to damage", dir);
}

static enum err damaged(struct bench *b, const char *id, struct error *e)
{
    json_auto_t *wait = NULL;
    uint64_t n = 0;
    enum err rc = server_stop(&b->s, e);
    if (!rc)
        rc = damage(b, &n, e);
    if (!rc)
        rc = server_start(&b->s, e);
    if (!rc)
        rc = turn(b, id, 400, 600, ANSWER, &wait, e);
    if (!rc && figure(json_object_get(wait, "ledger"), "relost") == 0)
        rc = err_set(e, ERR_CORRUPT, "%llu bits of packs were turned and nobody noticed",
                     (unsigned long long)n);
    if (!rc)
        note(b, "I", "bits turned in every pack", wait, false);
    return rc;
}

/* X, K and a fork at the end stand on one tape; the fork inside and I on another. */
static enum err all_arms(struct bench *b, struct error *e)
{
    char id[27];
    const char *arms = b->o->arms;
    enum err rc = open_session(b, e);
    memcpy(id, b->id, sizeof id);
    if (!rc && strchr(arms, 'X'))
        rc = restarted(b, e);
    if (!rc && strchr(arms, 'K') && b->o->n_kills)
        rc = killed(b, e);
    if (!rc && strchr(arms, 'F'))
        rc = forked(b, false, id, e);
    if (!rc)
        rc = compare(b, id, e);
    if (!rc && strchr(arms, 'F'))
        rc = forked(b, true, id, e);
    if (!rc && strchr(arms, 'I'))
        rc = damaged(b, id, e);
    return rc ? rc : compare(b, id, e);
}

enum err fidelity_daemon(const struct fidelity_options *o, const struct fidelity_tape *t,
                         json_t *checks, struct error *e)
{
    AUTO(bench) struct bench b = {.o = o, .t = t, .checks = checks, .s = SERVER_INIT};
    pyrandom_init(&b.random, o->seed);
    enum err rc = tokenizer_open(&b.tokenizer, o->model, e);
    if (!rc)
        rc = server_make(&b.s, o->work, e);
    b.s.model = o->model;
    b.s.wake_fd = o->wake_fd;
    if (!rc)
        rc = server_start(&b.s, e);
    return rc ? rc : all_arms(&b, e);
}
