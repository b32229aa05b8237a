/* A shard that is written to under an open model: nothing that was computed since is told to
 * anybody, what was computed before is good, and the message names the file and what changed.
 */
#include "tests/support/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"
#include "engine/observe.h"
#include "tests/support/drive.h"
#include "tests/support/tempdir.h"

#define MODEL GOLDEN "c_replay/model"
#define SHARD "model.safetensors"
#define N_IDS 40

static char dir[TEMPDIR_BYTES], shard[128];

static void copy(const char *name)
{
    AUTO(buf) struct buf text = BUF_INIT(64 << 20);
    struct error e = {0};
    char path[192];
    snprintf(path, sizeof(path), MODEL "/%s", name);
    assert_ok(fs_read_file(path, &text, &e), &e);
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_ok(fs_write_atomic(path, text.data, text.len, 0600, &e), &e);
}

static int setup(void **state)
{
    (void)state;
    tempdir_make(dir);
    snprintf(shard, sizeof(shard), "%s/" SHARD, dir);
    copy("config.json");
    copy("tokenizer.json");
    copy("model.safetensors.index.json");
    copy(SHARD);
    usleep(20000); /* a tick of the file system's clock */
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tempdir_remove(dir);
    return 0;
}

/* ---- what happens to it -------------------------------------------------------------------
 */

static void write_byte(void)
{
    int fd = open(shard, O_WRONLY | O_CLOEXEC);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(pwrite(fd, "\1", 1, st.st_size - 1), 1);
    close(fd);
}

/* As a copy does that keeps times. */
static void write_and_hide(void)
{
    struct stat st;
    assert_int_equal(stat(shard, &st), 0);
    write_byte();
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, shard, times, 0), 0);
}

static void append(void)
{
    int fd = open(shard, O_WRONLY | O_APPEND | O_CLOEXEC);
    assert_int_equal(write(fd, "\1", 1), 1);
    close(fd);
}

static void cut(void)
{
    assert_int_equal(truncate(shard, 4096), 0);
}

static void replace(void)
{
    copy(SHARD);
}

static void remove_it(void)
{
    assert_int_equal(unlink(shard), 0);
}

static const struct {
    void (*harm)(void);
    const char *says; /* NULL: what is mapped is what it was */
} CASES[] = {{write_byte, SHARD ": written to while it was in use"},
             {write_and_hide, "in use, its size and mtime kept"},
             {append, SHARD ": changed while it was in use, from "},
             {cut, " to 4096 bytes"},
             {replace, NULL},
             {remove_it, NULL}};

#define EACH_CASE(c) for (size_t c = 0; c < sizeof(CASES) / sizeof(*CASES); c++)

/* ---- an engine of it ----------------------------------------------------------------------
 */

static const struct engine_options OPTIONS = {
    .no_weight_digest = true, .n_threads = 1, .digests = true};

static void assert_says(const struct error *e, const char *says)
{
    assert_int_equal(e->code, ERR_CONFLICT);
    if (!strstr(e->msg, says) || !strstr(e->msg, "until a restart"))
        fail_msg("\"%s\", want \"%s\"", e->msg, says);
}

/* Steps until the work ends; the reason. Ids that were reported are counted. */
static enum end_reason run(struct engine *m, struct error *why, uint32_t *n_ids)
{
    struct engine_event ev[8];
    enum end_reason reason = END_FAILED;
    *n_ids = 0;
    while (engine_has_work(m)) {
        struct error e = {0};
        size_t n = 0;
        assert_ok(engine_step(m, ev, 8, &n, &e), &e);
        for (size_t i = 0; i < n; i++) {
            *n_ids += ev[i].kind == ENGINE_TOKENS ? ev[i].n_ids : 0;
            if (ev[i].kind == ENGINE_DONE) {
                reason = ev[i].reason;
                *why = ev[i].error;
            }
        }
    }
    return reason;
}

/* Between two pieces of work. What is there can be saved, no more of it comes, and neither does
 * a new sequence. */
