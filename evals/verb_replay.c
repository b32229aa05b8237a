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
#define MAX_TIMEOUTS 8

struct verb_options {
    const char *model, *socket, *out, *work, *timeouts;
    int64_t sessions, rounds, kills, kill_seed, seed;
    double scale;
    bool verify, json, quiet;
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
    if (!rc)
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
