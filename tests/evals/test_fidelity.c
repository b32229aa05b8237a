/* verify-resume: that its comparisons see a difference, and its short form on the demo
 * checkpoint, with a daemon. */
#include "tests/support/test.h"

#include <glob.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <time.h>

#include "base/fs.h"
#include "base/spawn.h"
#include "evals/arm.h"
#include "evals/fidelity.h"
#include "tests/support/build_folder.h"
#include "tests/support/evals_run.h"
#include "tests/support/tempdir.h"

#ifdef __SANITIZE_ADDRESS__
#define LIMIT_MS 280000
#else
#define LIMIT_MS 58000
#endif

#define DEMO "examples/demo-model/checkpoint"

/* ---- distances -------------------------------------------------------------------------- */

static void distances_of_known_rows(void **state)
{
    (void)state;
    const float a[4] = {logf(0.5f), logf(0.25f), logf(0.125f), logf(0.125f)};
    const float b[4] = {logf(0.25f), logf(0.5f), logf(0.125f), logf(0.125f)};
    float shifted[4];
    struct arm_distance d;
    arm_measure(a, b, 4, &d);
    assert_true(fabs(d.kl - 0.25 * log(2)) < 1e-6);
    assert_true(fabs(d.max_diff - log(2)) < 1e-6 && fabs(d.gap - log(2)) < 1e-6);
    assert_false(d.top1);
    assert_true(d.top20 >= 1);
    for (int i = 0; i < 4; i++)
        shifted[i] = a[i] + 3;
    arm_measure(a, shifted, 4, &d);
    assert_true(fabs(d.kl) < 1e-6 && d.top1);
    float many[64], other[64];
    for (int i = 0; i < 64; i++) {
        many[i] = (float)i;
        other[i] = (float)(i < 54 ? i : i - 54); /* ten of the first twenty are gone */
    }
    arm_measure(many, other, 64, &d);
    assert_true(fabs(d.top20 - 0.5) < 1e-12);
}

/* ---- a difference is found -------------------------------------------------------------- */

static void one_other_token_is_seen(void **state)
{
    (void)state;
    const struct engine_options o = {.digests = true, .no_weight_digest = true};
    const struct arm_keep keep = {.first = 1024, .n = 128, .n_all = 16, .stride = 16};
    struct fidelity_tape t;
    AUTO(arm) struct arm a = {.m = NULL};
    AUTO(arm) struct arm b = {.m = NULL};
    struct error e = {0};
    assert_ok(fidelity_tape_make(&t, DEMO, 1024, 128, 3, &e), &e);
    assert_ok(arm_open(&a, DEMO, &o, &t.view, &keep, &e), &e);
    assert_ok(arm_open(&b, DEMO, &o, &t.view, &keep, &e), &e);
    assert_ok(arm_run(&a, UINT64_MAX, &e), &e);
    assert_ok(arm_run(&b, UINT64_MAX, &e), &e);
    struct arm_difference d = arm_compare(&b, &a, 0, t.view.n_ids);
    assert_true(d.n_rows > 128 && !d.n_different && !d.n_missing);
    assert_non_null(arm_logits(&a, 1024));
    assert_non_null(arm_logits(&a, 1040));
    assert_null(arm_logits(&a, 1041)); /* between two of the stride */
    const uint32_t was = t.ids[1100];
    t.ids[1100] = was + 1;
    assert_ok(arm_reset(&b, &e), &e);
    assert_ok(arm_run(&b, 1140, &e), &e);
    d = arm_compare(&b, &a, 0, t.view.n_ids);
    assert_int_equal(d.first, 1100);
    assert_int_equal(d.n_different, 40);
    assert_int_equal(d.n_missing, t.view.n_ids - 1140);
    fidelity_tape_fini(&t);
}

/* ---- the short form --------------------------------------------------------------------- */

static void short_form(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES], log[200];
    AUTO(buf) struct buf text = BUF_INIT(1 << 24);
    struct error e = {0};
    tempdir_make(dir);
    snprintf(log, sizeof log, "%s/log", dir);
    const char *const args[] = {"verify-resume",
                                "-m",
                                DEMO,
                                "-l",
                                "1K",
                                "--continuation",
                                "128",
                                "--cycles",
                                "10",
                                "--kills",
                                "1",
                                "--probes",
                                "0",
                                "--work",
                                dir,
                                "--out",
                                dir,
                                "-q",
                                NULL};
    const int code = evals_run(args, log, LIMIT_MS);
    assert_ok(fs_read_file(log, &text, &e), &e);
    if (code)
        fail_msg("exit %d\n%s", code, buf_str(&text));
    json_auto_t *all = evals_read_json(dir, "verify-resume.json");
    char fingerprint[ARM_FINGERPRINT_CHARS];
    assert_ok(arm_fingerprint(DEMO, &(struct engine_options){.digests = true}, fingerprint, &e),
              &e);
    assert_string_equal(json_string_value(json_object_get(all, "fingerprint")), fingerprint);
    const json_t *r = json_array_get(json_object_get(all, "lengths"), 0);
    char seen[128] = "";
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(r, "checks"), i, c) {
        const char *arm = json_string_value(json_object_get(c, "arm"));
        assert_true(json_is_true(json_object_get(c, "equal")));
        if (!strstr(seen, arm))
            snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "%s ", arm);
    }
    assert_string_equal(seen, "C' S P X D K F I ");
    /* A bounded replay is another session: the comparison sees that. */
    const json_t *first = json_array_get(json_object_get(r, "curve"), 0);
    assert_true(json_number_value(json_object_get(first, "kl")) > 0);
    assert_int_equal(json_array_size(json_object_get(r, "cycles")), 10);
    assert_true(json_is_true(
        json_object_get(json_object_get(json_object_get(r, "nll"), "exact"), "zero")));
    buf_clear(&text);
    char path[256];
    snprintf(path, sizeof path, "%s/report.html", dir);
    assert_ok(fs_read_file(path, &text, &e), &e);
    assert_non_null(strstr(buf_str(&text), "KL by tokens since resume"));
    assert_non_null(strstr(buf_str(&text), "<svg"));
    tempdir_remove(dir);
}

