/* Bounded residency, counted: what a sequence has in a device's memory when the main rows are
 * under a budget, at the real geometry and 1,048,576 tokens, and while a long one runs; and
 * that buffers of runs are of their largest size from the start. The device is a fence
 * (tests/support/fenced.h), which knows every byte it gave out. */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "engine/ahead.h"
#include "engine/experts.h"
#include "engine/kv_gather.h"
#include "tests/support/drive.h"
#include "tests/support/fenced.h"
#include "tests/support/golden.h"
#include "tests/support/tempdir.h"
#include "tests/support/test.h"

#define MODEL GOLDEN "a_tiny/model"
#define GRANULE ((size_t)2 << 20) /* of a device: planes grow by these */

/* ---- the real geometry --------------------------------------------------------------------
 */

static void load_flash(struct config *c)
{
    char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 16], from[4096];
    struct error e = {0};
    tempdir_make(dir);
    snprintf(path, sizeof(path), "%s/config.json", dir);
    assert_non_null(realpath("tests/configs/flash.json", from));
    assert_int_equal(symlink(from, path), 0);
    assert_ok(config_load(c, dir, &e), &e);
    tempdir_remove(dir);
}

/* Bytes that a sequence needs at least: index keys, rings, unfinished groups. */
static size_t least_bytes(const struct kv_shape *s, uint64_t n_tokens)
{
    size_t n = (size_t)s->n_rings * s->window * s->ring_row +
               ((size_t)s->n_sources + 1) * 2 * s->head_dim * sizeof(float);
    for (uint32_t i = 1; i < s->n_planes; i += 2)
        n += state_rows(&s->planes[i], n_tokens) * s->planes[i].row_bytes;
    return n;
}

static enum err fetch_zeros(void *ctx, uint32_t plane, uint64_t first, uint64_t n, void *dst,
                            struct error *e)
{
    const struct kv_shape *s = ctx;
    (void)first, (void)e;
    memset(dst, 0, n * s->planes[plane].row_bytes);
    return OK;
}

static void fetch_close(void *ctx)
{
    (void)ctx;
}

/* The state of n tokens comes back; returns what it and the gathered rows take of the device.
 */
static size_t resume(const struct config *c, uint64_t budget, uint64_t n)
{
    struct error e = {0};
    struct kernels k = {0};
    struct kv_shape shape;
    struct kv_pages *pages = NULL;
    struct kv_gather *gather = NULL;
    struct state_regions to;
    struct kv kv;
    uint32_t chunk = 2048;
    kv_shape_init(&shape, c, PRECISION_FAST);
    assert_ok(fenced_ref_open(&k, NULL, &e), &e);
    struct kv_memory memory = {.k = &k, .page_bytes = GRANULE, .limit_bytes = UINT64_MAX};
    const struct kv_pages_options o = {.shape = &shape,
                                       .top_k = c->index_topk,
                                       .least_tokens = 1,
                                       .chunk_tokens = chunk,
                                       .budget_bytes = budget,
                                       .dir = "/var/tmp"};
    assert_int_equal(fenced_bytes(), 0);
    (void)fenced_most();
    assert_ok(kv_pages_new(&pages, &o, &chunk, &e), &e);
    assert_ok(kv_gather_new(&gather, pages, &shape, &k, &e), &e);
    assert_ok(kv_init(&kv, &shape, &memory, pages, &e), &e);
    assert_ok(kv_reserve(&kv, n, &e), &e);
    assert_ok(kv_import_begin(&kv, n, &to, &e), &e);
    memset((uint8_t *)to.plane[1] + 4096, 7, 100); /* an index plane, told of in part */
    to.landed(to.ctx, to.plane[1], 8192);
    const struct state_fetch f = {&shape, n, fetch_zeros, fetch_close};
    assert_ok(kv_leave_behind(&kv, &f, &e), &e);
    assert_ok(kv_make_room(&kv, n, 0, &e), &e);
    assert_ok(kv_land(&kv, n, &e), &e);
    uint8_t got[100], want[100];
    k.copy_out(&k, got, kv_keys(&kv, 0, 0) + 4096, sizeof(got));
    memset(want, 7, sizeof(want));
    assert_memory_equal(got, want, sizeof(got));
    kv.n_tokens = n;
    size_t most = fenced_most();
    assert_int_equal(most, fenced_bytes()); /* nothing came and went */
    assert_true(most - kv_pages_gather_bytes(pages) <= memory.promised_bytes);
    assert_true(kv_pages_device_bytes(&o) >= kv_pages_gather_bytes(pages));
    assert_true(most >= least_bytes(&shape, n));
    kv_fini(&kv);
    kv_memory_fini(&memory, &shape);
    kv_gather_free(gather);
    kv_pages_free(pages);
    assert_int_equal(fenced_bytes(), 0);
    kernels_fini(&k);
    return most;
}

/* 178.3 MB of index keys, 2.9 MB of rings; the rest is the budget's, and not all of that is in
 * the device. */
static void test_real_geometry(void **state)
{
    struct config c;
    struct kv_shape shape;
    (void)state;
    load_flash(&c);
    kv_shape_init(&shape, &c, PRECISION_FAST);
    uint64_t n = c.max_tokens;
    assert_int_equal(n, 1048576);
    static const uint64_t BUDGETS[] = {UINT64_C(1) << 20, UINT64_C(16) << 20};
    for (size_t i = 0; i < sizeof(BUDGETS) / sizeof(*BUDGETS); i++) {
        size_t most = resume(&c, BUDGETS[i], n);
        print_message("%" PRIu64 " tokens, --kv-resident %" PRIu64
                      "M: %zu bytes in the device, "
                      "%zu at least\n",
                      n, BUDGETS[i] >> 20, most, least_bytes(&shape, n));
        assert_true(most <= 190000000);
        assert_true(most <= least_bytes(&shape, n) + BUDGETS[i]);
    }
    /* Where a plane does not fill its last granules it has them all the same. */
    size_t half = resume(&c, UINT64_C(1) << 20, n / 2 + 1);
    assert_true(half <= least_bytes(&shape, n / 2 + 1) + (UINT64_C(1) << 20) +
                            shape.n_sources * GRANULE);
}

