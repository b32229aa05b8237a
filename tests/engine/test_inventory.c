/* What a checkpoint holds, at full size; what does not fit is named; a NaN scale is found when
 * it is first read. */
#include <time.h>

#include "base/fs.h"
#include "engine/inventory.h"
#include "tests/support/drive.h"
#include "tests/support/full_size.h"
#include "tests/support/golden.h"
#include "tests/support/tempdir.h"
#include "tests/support/test.h"

#include <fcntl.h>

/* CPU time in which a survey is over, or a refusal said; sanitizers make it slower. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MOST_CPU (20 * CLOCKS_PER_SEC)
#else
#define MOST_CPU CLOCKS_PER_SEC
#endif

#define TINY GOLDEN "a_tiny/model"

static char dir[TEMPDIR_BYTES];

static int setup(void **state)
{
    (void)state;
    tempdir_make(dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tempdir_remove(dir);
    return 0;
}

static void make(struct full_size_options o)
{
    struct error e = {0};
    o.out = dir;
    assert_ok(full_size_make(&o, &e), &e);
}

static void take(struct inventory *v)
{
    struct error e = {0};
    assert_ok(inventory_take(v, dir, &e), &e);
}

static void test_full_size(void **state)
{
    static const struct inventory_sum WANT[N_TENSOR_KINDS] = {
        [KIND_DENSE] = {1254, 8299036784, 9846748608},
        [KIND_EXPERT] = {92160, 543581798400, 288777830400},
        [KIND_ENGRAM] = {4, 196613849600, 202758032400},
        [KIND_DRAFT] = {97, 635817570, 713428872},
        [KIND_DRAFT_EXPERT] = {2304, 13589544960, 7219445760},
        [KIND_VISION] = {266, 485268480, 970536960},
    };
    struct inventory v;
    struct error e = {0};
    uint64_t n_tensors = 0;
    (void)state;
    make((struct full_size_options){0});
    clock_t start = clock();
    take(&v);
    assert_true(clock() - start < MOST_CPU);
    for (int k = 0; k < N_TENSOR_KINDS; k++) {
        assert_int_equal(v.sum[k].n_tensors, WANT[k].n_tensors);
        assert_int_equal(v.sum[k].n_params, WANT[k].n_params);
        assert_int_equal(v.sum[k].n_bytes, WANT[k].n_bytes);
        n_tensors += v.sum[k].n_tensors;
    }
    assert_int_equal(n_tensors, 96085);
    assert_int_equal(inventory_backbone(&v) / 100000000, 5518);
    assert_int_equal((inventory_drafts(&v) + 50000000) / 100000000, 142);
    assert_int_equal((v.n_active_decode + 500000000) / 1000000000, 16);
    assert_int_equal((v.n_active_prefill + 500000000) / 1000000000, 8);
    assert_int_equal(v.n_shards, 48);
    assert_ok(inventory_check(&v, &e), &e);

    /* All holes: it cannot run, whatever the memory; nor with too little memory. */
    assert_int_equal(inventory_fits(&v, UINT64_MAX, &e), ERR_LIMIT);
    assert_non_null(strstr(e.msg, "510.3 GB of weights on disk (there: 0.0 GB"));
    v.n_disk_bytes = v.n_file_bytes;
    assert_ok(inventory_fits(&v, v.n_resident_bytes, &e), &e);
    assert_int_equal(inventory_fits(&v, v.n_resident_bytes - 1, &e), ERR_LIMIT);
    assert_non_null(strstr(e.msg, "needs 18.0 GB of memory"));
    inventory_fini(&v);
}

static void expect_refused(enum err code, const char *says)
{
    struct engine_options o = {.no_weight_digest = true, .n_threads = 1};
    struct engine *m = NULL;
    struct error e = {0};
    clock_t start = clock();
    assert_int_equal(engine_open_model(&m, dir, &o, &e), code);
    assert_true(clock() - start < MOST_CPU);
    if (!strstr(e.msg, says))
        fail_msg("\"%s\", want \"%s\"", e.msg, says);
}

