/* record: a daemon's sessions become a trace whose lengths are their ledgers'. */
#include "tests/support/test.h"

#include <fcntl.h>
#include <sys/wait.h>

#include "base/spawn.h"
#include "evals/trace.h"
#include "tests/support/build_folder.h"
#include "tests/support/daemon.h"

#define SAY(text) "{\"text\":\"ok</think>" text "<｜end▁of▁sentence｜>\"}\n"

static int record(const struct daemon_fixture *d, const char *out, const char *session)
{
    const char *const argv[] = {"agentd-evals", "record", "--socket", d->socket,
                                "-o",           out,      session,    NULL};
    struct error e = {0};
    int status = 0;
    AUTO_FD int log = open(d->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const struct spawn_fd fds[] = {{log, 1}, {log, 2}};
    const struct spawn_options o = {.argv = argv, .fds = fds, .n_fds = 2};
    struct spawn child = SPAWN_INIT;
    assert_ok(spawn_start(&o, &child, &e), &e);
    assert_ok(spawn_wait(&child, 50000, &status, &e), &e);
    spawn_fini(&child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void lengths_are_those_of_the_ledgers(void **state)
{
    (void)state;
    struct daemon_fixture d;
    char id[2][27], out[200];
    struct error e = {0};
    daemon_make(&d, SAY("one") SAY("two is longer") SAY("three"));
    daemon_start(&d, NULL);
    struct client *c = daemon_connect(&d, NULL, NULL);
    snprintf(out, sizeof out, "%s/trace.csv", d.dir);
    assert_int_equal(record(&d, out, NULL), 4); /* nothing to record */
    for (int s = 0; s < 2; s++) {
        daemon_session(&d, c, NULL, id[s]);
        for (int k = 0; k < 3 - s; k++) {
            daemon_prompt(c, id[s], "a question");
            json_decref(daemon_wait(c, id[s]));
        }
    }
    assert_int_equal(record(&d, out, NULL), 0);
    AUTO(trace) struct trace all = TRACE_INIT(TRACE_TRACELAB);
    assert_ok(trace_load(&all, out, &e), &e);
    assert_int_equal(all.n_sessions, 2);
    assert_int_equal(all.n_steps, 5);
    assert_int_equal(record(&d, out, id[0]), 0);
    AUTO(trace) struct trace t = TRACE_INIT(TRACE_TRACELAB);
    assert_ok(trace_load(&t, out, &e), &e);
    assert_int_equal(t.n_sessions, 1);
    assert_int_equal(t.n_steps, 3);
    json_auto_t *usage = daemon_call(c, "session/usage", json_pack("{s:s}", "id", id[0]));
    uint64_t at = 0;
    for (uint32_t k = 0; k < 3; k++) {
        const json_t *l =
            json_object_get(json_array_get(json_object_get(usage, "turns"), k), "ledger");
        const struct trace_step *s = &t.steps[k];
        assert_int_equal(s->input_len, json_integer_value(json_object_get(l, "prefilled")));
        assert_int_equal(s->output_len, json_integer_value(json_object_get(l, "decoded")));
        assert_int_equal(s->prefix_len, at);
        at += s->input_len + s->output_len;
        assert_true(s->wait_ms >= 0 && s->wait_ms < 60000);
    }
    assert_true(t.sessions[0].arrival_ms > 0);
    assert_int_equal(record(&d, out, "nobody"), 4);
    client_free(c);
    daemon_remove(&d);
}

int main(void)
{
    if (build_folder_use())
        return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(lengths_are_those_of_the_ledgers)};
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
