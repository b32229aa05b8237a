/* agentd-evals replay TRACE: a trace on a daemon: an idle-timeout sweep, or kills. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "evals/cli.h"
#include "evals/replay.h"
#include "evals/report.h"

#define SYNTHETIC "synth"
#define SYNTHETIC_SESSIONS 8
#define COUNTED_SESSIONS 4265 /* as many as TraceLab publishes figures of */
#define MAX_TIMEOUTS 8

struct verb_options {
    const char *model, *socket, *out, *work, *timeouts;
    int64_t sessions, rounds, kills, kill_seed, seed;
    double scale;
    bool simulate, verify, json, quiet;
};

#define AT(member) offsetof(struct verb_options, member)
static const struct option replay_table[] = {
    {"model", 'm', OPTION_STRING, AT(model), "DIR", .help = "model folder", .required = true},
    {"socket", 0, OPTION_STRING, AT(socket), "PATH",
     .help = "a running daemon of that model, started with --resident 1 (default: its own)"},
    {"out", 'o', OPTION_STRING, AT(out), "DIR", .help = "folder for replay.json, report.html"},
    {"idle-timeouts", 0, OPTION_STRING, AT(timeouts), "T,T,...",
     .help = "state leaves memory after a wait of T: 60s, 5m, 1h, never (default: those four); "
             "once with a cache that forgets, once with the store"},
    {"simulate", 0, OPTION_FLAG, AT(simulate), "",
     .help = "only count from the trace what a timeout costs; no daemon runs"},
    {"kills", 0, OPTION_INT, AT(kills), "N", 0, 100000,
     .help = "instead of a sweep: kill the daemon so often, at random moments"},
    {"kill-seed", 0, OPTION_INT, AT(kill_seed), "N", 0, UINT32_MAX,
     .help = "of those moments (default: 1)"},
    {"scale", 0, OPTION_FLOAT, AT(scale), "F", 1, 1000000,
     .help = "divide all lengths by F (default: 1)"},
    {"sessions", 0, OPTION_INT, AT(sessions), "N", 0, 1000000,
     .help = "at most so many of the trace (default: all)"},
    {"rounds", 0, OPTION_INT, AT(rounds), "N", 0, 1000000,
     .help = "at most so many of each session (default: all)"},
    {"seed", 0, OPTION_INT, AT(seed), "N", 0, UINT32_MAX,
     .help = "of a synthetic trace (default: 1)"},
    {"verify", 0, OPTION_FLAG, AT(verify), "",
     .help = "compare each session with a process that never stopped"},
    {"work", 0, OPTION_STRING, AT(work), "DIR", .help = "where the daemon keeps its store"},
    {"json", 0, OPTION_FLAG, AT(json), "", .help = "print the results"},
    {"quiet", 'q', OPTION_FLAG, AT(quiet), "", .help = "no progress on stderr"},
};
#undef AT

const struct command evals_replay_command = {
    "replay",
    "TRACE",
    "a trace (Mooncake JSONL, TraceLab CSV, or `synth`) on a daemon, in recorded mode",
    OPTION_TABLE(replay_table),
    OPTION_TABLE_EMPTY,
    1,
    1};

static enum err parse_timeouts(const char *text, int64_t *out, size_t *n, struct error *e)
{
    for (*n = 0; *text; text += *text == ',') {
        char *end = NULL;
        if (*n == MAX_TIMEOUTS)
            return err_set(e, ERR_LIMIT, "--idle-timeouts: at most %d", MAX_TIMEOUTS);
        if (!strncmp(text, "never", 5)) {
            out[(*n)++] = -1;
            text += 5;
            continue;
        }
        const double v = strtod(text, &end);
        const double unit = *end == 's' ? 1e3 : *end == 'm' ? 60e3 : *end == 'h' ? 3600e3 : 0;
        if (end == text || unit < 1 || !(v >= 0 && v < 1e6) || (end[1] && end[1] != ','))
            return err_set(e, ERR_INVAL, "--idle-timeouts: want 60s, 5m, 1h or never: %.40s",
                           text);
        out[(*n)++] = (int64_t)(v * unit);
        text = end + 1;
    }
    return *n ? OK : err_set(e, ERR_INVAL, "--idle-timeouts: empty");
}

struct shown {
    uint64_t t0_ns, last_ns;
};

static void progress(void *user, uint64_t done, uint64_t total)
{
    struct shown *s = user;
    const uint64_t now = clock_mono_ns(clock_real());
    const double took = (double)(now - s->t0_ns) / 1e9;
    if (now - s->last_ns < UINT64_C(10000000000) && done < total)
        return;
    s->last_ns = now;
    fprintf(stderr, "replay %llu/%llu, %.0f s, ETA %.0f s\n", (unsigned long long)done,
            (unsigned long long)total, took, took / (double)done * (double)(total - done));
}

