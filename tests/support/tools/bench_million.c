/* bench_million -m MODEL [--tokens N] [--kv-resident B] [--keep]: a sequence taken to N tokens
 * (default 1,048,576), killed, resumed exact and deep, and going on to the end. One JSON line a
 * milestone; exit code 1 when a resumed sequence draws other tokens than the one that was
 * killed.
 *
 * The sequence lives in a child that writes its planes and tip to a file in --dir, 128 tokens
 * before the end, and draws tokens until it is killed half way. Each resume is a new process.
 * --keep leaves that file, DIR/million.state, for `bench_speed --from`.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/options.h"
#include "engine/config.h"
#include "engine/engine.h"
#include "tests/support/bench.h"
#include "tests/support/long_state.h"

#define SEGMENT 8192
#define TAIL 128      /* tokens drawn behind the saved state */
#define KILL_AFTER 64 /* of them */
#define MILESTONES 16

struct million {
    const char *model, *dir;
    int64_t tokens, threads, kv_resident;
    bool keep;
    struct config config;
    struct engine *engine;
    char path[4096];
};

#define AT(member) offsetof(struct million, member)
static const struct option table[] = {
    {"model", 'm', OPTION_STRING, AT(model), "DIR", .help = "checkpoint", .required = true},
    {"dir", 0, OPTION_STRING, AT(dir), "DIR", .help = "for the saved state (default .)"},
    {"tokens", 0, OPTION_INT, AT(tokens), "N", 4096, 1 << 20, .help = "default 1048576"},
    {"threads", 0, OPTION_INT, AT(threads), "N", 0, 256, .help = "threads (default: all)"},
    {"kv-resident", 0, OPTION_BYTES, AT(kv_resident), "BYTES", 0, INT64_MAX,
     .help = "memory for main KV rows (default: all of them)"},
    {"keep", 0, OPTION_FLAG, AT(keep), .help = "leave the saved state in DIR/million.state"},
};
static const struct command command = {"bench_million",
                                       "",
                                       "a million tokens, killed, resumed",
                                       OPTION_TABLE(table),
                                       OPTION_TABLE_EMPTY,
                                       0,
                                       0};

static double now(void)
{
    return (double)clock_mono_ns(clock_real()) * 1e-9;
}

static double peak_mb(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_maxrss / 1024;
}

static void put(int fd, const void *p, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = write(fd, (const char *)p + done, n - done);
        if (k <= 0)
            bench_fail("a write of %zu bytes failed", n);
        done += (size_t)k;
    }
}

static bool take(int fd, void *p, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = read(fd, (char *)p + done, n - done);
        if (k <= 0)
            return false;
        done += (size_t)k;
    }
    return true;
}

/* ---- in a child ---------------------------------------------------------------------------
 */

static void open_engine(struct million *b)
{
    const struct engine_options o = {.n_threads = (uint32_t)b->threads,
                                     .kv_resident = (uint64_t)b->kv_resident,
                                     .spill_dir = b->dir,
                                     .no_weight_digest = true};
    struct error e;
    if (config_load(&b->config, b->model, &e) ||
        engine_open_model(&b->engine, b->model, &o, &e))
        bench_fail("%s", e.msg);
}

static struct seq *new_seq(struct million *b)
{
    struct seq *s = NULL;
    struct error e;
    if (seq_new(b->engine, NULL, &s, &e))
        bench_fail("%s", e.msg);
    return s;
}

/* Steps until all work is done; drawn ids go to fd (-1: nowhere). */
static void run(struct million *b, int fd)
{
    struct error e;
    while (engine_has_work(b->engine)) {
        struct engine_event events[8];
        size_t n = 0;
        if (engine_step(b->engine, events, 8, &n, &e))
            bench_fail("%s", e.msg);
        for (size_t i = 0; i < n; i++) {
            if (events[i].kind == ENGINE_DONE && events[i].reason == END_FAILED)
                bench_fail("%s", events[i].error.msg);
            if (events[i].kind == ENGINE_TOKENS && fd >= 0)
                put(fd, events[i].ids, events[i].n_ids * sizeof(*events[i].ids));
        }
    }
}

