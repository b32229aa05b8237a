/* The engine on memory that the host may not touch (tests/support/fenced.h): that the fence is
 * one, that budgets and refusals count the backend's memory, and whole test programs behind it.
 * With AGENTD_SLOW all that run a checkpoint, but for golden_fast and golden_official, which
 * look into work buffers themselves. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/forward.h"
#include "tests/support/drive.h"
#include "tests/support/fenced.h"
#include "tests/support/golden.h"
#include "tests/support/test.h"

#define MODEL GOLDEN "a_tiny/model"

extern char **environ;

/* ---- the fence ----------------------------------------------------------------------------
 */

static void touch(struct kernels *k, volatile uint8_t *p)
{
    (void)k;
    *p = 1;
}

static void look(struct kernels *k, volatile uint8_t *p)
{
    (void)k;
    if (*p)
        _exit(0);
}

static void hand_in_host_memory(struct kernels *k, volatile uint8_t *p)
{
    float x = 1;
    (void)p;
    k->scale(k, &(struct k_scale){&x, 1, 2, K_EXACT});
}

static void copy_from_backend_memory(struct kernels *k, volatile uint8_t *p)
{
    uintptr_t at = (uintptr_t)p;
    k->copy_in(k, (void *)at, (void *)at, 1);
}

/* What a child process does with memory of the backend ends it. */
static void assert_ends(void (*what)(struct kernels *k, volatile uint8_t *p))
{
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        struct kernels k = {0};
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        dup2(null, STDERR_FILENO);
        signal(SIGSEGV, SIG_DFL); /* not cmocka's, which goes on with the next test */
        signal(SIGBUS, SIG_DFL);
        signal(SIGABRT, SIG_DFL);
        if (fenced_ref_open(&k, NULL, NULL))
            _exit(0);
        what(&k, k.alloc(&k, 64));
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(status != 0);
}

static void test_fence(void **state)
{
    (void)state;
    struct kernels k = {0};
    struct error e = {0};
    assert_ends(touch);
    assert_ends(look);
    assert_ends(hand_in_host_memory);
    assert_ends(copy_from_backend_memory);

    assert_ok(fenced_ref_open(&k, NULL, &e), &e);
    float in[2] = {1, 2}, out[2] = {0}, *p = k.alloc(&k, sizeof(in));
    int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(zero, p, 4), -1); /* the kernel cannot reach it, either */
    assert_int_equal(errno, EFAULT);
    close(zero);
    k.copy_in(&k, p, in, sizeof(in));
    k.scale(&k, &(struct k_scale){p, 2, 3, K_EXACT});
    k.copy_out(&k, out, p, sizeof(out));
    assert_true(out[0] == 3 && out[1] == 6);
    assert_int_equal(fenced_bytes(), sizeof(in));
    k.free(&k, p);
    kernels_fini(&k);
}

/* ---- how much memory there is -------------------------------------------------------------
 */

static enum err open_with(size_t limit, uint64_t expert_ram, struct engine **m, struct error *e)
{
    struct engine_options o = {
        .expert_ram = expert_ram, .chunk_tokens = 64, .no_weight_digest = true};
    backend_option(&o, "fenced");
    fenced_limit(limit);
    return engine_open_model(m, MODEL, &o, e);
}

/* Whatever the memory is too small for is refused, and nothing is left behind. */
static void test_little_memory(void **state)
{
    (void)state;
    struct error e = {0};
    struct engine *m = NULL;
    assert_ok(open_with(SIZE_MAX, 0, &m, &e), &e);
    size_t all = fenced_bytes();
    engine_free(m);
    assert_int_equal(fenced_bytes(), 0);
    for (size_t limit = 0; limit < all; limit += all / 23) {
        e = (struct error){0};
        enum err rc = open_with(limit, 0, &m, &e);
        assert_true(rc == ERR_LIMIT || rc == ERR_NOMEM);
        assert_true(*e.msg);
        assert_int_equal(fenced_bytes(), 0);
    }
    /* Room for the model and hardly a sequence. */
    assert_ok(open_with(all + 4096, 4096, &m, &e) == ERR_LIMIT ? OK : ERR_IO, &e);
    fenced_limit(SIZE_MAX);
}

