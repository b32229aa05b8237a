/* bench_speed [--threads N] [--reps N] GROUP: speed beside the machine's ceilings, measured in
 * turns in the same run. One JSON line a figure (tests/support/ceilings.h).
 *
 *     ceilings            what the machine can do; --dir: where its files lie
 *     parts               products and experts of the released shape, weights made in memory
 *     layer -m MODEL      decode of 1 token against memory, prefill against arithmetic
 *     company -m MODEL    decode of 4 and 16 sequences at once against one
 *     growth -m MODEL     prefill and decode at long context against short
 *     ced -m MODEL        prefill of 8,192 tokens, mode ced against full
 *
 * Every figure is a median of --reps (default 5) ratios. With one thread times are CPU times.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "engine/config.h"
#include "engine/engine.h"
#include "engine/inventory.h"
#include "kernels/kernels.h"
#include "kernels/philox.h"
#include "tests/support/bench.h"
#include "tests/support/ceilings.h"
#include "tests/support/long_state.h"

#define MAX_REPS 64

struct options_of_bench {
    const char *model, *name, *dir, *isa, *from;
    int64_t threads, reps, prompt, run, longest, repeat, chunk;
};

struct bench {
    struct options_of_bench o;
    struct pool *pool;
    struct ceilings ceilings;
    size_t n_reps;
};

#define AT(member) offsetof(struct options_of_bench, member)
static const struct option table[] = {
    {"model", 'm', OPTION_STRING, AT(model), "DIR", .help = "checkpoint"},
    {"name", 0, OPTION_STRING, AT(name), "NAME", .help = "group in the report"},
    {"dir", 0, OPTION_STRING, AT(dir), "DIR", .help = "for files (default .)"},
    {"isa", 0, OPTION_STRING, AT(isa), "NAME", .help = "instruction set (default: best)"},
    {"threads", 0, OPTION_INT, AT(threads), "N", 0, 256, .help = "threads (default: all)"},
    {"reps", 0, OPTION_INT, AT(reps), "N", 1, MAX_REPS, .help = "of each figure (default 5)"},
    {"prompt", 0, OPTION_INT, AT(prompt), "N", 1, 1 << 20, .help = "tokens (default 2048)"},
    {"run", 0, OPTION_INT, AT(run), "N", 1, 4096, .help = "tokens to decode (default 32)"},
    {"longest", 0, OPTION_INT, AT(longest), "N", 1, 1 << 20,
     .help = "growth: long context (default 4096)"},
    {"repeat", 0, OPTION_INT, AT(repeat), "N", 2, 1 << 20,
     .help = "growth: the rows of N tokens again and again, instead of prefilling all"},
    {"from", 0, OPTION_STRING, AT(from), "FILE",
     .help = "growth: a state of --longest tokens that bench_million --keep left"},
    {"chunk", 0, OPTION_INT, AT(chunk), "N", 0, 1 << 16,
     .help = "tokens of one step (default: the engine's)"},
};
static const struct command command = {"bench_speed",
                                       "GROUP",
                                       "speed beside ceilings",
                                       OPTION_TABLE(table),
                                       OPTION_TABLE_EMPTY,
                                       1,
                                       1};

/* A figure's limits are those of docs/performance.md. */
#define DECODE_OF_READ 0.70
#define PREFILL_OF_PEAK 0.55
#define PREFILL_LONG_OF_SHORT 0.85
#define DECODE_LONG_OF_SHORT 1.15
#define FULL_OF_CED 1.6

static double now(const struct bench *b)
{
    return ceilings_now(&b->ceilings);
}

/* ---- figures ------------------------------------------------------------------------------
 */

struct work {
    void (*run)(struct bench *b, void *arg);
    void *arg;
    double amount; /* operations or bytes of one run */
};

typedef double ceiling_fn(const struct ceilings *c);