static enum err run_arm(struct replay_options *o, json_t *arms, bool *good, bool quiet,
                        struct error *e)
{
    struct shown shown = {clock_mono_ns(clock_real()), clock_mono_ns(clock_real())};
    struct replay_result r;
    o->progress = quiet ? NULL : progress;
    o->user = &shown;
    enum err rc = replay_run(o, &r, e);
    if (rc)
        return rc;
    json_t *j = replay_json(&r);
    json_object_set_new(j, "store", json_string(o->forgets ? "forgets" : "keeps"));
    json_object_set_new(j, "timeout_ms", json_integer(o->timeout_ms));
    *good = *good && !r.n_lost && !r.n_unequal && (o->forgets || !r.relost);
    printf("%-7s  timeout %10lld ms  %llu rounds, %llu suspended  hit rate %.4f  "
           "amplification %.2f  TTFT P50 %.1f ms, P90 %.1f ms\n",
           o->forgets ? "forgets" : "keeps", (long long)o->timeout_ms,
           (unsigned long long)r.n_rounds, (unsigned long long)r.n_suspended,
           replay_hit_rate(&r), replay_amplification(&r), r.ttft_p50_ms, r.ttft_p90_ms);
    if (r.n_kills)
        printf("         %llu kills, %llu of them in a turn; %llu turns acknowledged, %llu "
               "lost; recomputed %llu, relost %llu\n",
               (unsigned long long)r.n_kills, (unsigned long long)r.n_struck,
               (unsigned long long)r.n_acknowledged, (unsigned long long)r.n_lost,
               (unsigned long long)r.recomputed, (unsigned long long)r.relost);
    if (r.n_verified)
        printf("         %llu sessions compared with a process that never stopped, %llu "
               "differ\n",
               (unsigned long long)r.n_verified, (unsigned long long)r.n_unequal);
    fflush(stdout);
    return json_array_append_new(arms, j) ? err_set(e, ERR_NOMEM, "no memory for results") : OK;
}

static enum err run_arms(const struct verb_options *v, const struct trace *t, int wake_fd,
                         json_t *arms, bool *good, struct error *e)
{
    int64_t timeouts[MAX_TIMEOUTS];
    size_t n;
    struct replay_options o = {.trace = t,
                               .model = v->model,
                               .socket = v->socket,
                               .work = v->work,
                               .scale = v->scale,
                               .max_sessions = (uint32_t)v->sessions,
                               .max_rounds = (uint32_t)v->rounds,
                               .verifies = v->verify,
                               .n_kills = (uint32_t)v->kills,
                               .seed = (uint64_t)v->kill_seed,
                               .wake_fd = wake_fd};
    enum err rc = parse_timeouts(v->timeouts, timeouts, &n, e);
    for (size_t i = 0; i < n && !rc; i++) {
        o.timeout_ms = timeouts[i];
        o.forgets = false;
        rc = run_arm(&o, arms, good, v->quiet, e);
        o.forgets = true;
        if (!rc && !v->kills)
            rc = run_arm(&o, arms, good, v->quiet, e);
    }
    return rc;
}

/* ---- counted ---------------------------------------------------------------------------- */

/* What each timeout costs, counted from the trace at its own lengths and waits: nothing is
 * computed. A store that keeps reads back what the other computes again. */
static enum err count_timeout(const struct trace *t, int64_t timeout_ms, bool forgets,
                              json_t *arms, struct error *e)
{
    const struct trace_sweep s = trace_sweep_timeout(t, timeout_ms);
    json_t *j = json_pack(
        "{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "store", forgets ? "forgets" : "keeps",
        "timeout_ms", (json_int_t)timeout_ms, "later", (json_int_t)s.n_later, "suspended",
        (json_int_t)s.n_suspended, "hit_rate", forgets ? s.hit_rate : 1.0, "amplification",
        forgets ? s.amplification : 1.0, "relost", forgets ? s.prefix_tokens : 0.0, "restored",
        forgets ? 0.0 : s.prefix_tokens);
    return json_array_append_new(arms, j) ? err_set(e, ERR_NOMEM, "no memory for results") : OK;
}

