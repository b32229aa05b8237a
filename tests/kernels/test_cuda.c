/* The CUDA backend as a whole: every op of the table is there, every kernel of the sources runs
 * in the emulation, and which op reaches which kernel is reported. The kernels' results are
 * held to the reference by the other tests of this folder, in which the emulation is one more
 * backend. */
#include "tests/support/test.h"

#include <dirent.h>

#include "kernels/cuda.h"
#include "kernels/host.h"
#include "tests/kernels/backends.h"
#include "tests/kernels/data.h"
#include "tests/support/cuda_report.h"

#define D 64u
#define N 5u

/* Inputs that any op can read, and a place for what it writes. */
struct world {
    float *f, *out;
    uint8_t *rows;
    int32_t *numbers;
    uint64_t *positions;
    struct k_weight fp8, wide, mix, bf16;
    struct k_expert experts[3];
};

static struct world world_new(void)
{
    struct world w = {.f = values_new(65536, 1, 1), .out = values_new(65536, 2, 1)};
    w.rows = calloc(65536, 1);
    w.numbers = calloc(4096, sizeof *w.numbers);
    w.positions = calloc(64, sizeof *w.positions);
    w.fp8 = weight_new(K_W_FP8_32X32, D, D, 1, 3);
    w.wide = weight_new(K_W_FP8_32X32, D, 8 * D, 1, 3);
    w.bf16 = weight_new(K_W_BF16, D, D, 1, 4);
    w.mix = weight_new(K_W_F32, 24, 4 * D, 1, 5);
    for (unsigned i = 0; i < 3; i++)
        w.experts[i] = (struct k_expert){weight_new(K_W_FP4_1X32, D, D, 1, 6 + i),
                                         weight_new(K_W_FP4_1X32, D, D, 1, 9 + i),
                                         weight_new(K_W_FP4_1X32, D, D, 1, 12 + i)};
    return w;
}

static void world_free(struct world *w)
{
    free(w->f), free(w->out), free(w->rows), free(w->numbers), free(w->positions);
    weight_free(&w->fp8), weight_free(&w->wide), weight_free(&w->bf16), weight_free(&w->mix);
    for (unsigned i = 0; i < 3; i++) {
        weight_free(&w->experts[i].w1);
        weight_free(&w->experts[i].w3);
        weight_free(&w->experts[i].w2);
    }
}

/* ---- one call of each op; every way it can go to another kernel ------------------------- */

static void run_embed(struct kernels *k, struct world *w)
{
    k->embed(k, &(struct k_embed){&w->bf16, (uint32_t *)w->numbers, w->out, NULL, N, 4});
}

static void run_hc(struct kernels *k, struct world *w)
{
    float *o = w->out;
    k->hc_mix(k, &(struct k_hc_mix){.x = w->f,
                                    .fn = &w->mix,
                                    .scale = w->f,
                                    .base = w->f,
                                    .pre = o,
                                    .post = o + 64,
                                    .comb = o + 128,
                                    .n = N,
                                    .hc = 4,
                                    .d = D,
                                    .iters = 3});
    k->hc_collapse(k, &(struct k_hc_collapse){w->f, w->f, o, N, 4, D, K_EXACT});
    k->hc_update(k, &(struct k_hc_update){w->f, w->f, w->f, w->f, o, N, 4, D, K_EXACT});
}

static void run_rmsnorm(struct kernels *k, struct world *w)
{
    k->rmsnorm(k, &(struct k_rmsnorm){.x = w->f, .y = w->out, .n = N, .d = D});
}

static void run_linear(struct kernels *k, struct world *w)
{
    struct k_linear a = {.w = &w->fp8, .x = w->f, .y = w->out, .n = N};
    k->linear(k, &a);
    a.in = K_BF16; /* tensor cores, few rows and many, whole and in parts */
    for (a.n = N; a.n <= 4 * N; a.n += 3 * N)
        for (unsigned wide = 0; wide < 2; wide++) {
            a.w = wide ? &w->wide : &w->fp8;
            k->linear(k, &a);
        }
    a.n = N;
    a.in = K_FP8_32;
    k->linear(k, &a);
}

static void run_rope(struct kernels *k, struct world *w)
{
    float *o = w->out;
    k->rope_table(k, &(struct k_rope_table){w->positions, w->f, o + 4096, o + 8192, N, 8});
    k->rope(
        k,
        &(struct k_rope){
            .x = o, .cos = o + 4096, .sin = o + 8192, .n = N, .n_head = 2, .d = D, .half = 8});
}

