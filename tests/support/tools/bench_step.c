/* bench_step -m MODEL [--tokens N] [--result N] [--threads N]: what the daemon adds to a tool
 * step on a long session.
 *
 * A session of the daemon gets N tokens (default 119,000) and their state from the store, into
 * which this program writes them while the daemon is stopped: rows of 8,192 tokens, repeated.
 * The daemon resumes it and has to say that all of it came from disk. Then, in turns: a tool
 * whose result makes a segment of --result tokens (default 875), from its end to the first
 * token of the run behind it, as a client sees that; and a segment of as many tokens, frame and
 * all, and one decoded token in an engine of this program, on the same sequence. The ratio is
 * the median of --reps (default 5); exit code 1 if it is above 1.15.
 *
 * --threads N lets both use so many CPUs. With one, times are CPU times of the whole processes;
 * that of the daemon from some seconds after the tool has started, which sleeps as long, so
 * that saving the step before, which goes on beside a tool, is not in it. */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/options.h"
#include "engine/chat.h"
#include "engine/tokenizer.h"
#include "sessions/head.h"
#include "sessions/store.h"
#include "sessions/tape.h"
#include "tests/support/bench.h"
#include "tests/support/ceilings.h"
#include "tests/support/long_state.h"

#define MAX_REPS 64
#define REPEATED 8192
#define MOST_OF_COMPUTE 1.15 /* the limit in docs/performance.md */
#define MAX_OUTPUT ((size_t)1 << 20)
#define TOOL_SECONDS "4"
#define TOOL "sleep " TOOL_SECONDS "; cat output; date +%s%N > end\n"
#define AFTER_SECONDS 3 /* by then the step before is saved */
#define CALL                                                                                     \
    "ok</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"run\">\n<｜DSML｜ parameter " \
    "name=\"command\" string=\"true\">sh tool.sh</｜DSML｜ parameter>\n</｜DSML｜ "          \
    "invoke>\n</｜DSML｜ calls>"

struct step {
    const char *model;
    int64_t tokens, result, threads, reps;
    struct bench_daemon daemon;
    char session[27];
    struct engine *engine;
};

#define AT(member) offsetof(struct step, member)
static const struct option table[] = {
    {"model", 'm', OPTION_STRING, AT(model), "DIR", .help = "checkpoint", .required = true},
    {"tokens", 0, OPTION_INT, AT(tokens), "N", 1000, 1000000, .help = "default 119000"},
    {"result", 0, OPTION_INT, AT(result), "N", 100, 8000, .help = "default 875"},
    {"threads", 0, OPTION_INT, AT(threads), "N", 0, 256, .help = "CPUs to use (default: all)"},
    {"reps", 0, OPTION_INT, AT(reps), "N", 1, MAX_REPS, .help = "default 5"},
};
static const struct command command = {"bench_step",
                                       "",
                                       "a tool step on a long session",
                                       OPTION_TABLE(table),
                                       OPTION_TABLE_EMPTY,
                                       0,
                                       0};

/* Pools take as many threads as their process may use CPUs: the daemon inherits this. */
static void limit_cpus(int64_t n)
{
    cpu_set_t may, use;
    if (!n)
        return;
    CPU_ZERO(&use);
    if (sched_getaffinity(0, sizeof(may), &may))
        bench_fail("no CPU affinity");
    for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&use) < n; cpu++)
        if (CPU_ISSET(cpu, &may))
            CPU_SET(cpu, &use);
    if (CPU_COUNT(&use) != n || sched_setaffinity(0, sizeof(use), &use))
        bench_fail("there are not %d CPUs to use", (int)n);
}

/* Nanoseconds that a process has used, all its threads together. */
static uint64_t cpu_ns(pid_t pid)
{
    clockid_t clock;
    struct timespec t;
    if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &t))
        bench_fail("the CPU time of process %d cannot be read", (int)pid);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Wall and CPU time, or how long something took in both. */
struct moment {
    double wall, cpu;
};

static double pick(const struct step *b, struct moment m)
{
    return b->threads == 1 ? m.cpu : m.wall;
}

/* ---- text ---------------------------------------------------------------------------------
 */