static double feed(struct million *b, struct seq *s, size_t n)
{
    uint32_t ids[SEGMENT];
    struct error e;
    for (size_t i = 0; i < n; i++)
        ids[i] = long_state_id(seq_position(s) + i);
    double start = now();
    if (seq_input(s, ids, n, PREFILL_CED, &e))
        bench_fail("%s", e.msg);
    run(b, -1);
    return now() - start;
}

static double draw(struct million *b, struct seq *s, size_t n, int fd)
{
    const struct logit_bias never = {.id = b->config.eos_id, .value = -1e30f};
    const struct generate_options g = {
        .sampling = {.seed = 1, .temperature = 1, .top_p = 1, .bias = &never, .n_bias = 1},
        .max_tokens = n};
    struct error e;
    double start = now();
    if (seq_generate(s, &g, &e))
        bench_fail("%s", e.msg);
    run(b, fd);
    return now() - start;
}

static void save(const struct million *b, const struct seq *s)
{
    const struct state_layout *l = engine_describe(b->engine)->layout;
    int fd = open(b->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    struct seq_digest digest = seq_digest(s);
    struct error e;
    for (uint32_t i = 0; i < l->n_planes; i++) {
        uint64_t rows = state_rows(&l->planes[i], seq_position(s));
        void *p = malloc(rows * l->planes[i].row_bytes);
        if (!p || seq_export_rows(s, i, 0, rows, p, &e))
            bench_fail("plane %u cannot be exported", i);
        put(fd, p, rows * l->planes[i].row_bytes);
        free(p);
    }
    void *tip = malloc(l->tip_bytes);
    if (!tip || seq_export_tip(s, tip, &e))
        bench_fail("the tip cannot be exported");
    put(fd, tip, l->tip_bytes);
    put(fd, &digest, sizeof(digest));
    free(tip);
    close(fd);
}

static void fill(struct million *b, int out)
{
    open_engine(b);
    struct seq *s = new_seq(b);
    uint64_t end = (uint64_t)b->tokens - TAIL, next = end / MILESTONES;
    double start = now();
    while (seq_position(s) < end) {
        uint64_t left = end - seq_position(s), n = left < SEGMENT ? left : SEGMENT;
        double took = feed(b, s, n);
        if (seq_position(s) < next && seq_position(s) < end)
            continue;
        next = seq_position(s) + end / MILESTONES;
        printf(
            "{\"group\": \"million\", \"name\": \"filled\", \"tokens\": %" PRIu64
            ", \"seconds\": %.1f, \"value\": %.1f, \"unit\": \"token/s\", \"peak_mb\": %.0f}\n",
            seq_position(s), now() - start, (double)n / took, peak_mb());
        fflush(stdout);
    }
    save(b, s);
    draw(b, s, TAIL, out);
    for (;;) /* until it is killed */
        pause();
}

static void import_planes(struct million *b, struct seq *s, int fd)
{
    const struct state_layout *l = engine_describe(b->engine)->layout;
    uint64_t n = (uint64_t)b->tokens - TAIL;
    struct state_regions r;
    struct error e;
    if (seq_import_begin(s, n, &r, &e))
        bench_fail("%s", e.msg);
    for (uint32_t i = 0; i < l->n_planes; i++)
        if (!take(fd, r.plane[i], state_rows(&l->planes[i], n) * l->planes[i].row_bytes))
            bench_fail("plane %u is cut short", i);
}

static uint64_t rebuild(struct million *b, struct seq *s, const struct seq_digest *digest)
{
    uint64_t n = (uint64_t)b->tokens - TAIL, n_replayed = 0;
    size_t n_segments = (size_t)((n + SEGMENT - 1) / SEGMENT);
    uint32_t *ids = malloc(n * sizeof(*ids));
    struct segment *segments = calloc(n_segments, sizeof(*segments));
    struct error e;
    if (!ids || !segments)
        bench_fail("no memory for a tape of %" PRIu64 " tokens", n);
    for (uint64_t i = 0; i < n; i++)
        ids[i] = long_state_id(i);
    for (size_t i = 0; i < n_segments; i++) {
        uint64_t at = (uint64_t)i * SEGMENT;
        segments[i] = (struct segment){at, n - at < SEGMENT ? n - at : SEGMENT, SEGMENT_INPUT,
                                       PREFILL_CED};
    }
    const struct tape_view tape = {
        .ids = ids, .n_ids = n, .segments = segments, .n_segments = n_segments};
    if (seq_rebuild(s, &tape, RESUME_DEEP, digest, &n_replayed, &e))
        bench_fail("%s", e.msg);
    run(b, -1);
    free(ids);
    free(segments);
    return n_replayed;
}

static void resume(struct million *b, enum resume_mode mode, int out)
{
    struct seq_digest digest;
    struct error e;
    uint64_t n_replayed = 0;
    open_engine(b);
    struct seq *s = new_seq(b);
    const struct state_layout *l = engine_describe(b->engine)->layout;
    int fd = open(b->path, O_RDONLY | O_CLOEXEC);
    void *tip = malloc(l->tip_bytes);
    double start = now();
    import_planes(b, s, fd);
    if (!tip || !take(fd, tip, l->tip_bytes) || !take(fd, &digest, sizeof(digest)))
        bench_fail("the tip is cut short");
    if (mode == RESUME_DEEP)
        n_replayed = rebuild(b, s, &digest);
    else if (seq_import_tip(s, tip, l->tip_bytes, &digest, &e))
        bench_fail("%s", e.msg);
    double resumed = now() - start, drew = draw(b, s, TAIL, out);
    printf("{\"group\": \"million\", \"name\": \"resumed %s\", \"tokens\": %" PRIu64
           ", \"replayed\": %" PRIu64
           ", \"seconds\": %.2f, \"value\": %.1f, \"unit\": \"token/s\", \"peak_mb\": %.0f}\n",
           resume_mode_name(mode), seq_position(s), n_replayed, resumed, TAIL / drew,
           peak_mb());
    fflush(stdout);
    free(tip);
    seq_free(s);
    engine_free(b->engine);
}

/* ---- the parent ---------------------------------------------------------------------------
 */

/* Runs a child and reads n ids of it; it is killed then, or ends well. */
static void in_child(struct million *b, bool fills, enum resume_mode mode, uint32_t *ids,
                     size_t n)
{
    int fds[2], status = 0;
    if (pipe(fds))
        bench_fail("no pipe");
    pid_t child = fork();
    if (child < 0)
        bench_fail("no process");
    if (child == 0) {
        close(fds[0]);
        if (fills)
            fill(b, fds[1]);
        else
            resume(b, mode, fds[1]);
        _exit(0);
    }
    close(fds[1]);
    bool whole = take(fds[0], ids, n * sizeof(*ids));
    close(fds[0]);
    if (fills)
        kill(child, SIGKILL);
    if (waitpid(child, &status, 0) != child || !whole || (!fills && status))
        bench_fail("a child failed");
}

int main(int argc, char **argv)
{
    static struct million b = {.dir = ".", .tokens = 1 << 20};
    struct options seen;
    struct error e;
    uint32_t before[KILL_AFTER], exact[TAIL], deep[TAIL];
    if (options_parse(&command, argc, (const char *const *)argv, &b, &seen, &e))
        bench_fail("%s", e.msg);
    snprintf(b.path, sizeof(b.path), "%s/million.state", b.dir);
    in_child(&b, true, RESUME_EXACT, before, KILL_AFTER);
    in_child(&b, false, RESUME_EXACT, exact, TAIL);
    in_child(&b, false, RESUME_DEEP, deep, TAIL);
    if (!b.keep)
        unlink(b.path);
    bool same = !memcmp(before, exact, sizeof(before)) && !memcmp(exact, deep, sizeof(exact));
    printf("{\"group\": \"million\", \"name\": \"same tokens after a kill, exact and deep\", "
           "\"value\": %d, \"unit\": \"\", \"ok\": %s}\n",
           same, same ? "true" : "false");
    return !same;
}
