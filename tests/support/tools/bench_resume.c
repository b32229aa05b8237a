/* bench_resume -m MODEL [--llama-server PATH --llama-model GGUF]: a session whose state is on
 * disk, nothing of it in the page cache, resumed to its first token; in turns with llama.cpp's
 * slot restore of as many tokens.
 *
 * Ours: the daemon has been restarted and answers. A client connects, attaches to the session
 * and prompts it; measured is until it has the first delta of the answer, through the commits
 * that make the prompt durable. The resume must be exact: every token of the tape restored.
 *
 * Theirs: llama-server has been restarted, answers and is warmed up. The saved slot is
 * restored, then the same number of tokens as our prompt took is completed behind the restored
 * ones by one token; measured is until that answer is there.
 *
 * Neither includes starting and opening the model, whose file is cached for both. A restore
 * whose tokens are then computed again, all or some, is a failure on either side.
 *
 * JSON lines of figures on stdout (tests/support/ceilings.h), what the times are made of on
 * stderr. Exit code 1: less than 5 times sooner. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/options.h"
#include "engine/tokenizer.h"
#include "tests/support/bench.h"
#include "tests/support/ceilings.h"
#include "tests/support/llama_server.h"

#define SOONER 5.0
#define MAX_REPS 32
#define SLOT "slot"
#define PROMPT "go on"

struct resume_options {
    const char *model, *llama_server, *llama_model;
    int64_t tokens, reps;
};

#define AT(member) offsetof(struct resume_options, member)
static const struct option table[] = {
    {"model", 'm', OPTION_STRING, AT(model), "DIR", .help = "checkpoint", .required = true},
    {"llama-server", 0, OPTION_STRING, AT(llama_server), "PATH", .help = "llama.cpp's server"},
    {"llama-model", 0, OPTION_STRING, AT(llama_model), "GGUF", .help = "its model"},
    {"tokens", 0, OPTION_INT, AT(tokens), "N", 256, 1 << 20, .help = "default 8192"},
    {"reps", 0, OPTION_INT, AT(reps), "N", 1, MAX_REPS, .help = "default 5"},
};
static const struct command command = {"bench_resume",
                                       "",
                                       "a session resumed from disk to its first token",
                                       OPTION_TABLE(table),
                                       OPTION_TABLE_EMPTY,
                                       0,
                                       0};

static double ms_since(uint64_t from)
{
    return (double)(bench_now_ns() - from) / 1e6;
}

/* A number inside of objects inside of objects; keys end with NULL. It has to be there. */
static double number(const json_t *o, const char *a, const char *b)
{
    const json_t *v = json_object_get(o, a);

    if (b)
        v = json_object_get(v, b);
    if (!json_is_number(v))
        bench_fail("an answer has no %s%s%s", a, b ? "." : "", b ? b : "");
    return json_number_value(v);
}

/* ---- ours -------------------------------------------------------------------------------- */

struct ours {
    struct bench_daemon d;
    char id[27];
    uint64_t tape;  /* tokens restored, at the last resume */
    uint64_t n_new; /* tokens of the prompt behind them */
    uint64_t disk;  /* bytes of the store */
    double ms[MAX_REPS];
};

struct watcher {
    uint64_t first_ns; /* of the first delta */
};

static void on_notify(void *user, const char *method, const json_t *params)
{
    struct watcher *w = user;

    (void)params;
    if (!strcmp(method, "session/delta") && !w->first_ns)
        w->first_ns = bench_now_ns();
}

static void encode(const struct tokenizer *t, const char *text, size_t n, struct ids *out)
{
    struct error e;

    if (tokenizer_encode(t, text, n, out, &e))
        bench_fail("%s", e.msg);
}

/* Lines of a log of at least n_tokens. The id of the letter that answers are made of. */
static uint32_t make_prompt(const char *model, char *out, size_t cap, size_t n_tokens)
{
    struct tokenizer *t = NULL;
    struct error e;
    AUTO(ids) struct ids ids = IDS_INIT(1 << 22), letter = IDS_INIT(16);

    if (tokenizer_open(&t, model, &e))
        bench_fail("%s", e.msg);
    for (unsigned line = 0, n = 0; ids.n < n_tokens; line++) {
        unsigned from = n;
        n += (unsigned)snprintf(out + n, cap - n, "importer: record %u, sum %08x\n",
                                line * 7919 % 10007, line * 2654435761u);
        encode(t, out + from, n - from, &ids);
    }
    encode(t, "a", 1, &letter);
    if (letter.n != 1)
        bench_fail("the letter is %zu tokens", letter.n);
    tokenizer_free(t);
    return letter.v[0];
}