static void test_at_rest(void **state)
{
    uint32_t ids[N_IDS];
    (void)state;
    drive_ids(ids, N_IDS, 1);
    EACH_CASE(c)
    {
        setup(NULL);
        struct engine *m = drive_open(dir, &OPTIONS);
        struct seq *s = drive_seq(m), *other = NULL, *empty = drive_seq(m);
        struct drive_state before, after;
        struct state_regions regions;
        struct error e = {0};
        uint32_t n_ids;
        drive_input(m, s, ids, N_IDS, PREFILL_CED);
        drive_export(m, s, &before);
        CASES[c].harm();
        const char *says = CASES[c].says;
        enum err rc = seq_new(m, NULL, &other, &e);
        assert_int_equal(rc, says ? ERR_CONFLICT : OK);
        if (says)
            assert_says(&e, says);
        seq_free(other);
        rc = seq_import_begin(empty, N_IDS, &regions, &e);
        assert_int_equal(rc, says ? ERR_CONFLICT : OK);
        drive_export(m, s, &after);
        drive_assert_planes(&before, &after);
        drive_assert_tip(&before, &after);
        assert_ok(seq_input(s, ids, N_IDS, PREFILL_CED, &e), &e);
        assert_int_equal(run(m, &e, &n_ids), says ? END_FAILED : END_SEGMENT);
        if (says)
            assert_says(&e, says);
        assert_int_equal(seq_position(s), says ? N_IDS : 2 * N_IDS);
        drive_state_free(&before);
        drive_state_free(&after);
        engine_free(m);
        teardown(NULL);
    }
}

/* ---- in the middle of a pass --------------------------------------------------------------
 */

struct in_pass {
    const char *at; /* name of a tensor */
    uint64_t position;
    bool done;
};

static void on_tensor(void *user, struct seq *s, const struct observed *t)
{
    struct in_pass *p = user;
    (void)s;
    if (p->done || t->pos0 + t->n <= p->position || strcmp(t->name, p->at) != 0)
        return;
    p->done = true;
    write_byte();
}

/* The token of the pass that was under way is not reported, the position stays. */
static void test_in_a_pass(void **state)
{
    uint32_t ids[N_IDS], n_ids;
    (void)state;
    drive_ids(ids, N_IDS, 1);
    for (uint64_t more = 0; more < 4; more++) {
        setup(NULL);
        struct engine *m = drive_open(dir, &OPTIONS);
        struct seq *s = drive_seq(m);
        struct in_pass p = {.at = "route_idx", .position = N_IDS + more};
        struct generate_options g = {.sampling = {.seed = 1, .temperature = 1, .top_p = 1},
                                     .max_tokens = 20};
        struct error e = {0};
        drive_input(m, s, ids, N_IDS, PREFILL_CED);
        engine_observe(m, &(struct observer){.user = &p, .tensor = on_tensor});
        assert_ok(seq_generate(s, &g, &e), &e);
        assert_int_equal(run(m, &e, &n_ids), END_FAILED);
        assert_true(p.done);
        assert_says(&e, "written to");
        assert_int_equal(n_ids, 1 + more); /* the first comes before any pass */
        assert_int_equal(seq_position(s), N_IDS + more);
        engine_free(m);
        teardown(NULL);
    }
}

/* A chunk is no better: all of it or nothing. */
static void test_in_a_chunk(void **state)
{
    uint32_t ids[N_IDS], n_ids;
    struct error e = {0};
    (void)state;
    drive_ids(ids, N_IDS, 1);
    setup(NULL);
    struct engine *m = drive_open(dir, &OPTIONS);
    struct seq *s = drive_seq(m);
    struct in_pass p = {.at = "route_idx"};
    engine_observe(m, &(struct observer){.user = &p, .tensor = on_tensor});
    assert_ok(seq_input(s, ids, N_IDS, PREFILL_CED, &e), &e);
    assert_int_equal(run(m, &e, &n_ids), END_FAILED);
    assert_says(&e, "written to");
    assert_int_equal(seq_position(s), 0);
    engine_free(m);
    teardown(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_at_rest),
        cmocka_unit_test(test_in_a_pass),
        cmocka_unit_test(test_in_a_chunk),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