/* Lines of a log from line *line on, of about n_tokens. */
static size_t write_log(const char *model, size_t n_tokens, unsigned *line, char *out)
{
    struct tokenizer *t = NULL;
    size_t n = 0;
    struct error e;
    AUTO(ids) struct ids ids = IDS_INIT(MAX_OUTPUT);
    if (tokenizer_open(&t, model, &e))
        bench_fail("%s", e.msg);
    for (; ids.n < n_tokens; ++*line) {
        size_t from = n;
        if (MAX_OUTPUT - n < 100)
            bench_fail("%zu bytes are only %zu tokens", n, ids.n);
        n += (size_t)snprintf(out + n, 100, "importer: record %u, sum %08x, done in %u ms\n",
                              *line * 7919 % 10007, *line * 2654435761u, *line * 31 % 997);
        if (tokenizer_encode(t, out + from, n - from, &ids, &e))
            bench_fail("%s", e.msg);
    }
    tokenizer_free(t);
    return n;
}

/* Tokens of the segment that gives this result. */
static size_t segment_tokens(const char *model, const char *result, size_t n)
{
    struct tokenizer *t = NULL;
    struct chat_ids chat;
    struct error e;
    AUTO(ids) struct ids ids = IDS_INIT(MAX_OUTPUT);
    if (tokenizer_open(&t, model, &e) || chat_ids_find(&chat, t, &e))
        bench_fail("%s", e.msg);
    struct chat_segment s = CHAT_SEGMENT_INIT(&chat, true, 2 * MAX_OUTPUT);
    if (chat_segment_tool_result(&s, result, n, &e) || chat_segment_finish(&s, t, &ids, &e))
        bench_fail("%s", e.msg);
    chat_segment_fini(&s);
    tokenizer_free(t);
    return ids.n;
}

static void write_file(const struct step *b, const char *name, const char *text, size_t n)
{
    char path[200];
    snprintf(path, sizeof(path), "%s/%s", b->daemon.work, name);
    FILE *f = fopen(path, "we");
    if (!f || fwrite(text, 1, n, f) != n || fclose(f))
        bench_fail("%s cannot be written", path);
}

static double tool_end(const struct step *b)
{
    char path[200], text[32] = "";
    snprintf(path, sizeof(path), "%s/end", b->daemon.work);
    FILE *f = fopen(path, "re");
    if (!f || !fgets(text, sizeof(text), f))
        bench_fail("the tool left no time");
    fclose(f);
    return (double)strtoull(text, NULL, 10) * 1e-9;
}

/* ---- through the daemon -------------------------------------------------------------------
 */

struct watcher {
    pid_t pid;
    bool has_call, has_result, has_token;
    struct moment first; /* when the first token came */
};

static void on_notify(void *user, const char *method, const json_t *params)
{
    struct watcher *w = user;
    const char *kind =
        json_string_value(json_object_get(json_object_get(params, "item"), "kind"));
    bool is_event = !strcmp(method, "session/event");
    w->has_call = w->has_call || (is_event && kind && !strcmp(kind, "tool_call"));
    w->has_result = w->has_result || (is_event && kind && !strcmp(kind, "tool_result"));
    if (!strcmp(method, "session/delta") && w->has_result && !w->has_token) {
        w->has_token = true;
        w->first =
            (struct moment){(double)bench_now_ns() * 1e-9, (double)cpu_ns(w->pid) * 1e-9};
    }
}

static void wait_for(struct client *c, const bool *flag, const char *what)
{
    struct error e;
    while (!*flag)
        if (client_poll(c, 1200000, &e))
            bench_fail("%s: %s", what, e.msg);
}

static void prompt(const struct step *b, struct client *c, const char *text, size_t n,
                   json_t *forced)
{
    json_decref(bench_call(c, "session/prompt",
                           json_pack("{s:s, s:[{s:s, s:s%}], s:o}", "id", b->session, "content",
                                     "type", "text", "text", text, n, "forced", forced)));
}