/* ---- a long sequence ----------------------------------------------------------------------
 */

static struct engine *open_model(uint64_t kv_resident, uint32_t chunk)
{
    struct engine_options o = {
        .kv_resident = kv_resident, .chunk_tokens = chunk, .no_weight_digest = true};
    backend_option(&o, "fenced");
    return drive_open(MODEL, &o);
}

/* Experts that came, and the lists of those of layers that have all. */
static uint64_t experts_bytes(struct engine *m)
{
    const struct weights *w = &model_of(m)->weights;
    struct engine_tier t[ENGINE_MAX_TIERS];
    uint64_t n = 0;
    assert_true(engine_tiers(m, t) > 0);
    assert_string_equal(t[0].name, "experts");
    for (uint32_t l = 0; l < w->n_layers; l++)
        if (experts_held(model_of(m)->experts, l))
            n += (w->layers[l].n_experts + UINT64_C(1)) * sizeof(struct k_expert);
    return t[0].resident_bytes + n;
}

/* Most bytes that n tokens and a few sampled ones take of the device, beside what the model
 * does and experts that come when they are chosen. */
static size_t run_long(uint64_t kv_resident, uint64_t n)
{
    static uint32_t ids[3000];
    struct error e = {0};
    const struct generate_options g = {.sampling = {.top_p = 1}, .max_tokens = 8};
    size_t got = 0;
    struct engine *m = open_model(kv_resident, 32);
    size_t before = fenced_bytes();
    (void)fenced_most();
    drive_ids(ids, n, 11);
    struct seq *s = drive_seq(m);
    drive_input(m, s, ids, n, PREFILL_CED);
    assert_ok(seq_generate(s, &g, &e), &e);
    (void)drive_run(m, ids, 8, &got);
    assert_true(got > 0);
    size_t most = fenced_most() - before - experts_bytes(m);
    const struct model *model = model_of(m);
    assert_true(most <= model->memory.promised_bytes + model->config.dim * sizeof(float));
    engine_free(m);
    return most;
}

static void test_long_sequence(void **state)
{
    static const uint64_t BUDGET = 60000, SHORT = 500, LONG = 3000;
    struct config c;
    struct kv_shape shape;
    struct error e = {0};
    (void)state;
    assert_ok(config_load(&c, MODEL, &e), &e);
    kv_shape_init(&shape, &c, PRECISION_FAST);
    size_t one = run_long(BUDGET, SHORT), six = run_long(BUDGET, LONG);
    size_t all = run_long(0, LONG);
    size_t row = c.dim * sizeof(float), pages = (shape.n_sources + (size_t)1) * 4096;
    size_t keys = least_bytes(&shape, LONG + 9) - least_bytes(&shape, SHORT + 9);
    assert_true(six <= least_bytes(&shape, LONG + 9) + row + pages + BUDGET);
    assert_true(six - one <= keys + pages); /* of what is added only index keys are kept */
    size_t rows = 0;
    for (uint32_t i = 0; i < shape.n_planes; i += 2)
        rows += state_rows(&shape.planes[i], LONG) * shape.planes[i].row_bytes;
    assert_true(rows > 2 * BUDGET && all >= least_bytes(&shape, LONG) + rows);
}

/* ---- buffers of runs ----------------------------------------------------------------------
 */

static void step_all(struct engine *m)
{
    static struct engine_event events[1024]; /* for all that may decode at once */
    struct error e = {0};
    size_t n = 0;
    while (engine_has_work(m)) {
        assert_ok(engine_step(m, events, 1024, &n, &e), &e);
        for (size_t i = 0; i < n; i++)
            assert_true(events[i].kind != ENGINE_DONE || events[i].reason != END_FAILED);
    }
}

/* Streams that waited for their segment run as one, however small a chunk is, and so may as
 * many as can decode: no run finds that its buffers are too small. */
static void test_work_is_whole(void **state)
{
    enum { N = 70 };
    static uint32_t ids[400];
    struct seq *s[N];
    struct error e = {0};
    const struct generate_options g = {.sampling = {.top_p = 1}, .max_tokens = 2};
    (void)state;
    drive_ids(ids, 400, 13);
    struct engine *m = open_model(0, 4);
    const struct work *w = model_of(m)->work;
    uint32_t cap = w->cap;
    assert_true(cap >= model_of(m)->config.window + 64);
    for (int i = 0; i < N; i++) {
        s[i] = drive_seq(m);
        drive_input(m, s[i], ids + i, 3, PREFILL_FULL);
    }
    struct seq *ahead = drive_seq(m);
    assert_ok(seq_ahead(ahead, ids, 200, PREFILL_CED, &e), &e);
    step_all(m);
    for (int i = 0; i < N; i++)
        assert_ok(seq_generate(s[i], &g, &e), &e);
    assert_ok(seq_input(ahead, ids, 200, PREFILL_CED, &e), &e);
    step_all(m);
    assert_int_equal(seq_position(ahead), 200);
    assert_ptr_equal(model_of(m)->work, w);
    assert_int_equal(w->cap, cap);
    engine_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_real_geometry),
                                       cmocka_unit_test(test_long_sequence),
                                       cmocka_unit_test(test_work_is_whole)};
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
