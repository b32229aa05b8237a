/* base/fault: counting, failing once or from then on, arming through the environment, crashing.
 */
#include "tests/support/test.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/fault.h"

static void test_fails_the_nth(void **state)
{
    (void)state;
    assert_false(fault_point("a"));
    fault_arm(FAULT_FAIL, "a", 2);
    assert_false(fault_point("a"));
    assert_false(fault_point("b"));
    assert_true(fault_point("a"));
    assert_false(fault_point("a"));
    assert_int_equal(fault_hits(), 3);
    assert_true(fault_disarm());
    assert_false(fault_disarm());
    assert_false(fault_point("a"));
}

static void test_fails_from(void **state)
{
    (void)state;
    fault_arm(FAULT_FAIL_FROM, NULL, 3);
    assert_false(fault_point("a"));
    assert_false(fault_point("b"));
    assert_true(fault_point("a"));
    assert_true(fault_point("c"));
    assert_true(fault_disarm());
}

static void test_counts(void **state)
{
    (void)state;
    fault_arm(FAULT_COUNT, "x", 0);
    fault_arm(FAULT_FAIL, "y", 1);
    for (int i = 0; i < 7; i++)
        assert_false(fault_point("x"));
    assert_int_equal(fault_hits(), 7);
    assert_false(fault_disarm());
}

static void test_environment(void **state)
{
    (void)state;
    struct error e = {0};
    setenv("AGENTD_FAULT", "fail:a.b:2,fail-from:c:1", 1);
    assert_ok(fault_arm_env(&e), &e);
    assert_false(fault_point("a.b"));
    assert_true(fault_point("a.b"));
    assert_true(fault_point("c"));
    fault_disarm();
    static const char *const bad[] = {
        "fail",      "fail:a",    "fail::1",
        "fail:a:",   "fail:a:0",  "fail:a:-1",
        "fail:a: 1", "fail:a:1x", "burn:a:1",
        "fail:a:1,", ":a:1",      "fail:0123456789012345678901234567890123456789012345678:1",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv("AGENTD_FAULT", bad[i], 1);
        assert_int_equal(fault_arm_env(&e), ERR_INVAL);
        assert_memory_equal(e.msg, "AGENTD_FAULT", 12);
        fault_disarm();
    }
    setenv("AGENTD_FAULT",
           "fail:a:1,fail:a:1,fail:a:1,fail:a:1,fail:a:1,fail:a:1,fail:a:1,"
           "fail:a:1,fail:a:1",
           1);
    assert_int_equal(fault_arm_env(&e), ERR_INVAL);
    fault_disarm();
    unsetenv("AGENTD_FAULT");
    assert_ok(fault_arm_env(&e), &e);
    assert_false(fault_point("a"));
}

static void test_crash_is_sigkill(void **state)
{
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setenv("AGENTD_FAULT", "crash:turn.after_commit:3", 1);
        if (fault_arm_env(NULL))
            _exit(1);
        for (int i = 1; i <= 3; i++)
            if (fault_point("turn.after_commit"))
                _exit(2);
        _exit(3);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
}

/* The loop that fault.h shows, over an operation with several allocations. */
static void test_allocation_loop(void **state)
{
    (void)state;
    uint64_t n = 1;
    for (;; n++) {
        struct error e = {0};
        AUTO(buf) struct buf b = BUF_INIT(1 << 20);
        AUTO(arena) struct arena a = ARENA_INIT(1 << 20);
        fault_arm(FAULT_FAIL, "alloc", n);
        enum err rc = buf_reserve(&b, 100, &e);
        if (!rc)
            rc = buf_reserve(&b, 10000, &e);
        if (!rc && !arena_alloc(&a, 100, &e))
            rc = e.code;
        if (!fault_disarm()) {
            assert_ok(rc, &e);
            break;
        }
        assert_int_equal(rc, ERR_NOMEM);
    }
    assert_int_equal(n, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fails_the_nth),    cmocka_unit_test(test_fails_from),
        cmocka_unit_test(test_counts),           cmocka_unit_test(test_environment),
        cmocka_unit_test(test_crash_is_sigkill), cmocka_unit_test(test_allocation_loop),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
