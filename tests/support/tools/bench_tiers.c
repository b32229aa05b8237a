/* bench_tiers -m MODEL [--expert-ram B] [--engram-ram B] [--kv-resident B] ...: what a budget
 * costs on a checkpoint. Opens it, feeds a prompt, samples a run, and prints one JSON line:
 * seconds, tokens a second, the counters of each tier, peak memory, and the digest of all
 * logits, which no budget may change. */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/encode.h"
#include "base/options.h"
#include "engine/engine.h"
#include "tests/support/bench.h"

struct bench {
    const char *model;
    int64_t n_prompt, n_new, threads, chunk, draft;
    uint64_t expert_ram, engram_ram, kv_resident;
};

#define AT(member) offsetof(struct bench, member)
static const struct option table[] = {
    {"model", 'm', OPTION_STRING, AT(model), "DIR", .help = "checkpoint", .required = true},
    {"prompt", 0, OPTION_INT, AT(n_prompt), "N", 1, 1 << 20, .help = "tokens (default 64)"},
    {"new", 0, OPTION_INT, AT(n_new), "N", 1, 1 << 20, .help = "tokens to sample (default 16)"},
    {"threads", 0, OPTION_INT, AT(threads), "N", 0, 256, .help = "threads (default: all)"},
    {"chunk", 0, OPTION_INT, AT(chunk), "N", 0, 1 << 16, .help = "most input tokens of a step"},
    {"draft", 0, OPTION_INT, AT(draft), "N", 0, 15, .help = "tokens to guess ahead"},
    {"expert-ram", 0, OPTION_BYTES, AT(expert_ram), "BYTES", .help = "for routed experts"},
    {"engram-ram", 0, OPTION_BYTES, AT(engram_ram), "BYTES", .help = "for Engram rows"},
    {"kv-resident", 0, OPTION_BYTES, AT(kv_resident), "BYTES", .help = "for main KV rows"},
};
static const struct command command = {
    "bench_tiers", "", "what a budget costs", OPTION_TABLE(table), OPTION_TABLE_EMPTY, 0, 0};

static double seconds(void)
{
    return (double)clock_mono_ns(clock_real()) / 1e9;
}

static double feed(struct engine *m, struct seq *s, uint64_t n)
{
    struct error e;
    uint32_t *ids = calloc(n, sizeof(*ids)), x = 1;
    if (!ids)
        bench_fail("no memory for %" PRIu64 " ids", n);
    for (uint64_t i = 0; i < n; i++) {
        x = x * 1664525 + 1013904223;
        ids[i] = 3 + (x >> 8) % 250; /* ordinary bytes of any tokenizer */
    }
    double start = seconds();
    if (seq_input(s, ids, n, PREFILL_CED, &e))
        bench_fail("%s", e.msg);
    bench_run(m);
    free(ids);
    return seconds() - start;
}

static double sample(struct engine *m, struct seq *s, uint64_t n)
{
    struct error e;
    const struct generate_options g = {.sampling = {.seed = 1, .temperature = 1, .top_p = 1},
                                       .max_tokens = n};
    double start = seconds();
    if (seq_generate(s, &g, &e))
        bench_fail("%s", e.msg);
    bench_run(m);
    return seconds() - start;
}

static json_t *tiers(const struct engine *m)
{
    struct engine_tier t[ENGINE_MAX_TIERS];
    size_t n = engine_tiers(m, t);
    json_t *all = json_object();
    for (size_t i = 0; i < n; i++)
        json_object_set_new(
            all, t[i].name,
            json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "budget",
                      (json_int_t)t[i].budget_bytes, "minimum", (json_int_t)t[i].minimum_bytes,
                      "resident", (json_int_t)t[i].resident_bytes, "hits",
                      (json_int_t)t[i].hits, "misses", (json_int_t)t[i].misses, "read",
                      (json_int_t)t[i].read_bytes, "stall_s", (double)t[i].stall_ns / 1e9));
    return all;
}

static void measure(const struct bench *b)
{
    const struct engine_options o = {.n_threads = (uint32_t)b->threads,
                                     .chunk_tokens = (uint32_t)b->chunk,
                                     .draft_tokens = (uint32_t)b->draft,
                                     .expert_ram = b->expert_ram,
                                     .engram_ram = b->engram_ram,
                                     .kv_resident = b->kv_resident,
                                     .digests = true,
                                     .no_weight_digest = true};
    struct engine *m = NULL;
    struct seq *s = NULL;
    struct error e;
    struct rusage u;
    char prompt[HEX_CHARS(32)], all[HEX_CHARS(32)];
    double start = seconds();
    if (engine_open_model(&m, b->model, &o, &e) || seq_new(m, NULL, &s, &e))
        bench_fail("%s", e.msg);
    double opened = seconds() - start, fed = feed(m, s, (uint64_t)b->n_prompt);
    struct seq_digest d = seq_digest(s);
    hex_encode(d.d, 32, prompt);
    uint64_t before = seq_position(s);
    double sampled = sample(m, s, (uint64_t)b->n_new);
    uint64_t n_new = seq_position(s) - before;
    d = seq_digest(s);
    hex_encode(d.d, 32, all);
    getrusage(RUSAGE_SELF, &u);
    json_t *j =
        json_pack("{s:s, s:f, s:I, s:f, s:I, s:f, s:f, s:o, s:s, s:s}", "bench", "tiers",
                  "open_s", opened, "prompt", (json_int_t)before, "prefill_s", fed, "sampled",
                  (json_int_t)n_new, "decode_s", sampled, "peak_gb", (double)u.ru_maxrss / 1e6,
                  "tiers", tiers(m), "prompt_digest", prompt, "run_digest", all);
    json_dumpf(j, stdout, JSON_REAL_PRECISION(5));
    puts("");
    json_decref(j);
    engine_free(m);
}

int main(int argc, char **argv)
{
    struct bench b = {.n_prompt = 64, .n_new = 16};
    struct options seen;
    struct error e;
    if (options_parse(&command, argc, (const char *const *)argv, &b, &seen, &e))
        bench_fail("%s", e.msg);
    measure(&b);
    return 0;
}