static enum err count_trace(const struct trace *t, json_t *results, struct error *e)
{
    static const int64_t timeouts_s[] = {10, 30, 60, 120, 300, 900, 3600, 14400, 86400, -1};
    struct trace_summary sum;
    enum err rc = trace_summarise(t, &sum, e);
    if (rc)
        return rc;
    json_auto_t *arms = json_array();
    json_t *counted = json_pack(
        "{s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:O}", "sessions", (json_int_t)t->n_sessions,
        "steps", (json_int_t)sum.n_steps, "prefix_p50", sum.prefix_p50, "input_p50",
        sum.input_p50, "output_p50", sum.output_p50, "wait_p50_ms", sum.wait_p50_ms,
        "wait_p99_ms", sum.wait_p99_ms, "prefix_share", sum.prefix_share, "arms", arms);
    if (json_object_set_new(results, "counted", counted))
        return err_set(e, ERR_NOMEM, "no memory for results");
    for (size_t i = 0; i < sizeof timeouts_s / sizeof *timeouts_s && !rc; i++)
        for (int forgets = 0; forgets < 2 && !rc; forgets++)
            rc = count_timeout(t, timeouts_s[i] < 0 ? -1 : timeouts_s[i] * 1000, forgets, arms,
                               e);
    return rc;
}

static void print_counted(const json_t *results)
{
    const json_t *c = json_object_get(results, "counted");
    size_t i;
    json_t *a;
    printf("counted  %lld sessions, %lld steps; nothing computed\n",
           (long long)json_integer_value(json_object_get(c, "sessions")),
           (long long)json_integer_value(json_object_get(c, "steps")));
    json_array_foreach(json_object_get(c, "arms"), i, a)
        printf("%-7s  timeout %10lld ms  %llu steps, %llu suspended  hit rate %.4f  "
               "amplification %.2f\n",
               json_string_value(json_object_get(a, "store")),
               (long long)json_integer_value(json_object_get(a, "timeout_ms")),
               (unsigned long long)json_integer_value(json_object_get(a, "later")),
               (unsigned long long)json_integer_value(json_object_get(a, "suspended")),
               json_real_value(json_object_get(a, "hit_rate")),
               json_real_value(json_object_get(a, "amplification")));
}

/* A synthetic trace is counted at the size of the published one, whatever is computed of it. */
static enum err add_counted(const struct trace *t, bool synthetic, uint64_t seed,
                            json_t *results, struct error *e)
{
    AUTO(trace) struct trace all = TRACE_INIT(TRACE_TRACELAB);
    if (!synthetic)
        return count_trace(t, results, e);
    enum err rc = trace_synthesise(&all, COUNTED_SESSIONS, seed, e);
    return rc ? rc : count_trace(&all, results, e);
}

int evals_replay(int argc, char **argv)
{
    struct verb_options v = {.scale = 1, .kill_seed = 1, .seed = 1};
    struct options o;
    struct error e = {0};
    bool good = true;
    int code = evals_parse(&evals_replay_command, argc, argv, &v, &o);
    if (code != EVALS_GO_ON)
        return code;
    if (!v.timeouts)
        v.timeouts = v.kills ? "60s" : "60s,5m,1h,never";
    AUTO_FD int wake = evals_wake_fd();
    AUTO(trace) struct trace t = TRACE_INIT(TRACE_TRACELAB);
    struct trace_summary sum;
    json_auto_t *results = json_pack("{s:i, s:s, s:f, s:[]}", "format", 1, "trace", o.args[0],
                                     "scale", v.scale, "arms");
    enum err rc = !strcmp(o.args[0], SYNTHETIC)
                      ? trace_synthesise(&t, SYNTHETIC_SESSIONS, (uint64_t)v.seed, &e)
                      : trace_load(&t, o.args[0], &e);
    if (!rc)
        rc = trace_summarise(&t, &sum, &e);
    if (!rc && !v.quiet)
        fprintf(stderr,
                "%u sessions, %llu rounds; medians: prefix %.0f, input %.0f, output %.0f "
                "tokens\n",
                t.n_sessions, (unsigned long long)sum.n_steps, sum.prefix_p50, sum.input_p50,
                sum.output_p50);
    if (!rc && !v.kills)
        rc = add_counted(&t, !strcmp(o.args[0], SYNTHETIC), (uint64_t)v.seed, results, &e);
    if (!rc && v.simulate)
        print_counted(results);
    if (!rc && !v.simulate)
        rc = run_arms(&v, &t, wake, json_object_get(results, "arms"), &good, &e);
    if (!rc && v.out)
        rc = report_replay(v.out, results, &e);
    if ((rc = evals_interrupted(wake, rc, &e)))
        return evals_fail(&evals_replay_command, rc, &e);
    if (v.json)
        json_dumpf(results, stdout, JSON_INDENT(1));
    if (!good)
        fprintf(stderr, "agentd-evals replay: turns or state were lost, or bits differ\n");
    return good ? EVALS_DONE : EVALS_CORRUPT;
}