/* A turn with a tool in it: from the tool's end to the first token. */
static struct moment run_step(struct step *b)
{
    struct watcher w = {.pid = bench_pid(&b->daemon)};
    struct client *c = bench_connect(&b->daemon, on_notify, &w);
    struct error e;
    json_decref(bench_call(c, "session/attach", json_pack("{s:s}", "id", b->session)));
    prompt(b, c, "go", 2, json_pack("[{s:s}, {s:s}]", "text", CALL, "text", "ok</think>done"));
    wait_for(c, &w.has_call, "no call comes");
    sleep(AFTER_SECONDS);
    double before = (double)cpu_ns(w.pid) * 1e-9;
    wait_for(c, &w.has_token, "no token comes");
    json_decref(bench_wait(c, b->session, "end"));
    if (client_poll(c, 0, &e) && e.code != ERR_TIMEOUT)
        bench_fail("%s", e.msg);
    client_free(c);
    return (struct moment){w.first.wall - tool_end(b), w.first.cpu - before};
}

/* ---- the same in an engine ----------------------------------------------------------------
 */

static struct moment moment_now(void)
{
    return (struct moment){(double)clock_mono_ns(clock_real()) * 1e-9,
                           (double)cpu_ns(getpid()) * 1e-9};
}

/* A segment of n tokens and one token decoded behind it. */
static struct moment compute(struct step *b, struct seq *s, size_t n)
{
    const struct generate_options g = {.sampling = {.seed = 1, .top_p = 1}, .max_tokens = 1};
    uint32_t *ids = calloc(n, sizeof(*ids));
    struct error e;
    if (!ids)
        bench_fail("no memory for %zu ids", n);
    for (size_t i = 0; i < n; i++)
        ids[i] = long_state_id(seq_position(s) + i);
    struct moment start = moment_now();
    if (seq_input(s, ids, n, PREFILL_CED, &e))
        bench_fail("%s", e.msg);
    bench_run(b->engine);
    if (seq_generate(s, &g, &e))
        bench_fail("%s", e.msg);
    bench_run(b->engine);
    struct moment end = moment_now();
    free(ids);
    return (struct moment){end.wall - start.wall, end.cpu - start.cpu};
}

/* ---- both ---------------------------------------------------------------------------------
 */

/* A counter of the session's turns so far: "prefilled", "restored". */
static uint64_t used(const struct step *b, const char *counter)
{
    struct client *c = bench_connect(&b->daemon, NULL, NULL);
    json_t *u = bench_call(c, "session/usage", json_pack("{s:s}", "id", b->session));
    json_int_t n = json_integer_value(json_object_get(json_object_get(u, "total"), counter));
    json_decref(u);
    client_free(c);
    return (uint64_t)n;
}

/* As the daemon opens it, so that the state is of the same model. */
static struct seq *open_engine(struct step *b)
{
    const struct engine_options o = {.digests = true};
    struct error e;
    if (engine_open_model(&b->engine, b->model, &o, &e))
        bench_fail("%s", e.msg);
    return long_state_repeat(b->engine, REPEATED, (uint64_t)b->tokens);
}

static void save_tape(const struct step *b, struct store *st)
{
    AUTO(long_tape) struct long_tape t = {0};
    struct error e;
    long_tape_make(&t, REPEATED, (uint64_t)b->tokens);
    struct tape_segment *segments = calloc(t.view.n_segments, sizeof(*segments));
    if (!segments)
        bench_fail("no memory for a tape");
    for (size_t i = 0; i < t.view.n_segments; i++)
        segments[i].seg = t.segments[i];
    const struct tape_commit c = {.session = b->session,
                                  .ids = t.ids,
                                  .n_ids = t.view.n_ids,
                                  .segments = segments,
                                  .n_segments = t.view.n_segments};
    if (tape_commit(st, &c, NULL, &e))
        bench_fail("%s", e.msg);
    free(segments);
}

static void save_state(const struct step *b, struct store *st, const struct seq *s)
{
    const struct state_layout *l = engine_describe(b->engine)->layout;
    struct seq_digest digest = seq_digest(s);
    void *planes[STATE_MAX_PLANES], *tip = malloc(l->tip_bytes);
    struct head_save h = {
        .session = b->session, .layout = l, .to = (uint64_t)b->tokens, .tip = tip};
    struct error e;
    for (uint32_t p = 0; p < l->n_planes; p++) {
        uint64_t rows = state_rows(&l->planes[p], h.to);
        h.plane[p] = planes[p] = malloc(rows * l->planes[p].row_bytes);
        if (!planes[p] || seq_export_rows(s, p, 0, rows, planes[p], &e))
            bench_fail("plane %s cannot be exported", l->planes[p].name);
    }
    if (!tip || seq_export_tip(s, tip, &e))
        bench_fail("the tip cannot be exported");
    memcpy(h.digest, digest.d, sizeof(h.digest));
    h.digest_rows = digest.is_partial ? HEAD_DIGEST_PARTIAL : digest.n_rows;
    if (head_save(st, &h, NULL, &e))
        bench_fail("%s", e.msg);
    for (uint32_t p = 0; p < l->n_planes; p++)
        free(planes[p]);
    free(tip);
}