static void run_grids(struct kernels *k, struct world *w)
{
    static const enum k_format formats[] = {K_ROW_F32, K_ROW_FP8_32, K_ROW_FP4_16,
                                            K_ROW_FP4_32};
    for (size_t i = 0; i < 4; i++) {
        k->encode(k, &(struct k_encode){
                         .x = w->f, .rows = w->rows, .n = N, .d = D, .format = formats[i]});
        k->decode(k, &(struct k_decode){w->rows, w->out, N, D, formats[i]});
        k->fake_quant(k, &(struct k_fake_quant){w->f, w->out, N, D, formats[i]});
    }
}

static void run_compress(struct kernels *k, struct world *w)
{
    k->compress(k, &(struct k_compress){
                       .u = w->f, .g = w->f, .out = w->out, .n = N, .ratio = 2, .d = D});
}

static void run_attention(struct kernels *k, struct world *w)
{
    struct k_attention a = {.q = w->f,
                            .out = w->out,
                            .n = N,
                            .n_head = 2,
                            .d = D,
                            .ring = w->rows,
                            .keys = w->rows,
                            .window = 4,
                            .window_format = K_ROW_FP8_32,
                            .sink = w->f,
                            .scale = 1};
    for (size_t n = 1; n <= 2 * N; n += 2 * N - 1) /* few queries and many, then online */
        for (unsigned p = 0; p < 2; p++) {
            a.n = n, a.prob = p ? K_BF16 : K_EXACT;
            k->attention(k, &a);
        }
    a.n = N, a.window_format = K_ROW_F32; /* plain instructions */
    k->attention(k, &a);
    a.prob = K_EXACT;
    k->attention(k, &a);
}

static void run_index(struct kernels *k, struct world *w)
{
    struct k_index a = {.q = w->f,
                        .w = w->f,
                        .keys = w->rows,
                        .format = K_ROW_FP4_32,
                        .sel = w->numbers,
                        .n = N,
                        .n_row = N,
                        .n_head = 2,
                        .d = D,
                        .ratio = 1,
                        .top_k = 3,
                        .block_rows = 2,
                        .n_blocks = 2,
                        .blocks_out = w->numbers + 1024,
                        .score = w->out};
    k->index(k, &a);
    a.format = K_ROW_F32; /* plain instructions */
    k->index(k, &a);
    memset(w->numbers, 0, 4096 * sizeof *w->numbers);
}

static void run_scale(struct kernels *k, struct world *w)
{
    k->scale(k, &(struct k_scale){w->out, N, 0.5f, K_EXACT});
}

static void run_ring(struct kernels *k, struct world *w)
{
    k->ring(k, &(struct k_ring){.ring = w->rows,
                                .keys = w->rows + 4096,
                                .key_stride = N * D,
                                .n = N,
                                .n_layers = 2,
                                .window = 4,
                                .row_bytes = D});
}

static void run_route(struct kernels *k, struct world *w)
{
    k->route(k, &(struct k_route){.logits = w->f,
                                  .bias = w->f,
                                  .expert = w->numbers,
                                  .weight = w->out,
                                  .n = N,
                                  .n_expert = 2,
                                  .top_k = 2,
                                  .scale = 1});
}

static void run_moe(struct kernels *k, struct world *w)
{
    uint8_t all[3] = {1, 1, 1};
    struct k_moe a = {.x = w->f,
                      .expert = w->numbers,
                      .weight = w->f,
                      .experts = w->experts,
                      .shared = &w->experts[2],
                      .y = w->out,
                      .n = N,
                      .d = D,
                      .top_k = 1,
                      .n_expert = 2,
                      .limit = 7,
                      .part = w->out + 8192,
                      .only = all};
    k->moe(k, &a);
    a.in = K_BF16;
    k->moe(k, &a);
    k->moe_part(k, &a);
    k->moe_sum(k, &a);
}

static void run_engram(struct kernels *k, struct world *w)
{
    k->engram_rows(k, &(struct k_engram_rows){w->rows, w->rows, w->positions, w->out, N, 2, D});
    k->engram_put(k, &(struct k_engram_put){.codes = (uint8_t *)w->out,
                                            .scales = (uint8_t *)w->out + 64 * D,
                                            .from_codes = w->rows,
                                            .from_scales = w->rows,
                                            .at = w->positions,
                                            .n = 1,
                                            .d = D});
    k->engram_gate(
        k, &(struct k_engram_gate){
               .x = w->out, .kv = w->f, .qw = w->f, .kw = w->f, .n = N, .hc = 4, .d = D});
}

static void run_sample(struct kernels *k, struct world *w)
{
    struct k_sample a = {
        .logits = w->f,
        .drawn = (struct k_drawn *)w->positions,
        .draw = {{.temperature = 1, .top_p = 0.5f}, {.temperature = 1, .top_p = 1}},
        .n = 2,
        .n_vocab = 3000};
    k->sample(k, &a);
    memset(w->positions, 0, 64 * sizeof *w->positions);
}