static void prompt(struct client *c, const char *id, const char *text)
{
    json_decref(bench_call(
        c, "session/prompt",
        json_pack("{s:s, s:[{s:s, s:s}]}", "id", id, "content", "type", "text", "text", text)));
}

/* A session of o->tokens tokens or a little more, its state saved. One letter answers: a random
 * model may draw half a character otherwise, which no delta shows. */
static void ours_make(struct ours *s, const struct resume_options *o)
{
    size_t cap = (size_t)o->tokens * 16 + 256;
    char *text = malloc(cap), letter[16];

    if (!text)
        bench_fail("no memory");
    snprintf(letter, sizeof(letter), "%u", make_prompt(o->model, text, cap, (size_t)o->tokens));
    bench_start(&s->d, o->model, NULL);
    struct client *c = bench_connect(&s->d, NULL, NULL);
    bench_session(&s->d, c,
                  json_pack("{s:[], s:s, s:i, s:{s:i}}", "tools", "thinkingMode", "chat",
                            "maxTokens", 1, "logitBias", letter, 100),
                  s->id);
    prompt(c, s->id, text);
    json_decref(bench_wait(c, s->id, "length"));
    client_free(c);
    free(text);
    bench_halt(&s->d);
}

static void ours_tell(const json_t *done, double ms)
{
    const json_t *l = json_object_get(done, "ledger"), *r = json_object_get(done, "resume");

    fprintf(stderr,
            "bench_resume: agentd: %.1f ms: find %.1f, read %.1f (%.1f MB), index %.1f, "
            "import %.1f, prefill %.1f (%.0f tokens), first decode %.1f\n",
            ms, number(r, "ms", "find"), number(r, "ms", "read"),
            number(r, "bytes_read", NULL) / 1e6, number(r, "ms", "index"),
            number(r, "ms", "import"), number(l, "ms", "prefill"), number(l, "prefilled", NULL),
            number(l, "ms", "first_decode"));
}

static double ours_measure(struct ours *s)
{
    struct watcher w = {0};
    struct error e;

    bench_restart(&s->d);
    s->disk = bench_drop_cache(s->d.store);
    uint64_t start = bench_now_ns();
    struct client *c = bench_connect(&s->d, on_notify, &w);
    json_decref(bench_call(c, "session/attach", json_pack("{s:s}", "id", s->id)));
    prompt(c, s->id, PROMPT);
    while (!w.first_ns)
        if (client_poll(c, 600000, &e))
            bench_fail("no token comes: %s", e.msg);
    double ms = (double)(w.first_ns - start) / 1e6;
    json_t *done = bench_wait(c, s->id, "length");
    const json_t *r = json_object_get(done, "resume");
    ours_tell(done, ms);
    s->tape = (uint64_t)number(r, "tape", NULL);
    s->n_new = (uint64_t)number(done, "ledger", "prefilled");
    if ((uint64_t)number(r, "restored", NULL) != s->tape)
        bench_fail("of %llu tokens only %.0f were restored", (unsigned long long)s->tape,
                   number(r, "restored", NULL));
    json_decref(done);
    client_free(c);
    bench_halt(&s->d);
    return ms;
}

/* ---- theirs ------------------------------------------------------------------------------ */

struct theirs {
    char dir[64], slots[80], log[80];
    struct llama_options o;
    uint64_t n;    /* tokens saved */
    uint64_t disk; /* bytes of their file */
    double ms[MAX_REPS];
};

/* The first n of one order of ids: letters, in the vocabulary of make_llama_model.py. */
static json_t *ids_until(uint64_t n)
{
    json_t *a = json_array();

    for (uint64_t i = 0; i < n; i++)
        json_array_append_new(
            a, json_integer(3 + 'A' + (json_int_t)((i * 2654435761u) >> 12) % 26));
    return a;
}

static json_t *complete(const struct llama_server *s, uint64_t n)
{
    return llama_post(s, "/completion",
                      json_pack("{s:o, s:i, s:b, s:i}", "prompt", ids_until(n), "n_predict", 1,
                                "cache_prompt", 1, "id_slot", 0));
}

static json_t *slot(const struct llama_server *s, const char *action)
{
    char path[64];

    snprintf(path, sizeof(path), "/slots/0?action=%s", action);
    return llama_post(s, path, json_pack("{s:s}", "filename", SLOT));
}

