/* What keeps the store's thread for long, and how long: purge and fsck of a database, step by
 * step, with a commit between any two of them. The short form has 2 MB; the long form some 100
 * MB on the disk below /tmp, and prints what the longest steps take. */
#include <stdlib.h>
#include <sys/stat.h>

#include "sessions/fsck.h"
#include "sessions/gc.h"
#include "tests/support/store_fixture.h"
#include "tests/support/test.h"

#define EVENT_BYTES 6000
#define SESSION_EVENTS 100
#define MAX_STEPS 100000

static const char *const words[] = {"open",  "the",  "file", "error", "line", "import", "was",
                                    "night", "read", "path", "block", "run",  "test",   "if"};

static void fill_text(char *out, size_t n, uint64_t *seed)
{
    size_t at = (size_t)snprintf(out, n, "{\"text\":\"");
    while (at + 40 < n) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        uint32_t r = (uint32_t)(*seed >> 33);
        at += (size_t)snprintf(out + at, n - at, r % 5 ? "%s " : "%s%u ",
                               words[r / 8 % (sizeof words / sizeof words[0])], r % 50000);
    }
    snprintf(out + at, n - at, "\"}");
}

static void add_session(struct store_fixture *f, int number, uint64_t *seed,
                        char id[SESSION_ID_CAP])
{
    static char text[8][EVENT_BYTES];
    char name[24], item[8][16];
    struct error e;
    snprintf(name, sizeof name, "s%d", number);
    fixture_session(f, name, id);
    assert_ok(fixture_append(f->st, id, 100, 1000, SEGMENT_INPUT, &e), &e);
    for (int i = 0; i < SESSION_EVENTS; i += 8) {
        struct tape_event ev[8];
        for (int k = 0; k < 8; k++) {
            fill_text(text[k], EVENT_BYTES, seed);
            snprintf(item[k], sizeof item[k], "i%d", i + k);
            ev[k] = (struct tape_event){.type = "item",
                                        .item = item[k],
                                        .kind = "tool_result",
                                        .json = text[k],
                                        .position = TAPE_END};
        }
        struct tape_commit c = {.session = id, .events = ev, .n_events = 8};
        assert_ok(tape_commit(f->st, &c, NULL, &e), &e);
    }
}

struct times {
    uint64_t *ns;
    size_t n;
    uint64_t sum;
};

static int by_ns(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void add_time(struct times *t, uint64_t t0)
{
    assert_true(t->n < MAX_STEPS);
    t->ns[t->n] = clock_mono_ns(clock_real()) - t0;
    t->sum += t->ns[t->n++];
}

static void tell(struct times *t, const char *what)
{
    qsort(t->ns, t->n, sizeof *t->ns, by_ns);
    fprintf(stderr, "%s: %zu steps, %.0f ms in all, median %.2f, longest", what, t->n,
            (double)t->sum / 1e6, (double)t->ns[t->n / 2] / 1e6);
    for (size_t i = 1; i <= 5 && i <= t->n; i++)
        fprintf(stderr, " %.1f", (double)t->ns[t->n - i] / 1e6);
    fprintf(stderr, " ms\n");
    t->n = 0;
    t->sum = 0;
}

struct step_test {
    struct store_fixture f;
    struct times t;
    uint64_t n_found;
};

/* What the rest of the store does between two steps. */
static void commit_something(struct step_test *t, const char *id)
{
    struct error e;
    assert_ok(fixture_append(t->f.st, id, 7, 3, SEGMENT_INPUT, &e), &e);
}

static void see(void *user, const struct fsck_finding *f)
{
    print_error("fsck: %s: %s\n", f->kind, f->what);
    ++*(uint64_t *)user;
}

static void time_fsck(struct step_test *t, const char *id)
{
    struct error e;
    struct fsck *k;
    assert_ok(fsck_begin(t->f.st, false, see, &t->n_found, &k, &e), &e);
    for (bool done = false; !done;) {
        uint64_t t0 = clock_mono_ns(clock_real());
        assert_ok(fsck_step(k, &done, &e), &e);
        add_time(&t->t, t0);
        commit_something(t, id);
    }
    assert_true(fsck_so_far(k)->rows > SESSION_EVENTS);
    fsck_end(k);
    assert_int_equal(t->n_found, 0);
    assert_true(t->t.n > 20);
    tell(&t->t, "fsck");
}

static void time_purge(struct step_test *t, const char *id)
{
    struct error e;
    struct gc *g;
    assert_ok(gc_begin(t->f.st, GC_PURGE, &g, &e), &e);
    for (bool done = false; !done;) {
        uint64_t t0 = clock_mono_ns(clock_real());
        assert_ok(gc_step(g, &done, &e), &e);
        add_time(&t->t, t0);
        commit_something(t, id);
    }
    gc_end(g);
    assert_true(t->t.n > 8);
    tell(&t->t, "purge (the longest writes the database file anew)");
}

static uint64_t file_size(const char *path)
{
    struct stat sb;
    assert_int_equal(stat(path, &sb), 0);
    return (uint64_t)sb.st_size;
}

static void commits_between_steps(void **state)
{
    (void)state;
    static struct step_test t;
    struct error e;
    char first[SESSION_ID_CAP], id[SESSION_ID_CAP];
    bool slow = getenv("AGENTD_SLOW") != NULL;
    uint64_t seed = 1;
    assert_non_null(t.t.ns = malloc(MAX_STEPS * sizeof *t.t.ns));
    store_fixture_init(&t.f, slow);
    assert_ok(store_fixture_open(&t.f, &e), &e);
    for (int i = 0; i < (slow ? 150 : 2); i++)
        add_session(&t.f, i, &seed, i ? id : first);
    store_fixture_reopen(&t.f);
    uint64_t before = file_size(t.f.db);
    fprintf(stderr, "a database of %.1f MB\n", (double)before / 1e6);
    time_fsck(&t, id);
    assert_ok(session_delete(t.f.st, first, &e), &e);
    time_purge(&t, id);
    store_fixture_reopen(&t.f);
    assert_true(file_size(t.f.db) < before);
    time_fsck(&t, id);
    free(t.t.ns);
    store_fixture_fini(&t.f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commits_between_steps),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