/* A rate and its ratio to a ceiling, measured in turns. `inner` runs are timed together. */
static void rate(struct bench *b, const char *name, const char *unit, const struct work *w,
                 size_t inner, const char *against, ceiling_fn *ceiling, double limit)
{
    double values[MAX_REPS], ratios[MAX_REPS];

    w->run(b, w->arg);
    for (size_t i = 0; i < b->n_reps; i++) {
        double before = ceiling(&b->ceilings), start = now(b);
        for (size_t k = 0; k < inner; k++)
            w->run(b, w->arg);
        values[i] = w->amount * (double)inner / (now(b) - start);
        double most = (before + ceiling(&b->ceilings)) / 2;
        ratios[i] = most > 0 ? values[i] / most : 0;
    }
    figure_print(&(struct figure){.group = b->o.name,
                                  .name = name,
                                  .unit = unit,
                                  .against = against,
                                  .value = median(values, b->n_reps) / 1e9,
                                  .ratio = median(ratios, b->n_reps),
                                  .limit = limit,
                                  .at_least = true});
}

/* Operations: against the faster kind of arithmetic that the kernels use here. */
static void rate_ops(struct bench *b, const char *name, const struct work *w, size_t inner,
                     double limit)
{
    bool bf16 = ceiling_bf16(&b->ceilings) > 0;
    rate(b, name, "Gop/s", w, inner, bf16 ? "bf16" : "f32", bf16 ? ceiling_bf16 : ceiling_f32,
         limit);
}

static void rate_bytes(struct bench *b, const char *name, const struct work *w, size_t inner,
                       double limit)
{
    rate(b, name, "GB/s", w, inner, "read", ceiling_read, limit);
}

/* ---- ceilings -----------------------------------------------------------------------------
 */

static void one_ceiling(struct bench *b, const char *name, const char *unit, ceiling_fn *fn)
{
    double v[MAX_REPS];
    for (size_t i = 0; i < b->n_reps; i++)
        v[i] = fn(&b->ceilings) / 1e9;
    figure_print(&(struct figure){.group = "ceilings",
                                  .name = name,
                                  .unit = unit,
                                  .against = "",
                                  .value = median(v, b->n_reps)});
}

static void group_ceilings(struct bench *b)
{
    double read[MAX_REPS], sync[MAX_REPS];
    one_ceiling(b, "bf16 multiply-add", "Gop/s", ceiling_bf16);
    one_ceiling(b, "f32 multiply-add", "Gop/s", ceiling_f32);
    one_ceiling(b, "memory read", "GB/s", ceiling_read);
    one_ceiling(b, "memory copy", "GB/s", ceiling_copy);
    for (size_t i = 0; i < b->n_reps; i++) {
        read[i] = ceiling_file_read(b->o.dir) / 1e9;
        sync[i] = ceiling_fsync(b->o.dir) * 1e3;
    }
    figure_print(&(struct figure){.group = "ceilings",
                                  .name = "file read, cold",
                                  .unit = "GB/s",
                                  .against = "",
                                  .value = median(read, b->n_reps)});
    figure_print(&(struct figure){.group = "ceilings",
                                  .name = "write 4 KiB and fdatasync",
                                  .unit = "ms",
                                  .against = "",
                                  .value = median(sync, b->n_reps)});
}

/* ---- parts --------------------------------------------------------------------------------
 */

#define DIM 5120
#define INTER 2304
#define N_EXPERTS 48 /* of 384: a call of n tokens is measured by n / 8 of them */
#define TOP_K 6

static float *floats(size_t n)
{
    float *p = malloc(n * sizeof(*p));
    if (!p)
        bench_fail("no memory for %zu floats", n);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(k_philox_uniform(1, i, 0) - 0.5);
    return p;
}