static void theirs_make(struct theirs *t, const struct resume_options *o, uint64_t n)
{
    const char *tmp = getenv("TMPDIR");
    struct llama_server s;
    struct error e;

    snprintf(t->dir, sizeof(t->dir), "%s/agentd-bench-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(t->dir))
        bench_fail("%s: no folder can be made there", t->dir);
    if (fs_path(t->slots, sizeof(t->slots), &e, "%s/slots", t->dir) ||
        fs_path(t->log, sizeof(t->log), &e, "%s/log", t->dir))
        bench_fail("%s", e.msg);
    if (mkdir(t->slots, 0700))
        bench_fail("%s cannot be made", t->slots);
    t->o = (struct llama_options){.program = o->llama_server,
                                  .model = o->llama_model,
                                  .slots = t->slots,
                                  .log = t->log,
                                  .threads = (unsigned)sysconf(_SC_NPROCESSORS_ONLN),
                                  .context = (unsigned)(2 * o->tokens)};
    t->n = n;
    llama_start(&s, &t->o);
    json_decref(complete(&s, n));
    json_t *saved = slot(&s, "save");
    if ((uint64_t)number(saved, "n_saved", NULL) != n)
        bench_fail("llama-server saved %.0f tokens of %llu", number(saved, "n_saved", NULL),
                   (unsigned long long)n);
    json_decref(saved);
    llama_stop(&s);
}

static double theirs_measure(struct theirs *t, uint64_t n_new)
{
    struct llama_server s;

    llama_start(&s, &t->o);
    t->disk = bench_drop_cache(t->slots);
    uint64_t start = bench_now_ns();
    json_t *restored = slot(&s, "restore");
    double restore_ms = ms_since(start);
    json_t *done = complete(&s, t->n + n_new);
    double ms = ms_since(start);
    double cached = number(done, "timings", "cache_n");
    if ((uint64_t)number(restored, "n_restored", NULL) != t->n || (uint64_t)cached != t->n)
        bench_fail("llama-server restored %.0f tokens of %llu and used %.0f of them",
                   number(restored, "n_restored", NULL), (unsigned long long)t->n, cached);
    fprintf(
        stderr,
        "bench_resume: llama-server: %.1f ms: restore %.1f (%.1f MB), %.0f tokens computed in "
        "%.1f\n",
        ms, restore_ms, (double)t->disk / 1e6, number(done, "timings", "prompt_n"),
        number(done, "timings", "prompt_ms"));
    json_decref(restored);
    json_decref(done);
    llama_stop(&s);
    return ms;
}

/* ---- both -------------------------------------------------------------------------------- */

static void print(const char *name, double ms, double ratio, double limit)
{
    figure_print(&(struct figure){.group = "resume",
                                  .name = name,
                                  .unit = "ms",
                                  .against = ratio > 0 ? "theirs/ours" : "",
                                  .value = ms,
                                  .ratio = ratio,
                                  .limit = limit,
                                  .at_least = true});
}

/* In turns; the ratio is the median of those of each turn. */
static int compare(struct ours *s, struct theirs *t, const struct resume_options *o)
{
    double ratios[MAX_REPS], ratio = 0;
    size_t reps = (size_t)o->reps;
    char name[64];

    (void)ours_measure(s); /* says how long tape and prompt are */
    if (o->llama_server)
        theirs_make(t, o, s->tape);
    for (size_t i = 0; i < reps; i++) {
        s->ms[i] = ours_measure(s);
        if (o->llama_server)
            ratios[i] = (t->ms[i] = theirs_measure(t, s->n_new)) / s->ms[i];
    }
    if (o->llama_server) {
        ratio = median(ratios, reps);
        print("llama-server's slot restore", median(t->ms, reps), 0, 0);
        bench_remove(t->dir);
    }
    snprintf(name, sizeof(name), "%llu tokens, cold, to the first",
             (unsigned long long)s->tape);
    print(name, median(s->ms, reps), ratio, o->llama_server ? SOONER : 0);
    return o->llama_server && ratio < SOONER;
}

int main(int argc, char **argv)
{
    struct resume_options o = {.tokens = 8192, .reps = 5};
    struct options parsed;
    struct ours s = {0};
    struct theirs t = {0};
    struct error e;

    if (options_parse(&command, argc, (const char *const *)argv, &o, &parsed, &e))
        bench_fail("bench_resume: %s", e.msg);
    if (parsed.help) {
        options_usage(&command, "bench_resume", stdout);
        return 0;
    }
    if (!o.llama_server != !o.llama_model)
        bench_fail("bench_resume: --llama-server and --llama-model go together");
    ours_make(&s, &o);
    int code = compare(&s, &t, &o);
    bench_remove(s.d.dir);
    return code;
}