static void test_refused(void **state)
{
    (void)state;
    make((struct full_size_options){0});
    expect_refused(ERR_LIMIT, "cannot run here: needs 18.0 GB of memory");
    make((struct full_size_options){.leave_out = "layers.39.ffn.experts.383.w2.scale"});
    expect_refused(ERR_NOTFOUND, "tensor layers.39.ffn.experts.383.w2.scale: missing, want "
                                 "F8_E8M0 [5120, 72]");
    make((struct full_size_options){.misshape = "mtp.1.attn.wq_b.weight"});
    expect_refused(ERR_FORMAT, "tensor mtp.1.attn.wq_b.weight: F8_E4M3 [32767, 1280], want "
                               "F8_E4M3 [32768, 1280]");
    make((struct full_size_options){.add = "layers.40.attn_norm.weight"});
    expect_refused(ERR_FORMAT,
                   "tensor layers.40.attn_norm.weight: BF16 [3], not of this model");
}

/* Every problem is listed, not only the first. */
static void test_all_problems(void **state)
{
    struct inventory v;
    struct error e = {0};
    (void)state;
    make((struct full_size_options){
        .leave_out = "layers.5.attn.wkv.weight", .misshape = "head.weight", .add = "strange"});
    take(&v);
    for (int k = 0; k < N_PROBLEM_KINDS; k++)
        assert_int_equal(v.n_problems[k], 1);
    assert_int_equal(v.n_kept, 3);
    assert_string_equal(v.problems[0].text,
                        "tensor head.weight: BF16 [129279, 5120], want BF16 [129280, 5120]");
    assert_int_equal(inventory_check(&v, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "(and 2 more"));
    inventory_fini(&v);
}

/* Two shards are swapped, one is cut short, one is gone. */
static void test_broken_files(void **state)
{
    char a[128], b[128];
    (void)state;
    make((struct full_size_options){0});
    snprintf(a, sizeof(a), "%s/model-00007-of-00048.safetensors", dir);
    snprintf(b, sizeof(b), "%s/b", dir);
    assert_int_equal(truncate(a, 7000000000), 0);
    expect_refused(ERR_FORMAT, "model-00007-of-00048.safetensors");
    assert_int_equal(rename(a, b), 0);
    expect_refused(ERR_NOTFOUND, "model-00007-of-00048.safetensors");
    snprintf(b, sizeof(b), "%s/model-00008-of-00048.safetensors", dir);
    assert_int_equal(rename(b, a), 0);
    expect_refused(ERR_NOTFOUND, "model-00008-of-00048.safetensors");
}

/* ---- NaN scales ---------------------------------------------------------------------------
 */

static void copy_file(const char *name)
{
    AUTO(buf) struct buf text = BUF_INIT(16 << 20);
    struct error e = {0};
    char path[192];
    snprintf(path, sizeof(path), "%s/%s", TINY, name);
    assert_ok(fs_read_file(path, &text, &e), &e);
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_ok(fs_write_atomic(path, text.data, text.len, 0600, &e), &e);
}

/* A copy of the tiny model with one byte of a tensor set to the NaN of E8M0. */
static void spoil(const char *tensor, size_t at)
{
    struct safetensors *st = NULL;
    struct error e = {0};
    char path[192];
    uint64_t n = 0;
    const uint8_t nan = 0xff;
    tempdir_remove(dir);
    tempdir_make(dir);
    copy_file("config.json");
    copy_file("tokenizer.json");
    copy_file("model.safetensors");
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    assert_ok(safetensors_open_file(&st, path, &e), &e);
    const struct tensor *t = safetensors_find(st, tensor);
    assert_non_null(t);
    assert_true(at < t->n_bytes);
    off_t offset = (off_t)(t->data - safetensors_shard(st, 0, &n)) + (off_t)at;
    safetensors_free(st);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, &nan, 1, offset), 1);
    close(fd);
}

static void test_nan_dense(void **state)
{
    (void)state;
    spoil("layers.3.attn.wq_b.scale", 5); /* [8, 2] */
    expect_refused(ERR_FORMAT, "tensor layers.3.attn.wq_b.scale: scale [2, 1] is NaN");
}