/* Random codes below NaN, scales near 1. */
static struct k_weight weight(enum k_type type, uint32_t n_out, uint32_t n_in)
{
    struct k_weight w = {.type = type, .n_out = n_out, .n_in = n_in, .n_groups = 1};
    size_t data_bytes = 0, scale_bytes = 0;
    if (!k_weight_bytes(&w, &data_bytes, &scale_bytes))
        bench_fail("a weight of %u x %u", n_out, n_in);
    unsigned char *data = malloc(data_bytes), *scale = malloc(scale_bytes + 1);
    if (!data || !scale)
        bench_fail("no memory for %zu bytes", data_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        data[i] = (unsigned char)((i * 2654435761u >> 13) & 0x3f);
    memset(scale, 120, scale_bytes + 1);
    w.data = data;
    w.scale = scale;
    return w;
}

static double weight_bytes(const struct k_weight *w)
{
    size_t data = 0, scale = 0;
    return k_weight_bytes(w, &data, &scale) ? (double)(data + scale) : 0;
}

struct part {
    struct kernels k;
    struct k_linear linear;
    struct k_moe moe;
};

static void run_linear(struct bench *b, void *arg)
{
    struct part *p = arg;
    (void)b;
    p->k.linear(&p->k, &p->linear);
}

static void run_moe(struct bench *b, void *arg)
{
    struct part *p = arg;
    (void)b;
    p->k.moe(&p->k, &p->moe);
}

#define MATRICES 4 /* taken in turns: together larger than a cache */

static void dense(struct bench *b, struct part *p, size_t n)
{
    char name[64];
    struct k_weight w = weight(K_W_FP8_32X32, 16384, DIM);
    p->linear = (struct k_linear){.w = &w,
                                  .x = floats(n * DIM),
                                  .y = floats(n * w.n_out),
                                  .n = n,
                                  .in = K_BF16,
                                  .out = K_BF16};
    double macs = (double)w.n_out * DIM * (double)n;
    snprintf(name, sizeof(name), "dense FP8 16384x5120, %zu tokens", n);
    if (n == 1)
        rate_bytes(b, name, &(struct work){run_linear, p, weight_bytes(&w)}, MATRICES, 0);
    else
        rate_ops(b, name, &(struct work){run_linear, p, 2 * macs}, 1, 0);
    free((void *)(uintptr_t)w.data);
    free((void *)(uintptr_t)w.scale);
    free((void *)(uintptr_t)p->linear.x);
    free(p->linear.y);
}

/* Each expert gets as many tokens as the next. */
static void choose(int32_t *expert, size_t n, size_t n_experts)
{
    for (size_t i = 0; i < n * TOP_K; i++)
        expert[i] = (int32_t)(i % n_experts);
}

static void experts(struct bench *b, struct part *p, struct k_expert *e, size_t n)
{
    char name[64];
    int32_t *expert = calloc(n * TOP_K, sizeof(*expert));
    /* tokens an expert gets in a layer of 384, at least 1 */
    size_t share = n * TOP_K / 384 ? n * TOP_K / 384 : 1, tokens = n;
    if (tokens * TOP_K > share * N_EXPERTS) /* a part of the call: the same rows an expert */
        tokens = share * N_EXPERTS / TOP_K ? share * N_EXPERTS / TOP_K : 1;
    choose(expert, tokens, N_EXPERTS);
    p->moe = (struct k_moe){.x = floats(tokens * DIM),
                            .expert = expert,
                            .weight = floats(tokens * TOP_K),
                            .experts = e,
                            .y = floats(tokens * DIM),
                            .n = tokens,
                            .d = DIM,
                            .top_k = TOP_K,
                            .n_expert = N_EXPERTS,
                            .limit = 10,
                            .in = K_BF16};
    size_t used = tokens * TOP_K < N_EXPERTS ? tokens * TOP_K : N_EXPERTS;
    double bytes = (double)used * (2 * weight_bytes(&e->w1) + weight_bytes(&e->w2));
    double macs = 3.0 * DIM * INTER * (double)(tokens * TOP_K);
    snprintf(name, sizeof(name), "experts FP4, %zu tokens: %zu an expert", n, share);
    if (share < 4) /* each weight is used so few times that reading it is what takes time */
        rate_bytes(b, name, &(struct work){run_moe, p, bytes}, 1, 0);
    else
        rate_ops(b, name, &(struct work){run_moe, p, 2 * macs}, 1, 0);
    free(expert);
    free((void *)(uintptr_t)p->moe.x);
    free((void *)(uintptr_t)p->moe.weight);
    free(p->moe.y);
}

static void group_parts(struct bench *b)
{
    static struct k_expert e[N_EXPERTS];
    struct part p = {0};
    struct error error;

    if (kernels_cpu(&p.k, b->o.isa, b->pool, &error))
        bench_fail("%s", error.msg);
    dense(b, &p, 1);
    dense(b, &p, 512);
    for (size_t i = 0; i < N_EXPERTS; i++)
        e[i] = (struct k_expert){weight(K_W_FP4_1X32, INTER, DIM),
                                 weight(K_W_FP4_1X32, INTER, DIM),
                                 weight(K_W_FP4_1X32, DIM, INTER)};
    static const size_t tokens[] = {1, 16, 128, 2048};
    for (size_t i = 0; i < 4; i++)
        experts(b, &p, e, tokens[i]);
    kernels_fini(&p.k);
}

/* ---- a checkpoint -------------------------------------------------------------------------
 */

struct model {
    struct engine *engine;
    struct config config;
    double decode_bytes, prefill_ops; /* of one token, attention apart */
};

#define MAX_COMPANY 16

static struct seq *new_seq(struct model *m)
{
    struct seq *s = NULL;
    struct error e;
    if (seq_new(m->engine, NULL, &s, &e))
        bench_fail("%s", e.msg);
    return s;
}

/* n ids that follow from where the sequence stands and from `seed`. */
static void queue_input(struct seq *s, size_t n, enum prefill_mode mode, uint32_t seed)
{
    struct error e;
    uint32_t *ids = calloc(n, sizeof(*ids)), x = (uint32_t)seq_position(s) + 1 + seed;
    if (!ids)
        bench_fail("no memory for %zu ids", n);
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525 + 1013904223;
        ids[i] = 3 + (x >> 8) % 250; /* ordinary bytes of any tokenizer */
    }
    if (seq_input(s, ids, n, mode, &e))
        bench_fail("%s", e.msg);
    free(ids);
}