/* A new session of the daemon gets what `s` has. */
static void fill_session(struct step *b, const struct seq *s)
{
    char db[200], packs[200], state[200];
    struct client *c = bench_connect(&b->daemon, NULL, NULL);
    struct store *st = NULL;
    struct error e;
    bench_session(&b->daemon, c, json_pack("{s:s, s:[s]}", "approve", "auto", "tools", "run"),
                  b->session);
    client_free(c);
    bench_halt(&b->daemon);
    snprintf(db, sizeof(db), "%s/agentd.db", b->daemon.store);
    snprintf(packs, sizeof(packs), "%s/packs", b->daemon.store);
    snprintf(state, sizeof(state), "%s/state", b->daemon.store);
    const struct store_options o = {.db_path = db, .packs_dir = packs, .state_dir = state};
    if (store_open(&st, &o, &e))
        bench_fail("%s", e.msg);
    save_tape(b, st);
    save_state(b, st, s);
    store_close(st);
    bench_restart(&b->daemon);
}

static int compare(struct step *b, size_t n_tokens)
{
    double step[MAX_REPS], computed[MAX_REPS], ratio[MAX_REPS];
    size_t n = (size_t)b->reps;
    struct seq *s = open_engine(b);
    fill_session(b, s);
    run_step(b); /* resumes it */
    compute(b, s, n_tokens);
    if (used(b, "restored") != (uint64_t)b->tokens)
        bench_fail("the daemon restored %" PRIu64 " tokens", used(b, "restored"));
    uint64_t before = used(b, "prefilled");
    for (size_t i = 0; i < n; i++) {
        struct moment ours = run_step(b), least = compute(b, s, n_tokens);
        step[i] = pick(b, ours) * 1e3, computed[i] = pick(b, least) * 1e3;
        ratio[i] = step[i] / computed[i];
        fprintf(stderr, "bench_step: wall %.0f and %.0f ms, CPU %.0f and %.0f ms\n",
                ours.wall * 1e3, least.wall * 1e3, ours.cpu * 1e3, least.cpu * 1e3);
    }
    fprintf(stderr, "bench_step: %.0f tokens of input in a turn, %zu of them the result\n",
            (double)(used(b, "prefilled") - before) / (double)n, n_tokens);
    double r = median(ratio, n);
    figure_print(&(struct figure){.group = "step",
                                  .name = "tool end to first token",
                                  .unit = "ms",
                                  .against = "compute alone",
                                  .value = median(step, n),
                                  .ratio = r,
                                  .limit = MOST_OF_COMPUTE});
    figure_print(&(struct figure){.group = "step",
                                  .name = "compute alone",
                                  .unit = "ms",
                                  .against = "",
                                  .value = median(computed, n)});
    seq_free(s);
    engine_free(b->engine);
    return r > MOST_OF_COMPUTE;
}

int main(int argc, char **argv)
{
    static struct step b = {.tokens = 119000, .result = 875, .reps = 5};
    static char output[MAX_OUTPUT];
    struct options seen;
    struct error e;
    unsigned line = 100000;
    if (options_parse(&command, argc, (const char *const *)argv, &b, &seen, &e))
        bench_fail("%s", e.msg);
    limit_cpus(b.threads);
    bench_start(&b.daemon, b.model, NULL);
    write_file(&b, "tool.sh", TOOL, strlen(TOOL));
    size_t n = write_log(b.model, (size_t)b.result, &line, output);
    while (segment_tokens(b.model, output, n) > (size_t)b.result)
        n--;
    write_file(&b, "output", output, n);
    int code = compare(&b, segment_tokens(b.model, output, n));
    bench_stop(&b.daemon);
    return code;
}