static const struct op {
    const char *name;
    void (*run)(struct kernels *k, struct world *w);
} ops[] = {{"embed", run_embed},
           {"hc_mix, hc_collapse, hc_update", run_hc},
           {"rmsnorm", run_rmsnorm},
           {"linear", run_linear},
           {"rope_table, rope", run_rope},
           {"encode, decode, fake_quant", run_grids},
           {"compress", run_compress},
           {"attention", run_attention},
           {"index", run_index},
           {"scale", run_scale},
           {"ring", run_ring},
           {"route", run_route},
           {"moe, moe_part, moe_sum", run_moe},
           {"engram_rows, engram_put, engram_gate", run_engram},
           {"sample", run_sample}};

static struct cuda_emulated_kernel before[128];

static void remember(void)
{
    memset(before, 0, sizeof before);
    for (unsigned i = 0; cuda_emulated(i); i++)
        before[i] = *cuda_emulated(i);
}

static void report(const char *op)
{
    for (unsigned i = 0; cuda_emulated(i); i++) {
        const struct cuda_emulated_kernel *x = cuda_emulated(i);
        if (x->launches > before[i].launches)
            fprintf(stderr, "report:   %-32s %-24s %2u launches, %5u threads, %s%s%s\n", op,
                    x->name, (unsigned)(x->launches - before[i].launches),
                    (unsigned)(x->threads - before[i].threads),
                    x->barriers > before[i].barriers ? "barriers " : "",
                    x->exchanges > before[i].exchanges ? "exchanges " : "",
                    x->products > before[i].products ? "tensor cores" : "");
    }
}

static void test_every_op(void **state)
{
    (void)state;
    struct kernels *k = &backends[n_backends - 1];
    struct error e = {0};
    struct world w = world_new();
    assert_string_equal(k->numerics, "cuda-emulated/1");
    fprintf(stderr, "report: CUDA ops in emulation (op, kernel):\n");
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        remember();
        ops[i].run(k, &w);
        assert_ok(k->sync(k, &e), &e);
        report(ops[i].name);
    }
    world_free(&w);
}

/* Every pointer of the table that the reference fills is filled, and only what it may leave out
 * besides. */
static void test_table(void **state)
{
    (void)state;
    void *ref[sizeof(struct kernels) / sizeof(void *)];
    void *cuda[sizeof(struct kernels) / sizeof(void *)];
    memcpy(ref, &backends[0], sizeof ref);
    memcpy(cuda, &backends[n_backends - 1], sizeof cuda);
    size_t record = offsetof(struct kernels, record) / sizeof(void *);
    for (size_t i = 0; i < sizeof ref / sizeof *ref; i++)
        if (i >= record && i < record + 3)
            assert_true(!ref[i] && cuda[i]);
        else if (i != offsetof(struct kernels, host_memory) / sizeof(void *))
            assert_int_equal(!ref[i], !cuda[i]);
}

/* A name after "__global__ void" in a file. */
static void check_file(const char *path)
{
    char line[512];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        char *at = strstr(line, "__global__ void ");
        if (!at)
            continue;
        at += strlen("__global__ void ");
        at[strcspn(at, "(")] = 0;
        bool ran = false;
        for (unsigned i = 0; cuda_emulated(i); i++)
            ran |= !strcmp(cuda_emulated(i)->name, at);
        if (!ran)
            fail_msg("%s: kernel %s never ran in the emulation", path, at);
    }
    fclose(f);
}

static void test_every_kernel_ran(void **state)
{
    (void)state;
    char path[300];
    DIR *dir = opendir("kernels");
    struct dirent *d;
    unsigned n = 0;
    assert_non_null(dir);
    while ((d = readdir(dir))) {
        size_t length = strlen(d->d_name);
        if (length < 3 || strcmp(d->d_name + length - 3, ".cu") != 0)
            continue;
        (void)snprintf(path, sizeof path, "kernels/%s", d->d_name);
        check_file(path);
        n++;
    }
    closedir(dir);
    assert_true(n > 10);
}

/* Where the library, a driver or a device is missing the loader says so and leaves the table.
 */
static void test_load(void **state)
{
    (void)state;
    struct kernels k = {0};
    struct error e = {0};
    enum err rc = kernels_cuda(&k, NULL, 0, &e);
    if (!rc) {
        assert_non_null(strstr(k.numerics, "cuda-sm"));
        kernels_fini(&k);
        return;
    }
    assert_int_equal(rc, ERR_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "backend cuda"));
    assert_null(k.ctx);
}