static void test_sequences_are_counted(void **state)
{
    (void)state;
    struct error e = {0};
    struct engine *m = NULL;
    struct seq *s[64];
    size_t n = 0;
    assert_ok(open_with(SIZE_MAX, 0, &m, &e), &e);
    size_t all = fenced_bytes();
    engine_free(m);
    assert_ok(open_with(2 * all, 0, &m, &e), &e);
    enum err rc = OK;
    uint32_t ids[200] = {1, 2, 3};
    while (n < 64 && !(rc = seq_new(m, NULL, &s[n], &e)) &&
           !(rc = seq_input(s[n], ids, 200, PREFILL_CED, &e)))
        n++;
    assert_true(n > 0 && n < 64);
    assert_true(rc == ERR_LIMIT || rc == ERR_NOMEM);
    while (engine_has_work(m)) {
        struct engine_event ev[8];
        size_t n_events = 0;
        assert_ok(engine_step(m, ev, 8, &n_events, &e), &e);
        for (size_t i = 0; i < n_events; i++)
            assert_true(ev[i].kind != ENGINE_DONE || ev[i].reason == END_SEGMENT);
    }
    engine_free(m);
    assert_int_equal(fenced_bytes(), 0);
    fenced_limit(SIZE_MAX);
}

/* A device that is fuller than it was when the model opened: what a sequence asks for in vain
 * costs nothing, however often it asks. */
static void test_asked_in_vain(void **state)
{
    (void)state;
    struct error e = {0};
    struct engine *m = NULL;
    static uint32_t ids[1000];
    drive_ids(ids, 1000, 9);
    assert_ok(open_with(SIZE_MAX, 0, &m, &e), &e);
    struct seq *s = drive_seq(m);
    drive_input(m, s, ids, 10, PREFILL_CED);
    size_t given = fenced_bytes();
    uint64_t promised = model_of(m)->memory.promised_bytes;
    fenced_limit(given + 30000); /* for some planes, not for all */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(seq_input(s, ids, 1000, PREFILL_CED, &e), ERR_LIMIT);
        assert_int_equal(fenced_bytes(), given);
        assert_int_equal(model_of(m)->memory.promised_bytes, promised);
    }
    fenced_limit(SIZE_MAX);
    drive_input(m, s, ids, 1000, PREFILL_CED);
    engine_free(m);
    assert_int_equal(fenced_bytes(), 0);
}

/* ---- imports ------------------------------------------------------------------------------
 */

struct fill {
    const struct drive_state *from;
    struct state_regions to;
};

/* What a restore does on a thread of its own: pieces in no order, some told of twice, some not
 * at all, some that end in the middle of a row. */
static void *fill_regions(void *arg)
{
    const struct fill *f = arg;
    for (uint32_t p = 0; p < f->from->n_planes; p++) {
        const uint8_t *src = f->from->plane[p];
        uint8_t *dst = f->to.plane[p];
        size_t n = f->from->plane_bytes[p], piece = 100, n_pieces = (n + piece - 1) / piece;
        memcpy(dst, src, n);
        for (size_t i = 0; i < n_pieces; i++) {
            size_t at = i * 7 % n_pieces * piece, bytes = n - at < piece ? n - at : piece;
            if (i % 5)
                f->to.landed(f->to.ctx, dst + at, bytes);
            if (i % 4 == 0)
                f->to.landed(f->to.ctx, dst + at, bytes / 2);
        }
    }
    return NULL;
}

static void import_beside(struct engine *m, const struct drive_state *st)
{
    struct error e = {0};
    struct drive_state after;
    struct fill f = {.from = st};
    pthread_t thread;
    struct seq *s = drive_seq(m);
    assert_ok(seq_import_begin(s, st->n_tokens, &f.to, &e), &e);
    assert_non_null(f.to.landed);
    assert_int_equal(pthread_create(&thread, NULL, fill_regions, &f), 0);
    pthread_join(thread, NULL);
    assert_ok(seq_import_tip(s, st->tip, st->tip_bytes, &st->digest, &e), &e);
    drive_export(m, s, &after);
    drive_assert_planes(st, &after);
    drive_assert_tip(st, &after);
    drive_state_free(&after);
    seq_free(s);
}

static void test_landing(void **state)
{
    (void)state;
    struct error e = {0};
    struct engine *m = NULL;
    struct drive_state st;
    struct fill f = {.from = &st};
    uint32_t ids[230];
    drive_ids(ids, 230, 7);
    assert_ok(open_with(SIZE_MAX, 0, &m, &e), &e);
    struct seq *s = drive_seq(m);
    drive_input(m, s, ids, 230, PREFILL_CED);
    drive_export(m, s, &st);
    for (int i = 0; i < 3; i++) /* later ones land where the first one did */
        import_beside(m, &st);
    /* Given up half way, begun anew on the same sequence, given up again. */
    struct seq *other = drive_seq(m);
    for (int i = 0; i < 2; i++) {
        assert_ok(seq_import_begin(other, st.n_tokens, &f.to, &e), &e);
        fill_regions(&f);
    }
    seq_free(other);
    drive_state_free(&st);
    engine_free(m);
    assert_int_equal(fenced_bytes(), 0);
}

/* Uploads that are not begun are copied when their import ends, and are no concern of another
 * one that is under way: both are whole. */
