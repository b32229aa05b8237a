/* Every failure that the daemon's side of a run can meet, one after the other: an error or a
 * result, never a crash, a leaked descriptor or a process left behind. */
#include "tests/support/test.h"

#include <dirent.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/toolrun.h"

static struct toolrun t;

static unsigned count_fds(void)
{
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* One run of `seq` whose output does not fit. OK once there is a result. */
static enum err run_once(const json_t *arguments, const char *spill, struct tool_result *out,
                         struct error *e)
{
    struct tool_call call = {.name = "run",
                             .arguments = arguments,
                             .workspace = t.ws,
                             .mode = TOOL_MODE_WORKSPACE_WRITE,
                             .spill_path = spill};
    struct tool_run *run;
    enum err rc = tool_run_start(t.tools, &call, toolrun_now_ms(), &run, e);
    if (rc)
        return rc;
    while (!tool_run_step(run, toolrun_now_ms(), NULL)) {
        struct tool_run_fds fds = tool_run_fds(run);
        struct pollfd p[] = {
            {fds.out_fd, POLLIN, 0}, {fds.status_fd, POLLIN, 0}, {fds.pidfd, POLLIN, 0}};
        poll(p, 3, 1000);
    }
    tool_run_take(run, out);
    tool_run_free(run);
    return OK;
}

static void assert_clean_run(const struct tool_result *r)
{
    assert_int_equal(r->end, TOOL_EXITED);
    assert_false(r->is_error);
    assert_non_null(r->spill_path);
    assert_string_equal(buf_str(&r->text) + r->text.len - 5, "2000\n");
}

static void test_every_fault_of_a_run(void **state)
{
    (void)state;
    struct error e;
    struct tool_result r;
    char spill[128];
    int n_errors = 0, n_results = 0;
    toolrun_open(&t, &(struct tools_config){.output_bytes = 1000});
    json_t *arguments = json_pack("{s:s}", "command", "seq 1 2000");
    unsigned fds = count_fds();
    bool was_clean = false;
    for (uint64_t n = 1; !was_clean; n++) {
        assert_true(n < 1000);
        snprintf(spill, sizeof spill, "%s/%d", t.spill, (int)n);
        fault_arm(FAULT_FAIL, NULL, n);
        enum err rc = run_once(arguments, spill, &r, &e);
        was_clean = !fault_disarm();
        if (rc) {
            n_errors++;
            assert_int_equal(e.code, rc);
            assert_true(e.msg[0] != '\0');
        } else {
            n_results++;
            if (was_clean)
                assert_clean_run(&r);
            /* A result that lacks something says so. */
            else if (!r.is_error && !r.spill_path)
                assert_non_null(strstr(buf_str(&r.text), "could not be stored"));
            tool_result_fini(&r);
        }
        assert_int_equal(count_fds(), fds);
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
        if (rc || was_clean)
            unlink(spill);
    }
    assert_true(n_errors >= 5 && n_results >= 2);
    json_decref(arguments);
    toolrun_close(&t);
}

int main(void)
{
    json_set_alloc_funcs(alloc_fault_malloc, free);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_fault_of_a_run),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