/* What failed is over with the sync that told of it: the next op is none the wiser. */
static void test_failure_is_over(void **state)
{
    struct kernels k = {0};
    struct error e = {0};
    struct world w = world_new();
    (void)state;
    assert_ok(k_cuda_open(&k, 0, &e), &e);
    setenv("AGENTD_EMULATED_DEVICE_BYTES", "0", 1);
    k.linear(&k, &(struct k_linear){.w = &w.fp8, .x = w.f, .y = w.out, .n = N, .in = K_FP8_32});
    unsetenv("AGENTD_EMULATED_DEVICE_BYTES");
    assert_int_equal(k.sync(&k, &e), ERR_NOMEM);
    run_rmsnorm(&k, &w);
    assert_ok(k.sync(&k, &e), &e);
    kernels_fini(&k);
    world_free(&w);
}

/* Memory that has grown is zero before what is uploaded arrives, which waits for no op. */
static void test_upload_into_grown(void **state)
{
    struct kernels k = {0};
    struct error e = {0};
    uint8_t in[100], out[2 * sizeof in], zero[sizeof in] = {0};
    (void)state;
    memset(in, 7, sizeof in);
    assert_ok(k_cuda_open(&k, 0, &e), &e);
    uint8_t *p = k.reserve(&k, 1u << 20);
    assert_non_null(p);
    assert_ok(k.grow(&k, p, 0, sizeof out, &e), &e);
    assert_true(k.upload(&k, p, in, sizeof in));
    assert_ok(k.upload_end(&k, &e), &e);
    k.copy_out(&k, out, p, sizeof out);
    assert_ok(k.sync(&k, &e), &e);
    assert_memory_equal(out, in, sizeof in);
    assert_memory_equal(out + sizeof in, zero, sizeof zero);
    k.release(&k, p, 1u << 20);
    kernels_fini(&k);
}

/* Records of the emulation's own table: ops that read what is in device memory by then. */
static void scale_both(struct kernels *k, float *x, float *y)
{
    k->scale(k, &(struct k_scale){x, N, 2, K_EXACT});
    k->copy(k, y, x, N * sizeof *x);
}

static void test_record(void **state)
{
    (void)state;
    struct kernels k = {0};
    struct error e = {0};
    struct world w = world_new();
    const float one[N] = {1, 2, 3, 4, 5}, other[N] = {6, 7, 8, 9, 10};
    float got[N];
    assert_ok(k_cuda_open(&k, 0, &e), &e);
    float *x = k.alloc(&k, sizeof one), *y = k.alloc(&k, sizeof one);
    assert_false(k.replay(&k, 3)); /* nothing is there */
    k.copy_in(&k, x, one, sizeof one);
    assert_true(k.record(&k));
    scale_both(&k, x, y);
    assert_true(k.record_end(&k, 3));
    for (int i = 0; i < 2; i++) { /* as recorded, then on other values */
        const float *in = i ? other : one;
        if (i) {
            k.copy_in(&k, x, other, sizeof other);
            assert_true(k.replay(&k, 3));
        }
        k.copy_out(&k, got, y, sizeof got);
        assert_ok(k.sync(&k, &e), &e);
        for (size_t j = 0; j < N; j++)
            assert_true(got[j] == 2 * in[j]);
    }
    /* What has to be done on the spot cannot be kept, and then nothing was done. */
    assert_true(k.record(&k));
    scale_both(&k, x, y);
    k.copy_in(&k, x, one, sizeof one);
    assert_false(k.record_end(&k, 3));
    assert_false(k.replay(&k, 3)); /* the old one is gone */
    k.copy_out(&k, got, x, sizeof got);
    assert_true(got[0] == 2 * other[0]);
    struct k_linear a = {.w = &w.fp8, .x = w.f, .y = w.out, .n = N, .in = K_FP8_32};
    assert_true(k.record(&k));
    k.linear(&k, &a); /* scratch that there is not */
    assert_false(k.record_end(&k, 3));
    k.linear(&k, &a);
    assert_true(k.record(&k));
    k.linear(&k, &a);
    assert_true(k.record_end(&k, 3));
    assert_true(k.replay(&k, 3));
    a.n = 20;
    k.linear(&k, &a); /* scratch moves: no record knows where to */
    assert_false(k.replay(&k, 3));
    assert_ok(k.sync(&k, &e), &e);
    k.free(&k, x), k.free(&k, y);
    kernels_fini(&k);
    world_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_op),
                                       cmocka_unit_test(test_table),
                                       cmocka_unit_test(test_every_kernel_ran),
                                       cmocka_unit_test(test_load),
                                       cmocka_unit_test(test_failure_is_over),
                                       cmocka_unit_test(test_upload_into_grown),
                                       cmocka_unit_test(test_record)};
    backends_open();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    backends_close();
    return !!failed;
}
