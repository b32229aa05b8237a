/* bench_ingest [MODEL]: what ingesting a tool's output while it runs is worth.
 *
 * One tool writes 8,000 tokens, twice in the same run: all at once at its end, so that they are
 * ingested afterwards, and spread over twice the time that took, so that they are ingested as
 * they come. Measured is from the tool's last act to the first token of the run that follows,
 * as a client sees it. One JSON line on stdout; exit code 1 if the second is more than 0.15 of
 * the first. MODEL: a checkpoint folder; default: one made from tests/configs/demo.json. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer.h"
#include "tests/support/bench.h"
#include "tests/support/checkpoint.h"

#define N_TOKENS 8000
#define N_PIECES 80
#define MOST_OF_AFTER 0.15
#define CALL                                                                                     \
    "ok</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"run\">\n<｜DSML｜ parameter " \
    "name=\"command\" string=\"true\">sh tool.sh</｜DSML｜ parameter>\n</｜DSML｜ "          \
    "invoke>\n</｜DSML｜ calls>"

/* ---- the output ------------------------------------------------------------------- */

/* Lines of a log, until they are n_tokens; returns the bytes. */
static size_t make_output(const char *model, char *out, size_t cap, size_t n_tokens)
{
    struct tokenizer *t = NULL;
    struct error e;
    size_t n = 0;

    if (tokenizer_open(&t, model, &e))
        bench_fail("%s", e.msg);
    AUTO(ids) struct ids ids = IDS_INIT(1 << 20);
    for (unsigned line = 0; ids.n < n_tokens; line++) {
        size_t from = n;
        n +=
            (size_t)snprintf(out + n, cap - n, "importer: record %u, sum %08x, done in %u ms\n",
                             line * 7919 % 10007, line * 2654435761u, line * 31 % 997);
        if (n + 100 > cap)
            bench_fail("%zu bytes are only %zu tokens", n, ids.n);
        if (tokenizer_encode(t, out + from, n - from, &ids, &e))
            bench_fail("%s", e.msg);
    }
    tokenizer_free(t);
    return n;
}

static void write_file(const struct bench_daemon *d, const char *name, const char *text,
                       size_t n)
{
    char path[200];

    snprintf(path, sizeof(path), "%s/%s", d->work, name);
    FILE *f = fopen(path, "we");
    if (!f || fwrite(text, 1, n, f) != n || fclose(f))
        bench_fail("%s cannot be written", path);
}

/* ---- one arm ---------------------------------------------------------------------- */

struct watcher {
    bool has_result;
    uint64_t first_ns; /* of the first delta behind the result */
};

static void on_notify(void *user, const char *method, const json_t *params)
{
    struct watcher *w = user;
    const json_t *item = json_object_get(params, "item");
    const char *kind = json_string_value(json_object_get(item, "kind"));

    if (!strcmp(method, "session/event") && kind && !strcmp(kind, "tool_result"))
        w->has_result = true;
    if (!strcmp(method, "session/delta") && w->has_result && !w->first_ns)
        w->first_ns = bench_now_ns();
}

static uint64_t tool_end_ns(const struct bench_daemon *d)
{
    char path[200], text[32] = "";

    snprintf(path, sizeof(path), "%s/end", d->work);
    FILE *f = fopen(path, "re");
    if (!f || !fgets(text, sizeof(text), f))
        bench_fail("the tool left no time");
    fclose(f);
    return strtoull(text, NULL, 10);
}

struct arm {
    double ms; /* tool end to first token */
    json_int_t prefilled, ahead;
};

static struct arm run_arm(const struct bench_daemon *d, const char *tool)
{
    struct watcher w = {0};
    struct client *c = bench_connect(d, on_notify, &w);
    char id[27];
    struct error e;

    write_file(d, "tool.sh", tool, strlen(tool));
    bench_session(d, c, json_pack("{s:s, s:[s]}", "approve", "auto", "tools", "run"), id);
    json_decref(bench_call(c, "session/attach", json_pack("{s:s}", "id", id)));
    json_decref(bench_call(c, "session/prompt",
                           json_pack("{s:s, s:[{s:s, s:s}], s:[{s:s}, {s:s}]}", "id", id,
                                     "content", "type", "text", "text", "go", "forced", "text",
                                     CALL, "text", "ok</think>done")));
    while (!w.first_ns)
        if (client_poll(c, 600000, &e))
            bench_fail("no token comes: %s", e.msg);
    json_t *answer = bench_wait(c, id, "end");
    const json_t *l = json_object_get(answer, "ledger");
    struct arm a = {.ms = ((double)w.first_ns - (double)tool_end_ns(d)) / 1e6,
                    .prefilled = json_integer_value(json_object_get(l, "prefilled")),
                    .ahead = json_integer_value(json_object_get(l, "ahead"))};
    json_decref(answer);
    client_free(c);
    return a;
}

/* ---- both ------------------------------------------------------------------------- */

static int compare(const char *model)
{
    static char output[16000]; /* what is kept of an output for sure */
    struct bench_daemon d;
    char tool[256];

    size_t n = make_output(model, output, sizeof(output), N_TOKENS);
    bench_start(&d, model, NULL);
    write_file(&d, "output", output, n);
    struct arm after = run_arm(&d, "sleep 1; cat output; date +%s%N > end\n");
    snprintf(
        tool, sizeof(tool),
        "i=0; while [ $i -lt %d ]; do dd if=output bs=%zu skip=$i count=1 2>&-; sleep %.4f; "
        "i=$((i+1)); done; date +%%s%%N > end\n",
        N_PIECES, n / N_PIECES + 1, 2 * after.ms / 1000 / N_PIECES);
    struct arm during = run_arm(&d, tool);
    bench_stop(&d);

    double ratio = during.ms / after.ms;
    /* A chunk fits in between the output's arrival and the tool's end; it makes the time to
     * beat shorter. */
    bool ok = after.ahead < N_TOKENS / 2 && ratio <= MOST_OF_AFTER;
    printf("{\"bench\": \"ingest\", \"output_tokens\": %d, \"output_bytes\": %zu, "
           "\"prefilled\": %lld, \"ahead\": %lld, \"after_ahead\": %lld, \"after_ms\": %.1f, "
           "\"while_running_ms\": %.1f, "
           "\"ratio\": %.4f, \"limit\": %.2f, \"ok\": %s}\n",
           N_TOKENS, n, (long long)during.prefilled, (long long)during.ahead,
           (long long)after.ahead, after.ms, during.ms, ratio, MOST_OF_AFTER,
           ok ? "true" : "false");
    return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    char dir[] = "/tmp/agentd-bench-model-XXXXXX";
    struct error e;

    if (argc > 2 || (argc == 2 && argv[1][0] == '-'))
        bench_fail("usage: bench_ingest [MODEL]");
    if (argc == 2)
        return compare(argv[1]);
    if (!mkdtemp(dir))
        bench_fail("%s: no folder can be made there", dir);
    const struct checkpoint_options o = {.config = "tests/configs/demo.json",
                                         .tokenizer = CHECKPOINT_TOKENIZER,
                                         .out = dir,
                                         .seed = 1};
    if (checkpoint_make(&o, &e))
        bench_fail("%s", e.msg);
    int code = compare(dir);
    bench_remove(dir);
    return code;
}