static double feed(struct bench *b, struct model *m, struct seq *s, size_t n,
                   enum prefill_mode mode)
{
    queue_input(s, n, mode, 0);
    double start = now(b);
    bench_run(m->engine);
    return now(b) - start;
}

/* Seconds of n tokens of each of some sequences at once, EOS kept out. */
static double decode_all(struct bench *b, struct model *m, struct seq **s, size_t n_seqs,
                         size_t n)
{
    const struct logit_bias never = {.id = m->config.eos_id, .value = -1e30f};
    struct generate_options g = {
        .sampling = {.temperature = 1, .top_p = 1, .bias = &never, .n_bias = 1},
        .max_tokens = n};
    uint64_t before = 0, after = 0;
    struct error e;
    for (size_t i = 0; i < n_seqs; i++) {
        before += seq_position(s[i]);
        g.sampling.seed = i + 1;
        if (seq_generate(s[i], &g, &e))
            bench_fail("%s", e.msg);
    }
    double start = now(b);
    bench_run(m->engine);
    double took = now(b) - start;
    for (size_t i = 0; i < n_seqs; i++)
        after += seq_position(s[i]);
    if (after != before + n_seqs * n)
        bench_fail("%" PRIu64 " tokens were decoded, not %zu", after - before, n_seqs * n);
    return took;
}

static double decode(struct bench *b, struct model *m, struct seq *s, size_t n)
{
    return decode_all(b, m, &s, 1, n);
}

/* Bytes of the weights that one decoded token reads, as they lie in the checkpoint, and
 * operations of the products of one prefilled token; both without the embedding. */
static void count_work(struct model *m, const char *dir)
{
    static struct inventory v;
    struct error e;
    if (inventory_take(&v, dir, &e))
        bench_fail("%s", e.msg);
    const struct config *c = &m->config;
    double embed = (double)c->vocab_size * c->dim;
    double chosen = (double)c->n_active / c->n_experts;
    m->decode_bytes = (double)v.sum[KIND_DENSE].n_bytes - 2 * embed +
                      chosen * (double)v.sum[KIND_EXPERT].n_bytes;
    m->prefill_ops = 2 * ((double)v.n_active_prefill - embed);
    inventory_fini(&v);
}

/* The indexer's part in a time: the op's callers wait for it, so a clock around it is enough.
 */
static struct {
    const struct bench *bench;
    void (*index)(struct kernels *k, const struct k_index *a);
    double seconds; /* since a measurement set it to 0 */
} scan;

static void timed_index(struct kernels *k, const struct k_index *a)
{
    double start = now(scan.bench);
    scan.index(k, a);
    scan.seconds += now(scan.bench) - start;
}