/* Opens, and fails the first segment that reads it. */
static void expect_failure_with(const struct engine_options *o, const char *says)
{
    struct engine *m = drive_open(dir, o);
    struct seq *s = drive_seq(m);
    struct error e = {0};
    uint32_t ids[200];
    bool failed = false;
    drive_ids(ids, 200, 3);
    assert_ok(seq_input(s, ids, 200, PREFILL_FULL, &e), &e);
    while (engine_has_work(m)) {
        struct engine_event events[8];
        size_t n = 0;
        assert_ok(engine_step(m, events, 8, &n, &e), &e);
        for (size_t i = 0; i < n; i++)
            if (events[i].kind == ENGINE_DONE && events[i].reason == END_FAILED) {
                failed = true;
                assert_int_equal(events[i].error.code, ERR_FORMAT);
                if (!strstr(events[i].error.msg, says))
                    fail_msg("\"%s\", want \"%s\"", events[i].error.msg, says);
            }
    }
    assert_true(failed);
    engine_free(m);
}

/* Mapped, and read into a cache. */
static void expect_failure(const char *says)
{
    struct engine_options o = {.no_weight_digest = true, .n_threads = 1};
    expect_failure_with(&o, says);
    o.expert_ram = o.engram_ram = 1 << 20;
    expect_failure_with(&o, says);
}

static void test_nan_expert(void **state)
{
    (void)state;
    spoil("layers.4.ffn.experts.6.w2.scale", 9); /* [128, 2] */
    expect_failure("tensor layers.4.ffn.experts.6.w2.scale [4, 1] is NaN");
}

static void test_nan_engram(void **state)
{
    struct safetensors *st = NULL;
    struct error e = {0};
    char path[192];
    (void)state;
    /* All rows, so that one of them is looked up. */
    spoil("layers.3.engram.embed.scale", 0);
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    assert_ok(safetensors_open_file(&st, path, &e), &e);
    uint64_t n = 0;
    const struct tensor *t = safetensors_find(st, "layers.3.engram.embed.scale");
    off_t offset = (off_t)(t->data - safetensors_shard(st, 0, &n));
    size_t rows = t->n_bytes;
    safetensors_free(st);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    for (size_t i = 0; i < rows; i++)
        assert_int_equal(pwrite(fd, &(uint8_t){0xff}, 1, offset + (off_t)i), 1);
    close(fd);
    expect_failure("tensor layers.3.engram.embed.scale [");
}

static void write_text(const char *name, const char *text)
{
    char path[TEMPDIR_BYTES + 16];
    struct error e = {0};
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_ok(fs_write_atomic(path, text, strlen(text), 0600, &e), &e);
}

/* What a control group was charged for pages of files can be had again; a full one is not one
 * without a limit. */
static void test_memory(void **state)
{
    (void)state;
    char meminfo[TEMPDIR_BYTES + 16];
    snprintf(meminfo, sizeof(meminfo), "%s/meminfo", dir);
    assert_int_equal(inventory_memory_of(meminfo, dir), 0);
    write_text("meminfo", "MemTotal: 1024 kB\nMemAvailable: 512 kB\n");
    assert_int_equal(inventory_memory_of(meminfo, dir), 512 << 10);
    write_text("memory.max", "max\n");
    assert_int_equal(inventory_memory_of(meminfo, dir), 512 << 10);
    write_text("memory.max", "400000\n");
    write_text("memory.current", "400000\n");
    assert_int_equal(inventory_memory_of(meminfo, dir), 1);
    write_text("memory.stat",
               "anon 1\ninactive_anon 7\nactive_file 30000\ninactive_file 270000\n");
    assert_int_equal(inventory_memory_of(meminfo, dir), 300000);
    write_text("memory.max", "4000000\n");
    assert_int_equal(inventory_memory_of(meminfo, dir), 512 << 10);
    assert_true(inventory_memory() > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_full_size, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_all_problems, setup, teardown),
        cmocka_unit_test_setup_teardown(test_broken_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nan_dense, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nan_expert, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nan_engram, setup, teardown),
        cmocka_unit_test_setup_teardown(test_memory, setup, teardown),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