static void test_refused_uploads(void **state)
{
    (void)state;
    struct error e = {0};
    struct engine *m = NULL;
    struct drive_state st, after;
    struct fill f[2] = {{.from = &st}, {.from = &st}};
    struct seq *s[2];
    uint32_t ids[230];
    drive_ids(ids, 230, 7);
    assert_ok(open_with(SIZE_MAX, 0, &m, &e), &e);
    struct seq *from = drive_seq(m);
    drive_input(m, from, ids, 230, PREFILL_CED);
    drive_export(m, from, &st);
    for (int i = 0; i < 2; i++) {
        s[i] = drive_seq(m);
        assert_ok(seq_import_begin(s[i], st.n_tokens, &f[i].to, &e), &e);
        fenced_refuse_uploads(i ? 0 : 5);
        fill_regions(&f[i]);
    }
    for (int i = 1; i >= 0; i--) {
        assert_ok(seq_import_tip(s[i], st.tip, st.tip_bytes, &st.digest, &e), &e);
        drive_export(m, s[i], &after);
        drive_assert_planes(&st, &after);
        drive_assert_tip(&st, &after);
        drive_state_free(&after);
    }
    drive_state_free(&st);
    engine_free(m);
    assert_int_equal(fenced_bytes(), 0);
}

/* ---- a device that fails ------------------------------------------------------------------
 */

static void copy_nothing(struct kernels *k, void *dst, const void *src, size_t bytes)
{
    (void)k, (void)dst, (void)src, (void)bytes;
}

static enum err tell(struct kernels *k, struct error *e)
{
    (void)k;
    return err_set(e, ERR_GPU, "no copies");
}

/* What did not arrive from the device is no number of an expert or of a row, whatever was in
 * the buffers; and the next sequence is none the worse. */
static void test_no_copies(void **state)
{
    (void)state;
    struct error e = {0};
    struct engine *m = NULL;
    struct engine_event ev[8];
    size_t n = 0;
    uint32_t ids[100];
    struct engine_options o = {
        .kv_resident = 1000000, .chunk_tokens = 64, .no_weight_digest = true};
    backend_option(&o, "fenced");
    drive_ids(ids, 100, 3);
    assert_ok(engine_open_model(&m, MODEL, &o, &e), &e);
    struct kernels *k = &model_of(m)->k, works = *k;
    struct seq *s = drive_seq(m);
    assert_ok(seq_input(s, ids, 100, PREFILL_FULL, &e), &e);
    struct work *w = model_of(m)->work;
    const struct config *c = &model_of(m)->config;
    memset(w->experts, 0x7f, w->cap * c->n_active * sizeof(*w->experts));
    memset(w->sel, 0x7f, w->cap * c->index_topk * sizeof(*w->sel));
    k->copy_out = copy_nothing;
    k->sync = tell;
    assert_ok(engine_step(m, ev, 8, &n, &e), &e);
    *k = works;
    assert_int_equal(n, 1);
    assert_int_equal(ev[0].reason, END_FAILED);
    assert_int_equal(ev[0].error.code, ERR_GPU);
    seq_free(s);
    drive_input(m, drive_seq(m), ids, 100, PREFILL_FULL);
    engine_free(m);
}

/* ---- other programs -----------------------------------------------------------------------
 */

static void run_behind_fence(const char *name)
{
    const char *build = getenv("AGENTD_BUILD");
    char path[256];
    pid_t child;
    int status = 0;
    snprintf(path, sizeof(path), "%s/tests/engine/test_%s", build ? build : "build", name);
    char *argv[] = {path, NULL};
    setenv("AGENTD_TEST_FENCED", "1", 1);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    int rc = posix_spawn(&child, path, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    unsetenv("AGENTD_TEST_FENCED");
    assert_int_equal(rc, 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (status)
        fail_msg("test_%s behind the fence: status %#x", name, (unsigned)status);
}

static void test_programs(void **state)
{
    (void)state;
    static const char *const NAMES[] = {"golden_f_segments", "golden_c_replay", "tiers_kv"};
    static const char *const MORE[] = {"golden_a_tiny",   "golden_b_long",  "golden_drafts",
                                       "golden_g_resume", "ahead",          "batching",
                                       "chunks",          "contract_model", "drafts",
                                       "resume",          "tiers"};
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(*NAMES); i++)
        run_behind_fence(NAMES[i]);
    for (size_t i = 0; getenv("AGENTD_SLOW") && i < sizeof(MORE) / sizeof(*MORE); i++)
        run_behind_fence(MORE[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fence),
                                       cmocka_unit_test(test_little_memory),
                                       cmocka_unit_test(test_sequences_are_counted),
                                       cmocka_unit_test(test_asked_in_vain),
                                       cmocka_unit_test(test_landing),
                                       cmocka_unit_test(test_refused_uploads),
                                       cmocka_unit_test(test_no_copies),
                                       cmocka_unit_test(test_programs)};
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