static enum err open_timed(struct kernels *k, struct pool *pool, struct error *e)
{
    enum err rc = kernels_cpu(k, scan.bench->o.isa, pool, e);
    if (rc)
        return rc;
    scan.index = k->index;
    k->index = timed_index;
    return OK;
}

static void open_model(struct bench *b, struct model *m)
{
    scan.bench = b;
    const struct engine_options o = {.open_kernels = open_timed,
                                     .n_threads = (uint32_t)b->o.threads,
                                     .chunk_tokens = (uint32_t)b->o.chunk,
                                     .isa = b->o.isa,
                                     .no_weight_digest = true};
    struct error e;
    if (!b->o.model)
        bench_fail("this group wants -m MODEL");
    if (config_load(&m->config, b->o.model, &e) ||
        engine_open_model(&m->engine, b->o.model, &o, &e))
        bench_fail("%s", e.msg);
    count_work(m, b->o.model);
}

static void seconds_figure(struct bench *b, const char *name, double rate)
{
    figure_print(&(struct figure){
        .group = b->o.name, .name = name, .unit = "token/s", .against = "", .value = rate});
}

static void layer_decode(struct bench *b, struct model *m)
{
    double tokens[MAX_REPS], ratios[MAX_REPS];
    size_t n = (size_t)b->o.run;
    struct seq *s = new_seq(m);
    feed(b, m, s, 64, PREFILL_CED);
    decode(b, m, s, n);
    for (size_t i = 0; i < b->n_reps; i++) {
        double read = ceiling_read(&b->ceilings);
        tokens[i] = (double)n / decode(b, m, s, n);
        ratios[i] = tokens[i] * m->decode_bytes / read;
    }
    seq_free(s);
    seconds_figure(b, "decode", median(tokens, b->n_reps));
    bool large = m->decode_bytes > 1e8; /* smaller ones stay in a cache */
    figure_print(&(struct figure){.group = b->o.name,
                                  .name = "decode, bytes of weights",
                                  .unit = "GB/s",
                                  .against = "read",
                                  .value = median(tokens, b->n_reps) * m->decode_bytes / 1e9,
                                  .ratio = median(ratios, b->n_reps),
                                  .limit = large ? DECODE_OF_READ : 0,
                                  .at_least = true});
}

static void layer_prefill(struct bench *b, struct model *m)
{
    double tokens[MAX_REPS], ratios[MAX_REPS];
    size_t n = (size_t)b->o.prompt;
    for (size_t i = 0; i < b->n_reps + 1; i++) { /* the first one warms up */
        struct seq *s = new_seq(m);
        double peak = ceiling_bf16(&b->ceilings);
        peak = peak > 0 ? peak : ceiling_f32(&b->ceilings);
        double took = feed(b, m, s, n, PREFILL_CED);
        size_t at = i ? i - 1 : 0;
        tokens[at] = (double)n / took;
        ratios[at] = tokens[at] * m->prefill_ops / peak;
        seq_free(s);
    }
    char name[64];
    snprintf(name, sizeof(name), "prefill %zu", n);
    seconds_figure(b, name, median(tokens, b->n_reps));
    snprintf(name, sizeof(name), "prefill %zu, products", n);
    bool large = m->decode_bytes > 1e8;
    figure_print(&(struct figure){.group = b->o.name,
                                  .name = name,
                                  .unit = "Gop/s",
                                  .against = "bf16",
                                  .value = median(tokens, b->n_reps) * m->prefill_ops / 1e9,
                                  .ratio = median(ratios, b->n_reps),
                                  .limit = large && n >= 2048 ? PREFILL_OF_PEAK : 0,
                                  .at_least = true});
}

static void group_layer(struct bench *b)
{
    static struct model m;
    open_model(b, &m);
    layer_decode(b, &m);
    layer_prefill(b, &m);
    engine_free(m.engine);
}

/* ---- several sequences --------------------------------------------------------------------
 */