/* ---- interrupted ------------------------------------------------------------------------ */

static bool has_folder(const char *dir)
{
    char pattern[200];
    glob_t g = {0};
    snprintf(pattern, sizeof pattern, "%s/agentd-evals-*", dir);
    const bool found = glob(pattern, 0, NULL, &g) == 0;
    globfree(&g);
    return found;
}

/* What was known when it was cut short is in the report. */
static void check_unfinished(const char *dir)
{
    json_auto_t *all = evals_read_json(dir, "verify-resume.json");
    const json_t *r = json_array_get(json_object_get(all, "lengths"), 0);
    assert_true(json_is_true(json_object_get(r, "unfinished")));
    assert_true(json_is_true(json_object_get(r, "equal")));
    assert_int_equal(json_array_size(json_object_get(all, "lengths")), 1);
    assert_int_equal(json_array_size(json_object_get(r, "checks")), 3);
}

/* A signal to `agentctl eval` in the middle of a daemon's arm: nothing is left behind, and what
 * was computed before is there. */
static void interrupted(void **state)
{
    (void)state;
    const struct timespec nap = {0, 20000000};
    const int signals[] = {SIGINT, SIGTERM};
    for (size_t i = 0; i < 2; i++) {
        char dir[TEMPDIR_BYTES];
        int status = 0;
        struct error e = {0};
        tempdir_make(dir);
        const char *const argv[] = {"agentctl",    "eval",     "verify-resume",
                                    "-m",          DEMO,       "-l",
                                    "2K",          "--arms",   "XFKI",
                                    "--positions", "2047",     "--continuation",
                                    "128",         "--cycles", "0",
                                    "--probes",    "0",        "--work",
                                    dir,           "-o",       dir,
                                    "-q",          NULL};
        const struct spawn_options o = {.argv = argv};
        struct spawn child = SPAWN_INIT;
        assert_ok(spawn_start(&o, &child, &e), &e);
        for (int k = 0; k < 2500 && !has_folder(dir); k++)
            nanosleep(&nap, NULL);
        assert_true(has_folder(dir));
        assert_ok(spawn_signal(&child, signals[i], &e), &e);
        assert_ok(spawn_wait(&child, LIMIT_MS, &status, &e), &e);
        spawn_fini(&child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 130);
        assert_false(has_folder(dir));
        check_unfinished(dir);
        tempdir_remove(dir);
    }
}

static void wrong_options(void **state)
{
    (void)state;
    char dir[TEMPDIR_BYTES], log[200];
    tempdir_make(dir);
    snprintf(log, sizeof log, "%s/log", dir);
    const char *const arms[] = {"verify-resume", "-m", DEMO, "--arms", "Z", NULL};
    const char *const none[] = {"verify-resume", "-m", "/nonexistent", NULL};
    const char *const tiny[] = {"verify-resume", "-m", DEMO, "-l", "100", NULL};
    const char *const far[] = {"verify-resume", "-m",   DEMO, "-l", "1K",
                               "--positions",   "1025", NULL};
    const char *const many[] = {"verify-resume",  "-m",  DEMO,       "-l",  "1K",
                                "--continuation", "128", "--cycles", "129", NULL};
    assert_int_equal(evals_run(far, log, LIMIT_MS), 2);
    assert_int_equal(evals_run(many, log, LIMIT_MS), 2);
    assert_int_equal(evals_run(arms, log, LIMIT_MS), 2);
    assert_int_equal(evals_run(none, log, LIMIT_MS), 4);
    assert_int_equal(evals_run(tiny, log, LIMIT_MS), 2);
    tempdir_remove(dir);
}

int main(void)
{
    if (build_folder_use())
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distances_of_known_rows),
        cmocka_unit_test(one_other_token_is_seen),
        cmocka_unit_test(short_form),
        cmocka_unit_test(interrupted),
        cmocka_unit_test(wrong_options),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