static void group_company(struct bench *b)
{
    static const size_t sizes[] = {4, MAX_COMPANY};
    static struct model m;
    double one[MAX_REPS], all[2][MAX_REPS], ratios[2][MAX_REPS];
    struct seq *s[MAX_COMPANY];
    size_t n = (size_t)b->o.run;
    open_model(b, &m);
    for (uint32_t i = 0; i < MAX_COMPANY; i++) {
        s[i] = new_seq(&m);
        queue_input(s[i], 64, PREFILL_CED, 7919 * i); /* to each its own experts */
    }
    bench_run(m.engine);
    (void)decode_all(b, &m, s, MAX_COMPANY, 2);
    for (size_t i = 0; i < b->n_reps; i++) {
        one[i] = (double)n / decode(b, &m, s[i % MAX_COMPANY], n);
        for (size_t k = 0; k < 2; k++) {
            all[k][i] = (double)(sizes[k] * n) / decode_all(b, &m, s, sizes[k], n);
            ratios[k][i] = all[k][i] / one[i];
        }
    }
    seconds_figure(b, "decode, 1 sequence", median(one, b->n_reps));
    for (size_t k = 0; k < 2; k++) {
        char name[64];
        snprintf(name, sizeof(name), "decode, %zu sequences", sizes[k]);
        figure_print(&(struct figure){.group = b->o.name,
                                      .name = name,
                                      .unit = "token/s",
                                      .against = "one by one",
                                      .value = median(all[k], b->n_reps),
                                      .ratio = median(ratios[k], b->n_reps)});
    }
    engine_free(m.engine);
}

/* ---- context ------------------------------------------------------------------------------
 */

#define SHORT 512
#define FILL 4096 /* tokens of a segment on the way to the long context */

static struct seq *long_seq(struct bench *b, struct model *m)
{
    uint64_t longest = (uint64_t)b->o.longest;
    if (b->o.from)
        return long_state_read(m->engine, b->o.from, longest);
    if (b->o.repeat)
        return long_state_repeat(m->engine, (uint64_t)b->o.repeat, longest);
    struct seq *s = new_seq(m);
    while (seq_position(s) < longest) {
        uint64_t left = longest - seq_position(s);
        feed(b, m, s, left < FILL ? left : FILL, PREFILL_CED);
    }
    return s;
}

/* Seconds of n tokens, and of the indexer in them. */
struct step_time {
    double all, scan;
};

static struct step_time decode_apart(struct bench *b, struct model *m, struct seq *s, size_t n)
{
    scan.seconds = 0;
    double all = decode(b, m, s, n);
    return (struct step_time){all, scan.seconds};
}

static void decode_figure(const struct bench *b, const char *what, const char *unit,
                          double *ratio, double limit)
{
    char name[64];
    double r = median(ratio, b->n_reps);
    snprintf(name, sizeof(name), "decode at %" PRId64 ", %s", b->o.longest, what);
    figure_print(&(struct figure){.group = b->o.name,
                                  .name = name,
                                  .unit = unit,
                                  .against = "at 1024",
                                  .value = r,
                                  .ratio = r,
                                  .limit = limit});
}

/* Decode at the long context against decode at 1,024 tokens, whole and without the indexer,
 * whose work grows with the context as nothing else does. */
static void growth_decode(struct bench *b, struct model *m, struct seq *s, size_t n)
{
    double all[MAX_REPS], apart[MAX_REPS], ms[MAX_REPS], scan_ms[MAX_REPS];
    for (size_t i = 0; i < b->n_reps; i++) {
        struct seq *fresh = new_seq(m);
        feed(b, m, fresh, 1024, PREFILL_CED);
        struct step_time fast = decode_apart(b, m, fresh, n), slow = decode_apart(b, m, s, n);
        seq_free(fresh);
        all[i] = slow.all / fast.all;
        apart[i] = (slow.all - slow.scan) / (fast.all - fast.scan);
        ms[i] = slow.all * 1e3 / (double)n, scan_ms[i] = slow.scan * 1e3 / (double)n;
    }
    figure_print(&(struct figure){.group = b->o.name,
                                  .name = "decode there, a token",
                                  .unit = "ms",
                                  .against = "",
                                  .value = median(ms, b->n_reps)});
    figure_print(&(struct figure){.group = b->o.name,
                                  .name = "of it the indexer",
                                  .unit = "ms",
                                  .against = "",
                                  .value = median(scan_ms, b->n_reps)});
    decode_figure(b, "whole", "x time", all, 0);
    decode_figure(b, "indexer apart", "x time", apart, DECODE_LONG_OF_SHORT);
}

static void growth_prefill(struct bench *b, struct model *m, struct seq *s)
{
    double ratio[MAX_REPS], rate_short[MAX_REPS], rate_long[MAX_REPS];
    char name[64];
    for (size_t i = 0; i < b->n_reps; i++) {
        struct seq *fresh = new_seq(m);
        double first = feed(b, m, fresh, SHORT, PREFILL_CED);
        double later = feed(b, m, s, SHORT, PREFILL_CED);
        seq_free(fresh);
        rate_short[i] = SHORT / first, rate_long[i] = SHORT / later, ratio[i] = first / later;
    }
    seconds_figure(b, "prefill 512 at 0", median(rate_short, b->n_reps));
    snprintf(name, sizeof(name), "prefill %d at %" PRId64, SHORT, b->o.longest);
    figure_print(&(struct figure){.group = b->o.name,
                                  .name = name,
                                  .unit = "token/s",
                                  .against = "at 0",
                                  .value = median(rate_long, b->n_reps),
                                  .ratio = median(ratio, b->n_reps),
                                  .limit = b->o.longest <= 4096 ? PREFILL_LONG_OF_SHORT : 0,
                                  .at_least = true});
}

static void group_growth(struct bench *b)
{
    static struct model m;
    open_model(b, &m);
    struct seq *s = long_seq(b, &m);
    size_t n = (size_t)b->o.run, room = (size_t)(m.config.max_tokens - seq_position(s));
    if (room < n * b->n_reps) /* at the end of the context */
        n = room / b->n_reps;
    if (!n)
        bench_fail("there is no room behind %" PRIu64 " tokens", seq_position(s));
    if (room >= (n + SHORT) * b->n_reps)
        growth_prefill(b, &m, s);
    growth_decode(b, &m, s, n);
    seq_free(s);
    engine_free(m.engine);
}

static void group_ced(struct bench *b)
{
    static struct model m;
    double ratios[MAX_REPS], rates[MAX_REPS];
    const size_t n = 8192;
    open_model(b, &m);
    for (size_t i = 0; i < b->n_reps; i++) {
        struct seq *s = new_seq(&m), *t = new_seq(&m);
        double ced = feed(b, &m, s, n, PREFILL_CED), full = feed(b, &m, t, n, PREFILL_FULL);
        seq_free(s);
        seq_free(t);
        rates[i] = (double)n / ced, ratios[i] = full / ced;
    }
    figure_print(&(struct figure){.group = b->o.name,
                                  .name = "prefill 8192, ced",
                                  .unit = "token/s",
                                  .against = "full",
                                  .value = median(rates, b->n_reps),
                                  .ratio = median(ratios, b->n_reps),
                                  .limit = FULL_OF_CED,
                                  .at_least = true});
    engine_free(m.engine);
}

/* ---- all ----------------------------------------------------------------------------------
 */

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(struct bench *b);
    } groups[] = {{"ceilings", group_ceilings}, {"parts", group_parts},
                  {"layer", group_layer},       {"company", group_company},
                  {"growth", group_growth},     {"ced", group_ced}};
    static struct bench b = {
        .o = {.dir = ".", .reps = 5, .prompt = 2048, .run = 32, .longest = 4096}};
    struct options seen;
    struct error e;
    if (options_parse(&command, argc, (const char *const *)argv, &b.o, &seen, &e))
        bench_fail("%s", e.msg);
    b.o.name = b.o.name ? b.o.name : seen.args[0];
    b.n_reps = (size_t)b.o.reps;
    if (pool_new((uint32_t)b.o.threads, &b.pool, &e))
        bench_fail("%s", e.msg);
    ceilings_init(&b.ceilings, b.pool);
    bool found = false;
    for (size_t i = 0; i < sizeof(groups) / sizeof(*groups); i++)
        if (!strcmp(groups[i].name, seen.args[0])) {
            groups[i].run(&b);
            found = true;
        }
    ceilings_fini(&b.ceilings);
    pool_free(b.pool);
    if (!found)
        bench_fail("no group is called \"%s\"", seen.args[0]);
    return 0;
}
