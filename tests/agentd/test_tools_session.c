/* Tools that belong to a session: the folder its commands are in, the todo list, jobs; and what
 * the model is told about calls that are wrong. What the model says is forced, so that every
 * turn says what it needs, before and after a restart. */
#include "tests/support/test.h"

#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/daemon.h"
#include "tests/support/toolrun.h"

#define P(name, value)                                                                         \
    "<｜DSML｜ parameter name=\"" name "\" string=\"true\">" value "</｜DSML｜ parameter>\n"
#define J(name, value)                                                                         \
    "<｜DSML｜ parameter name=\"" name "\" string=\"false\">" value "</｜DSML｜ parameter>\n"
#define INVOKE(name, parameters)                                                               \
    "<｜DSML｜ invoke name=\"" name "\">\n" parameters "</｜DSML｜ invoke>\n"
#define CALLS(invokes) "ok</think>\n\n<｜DSML｜ calls>\n" invokes "</｜DSML｜ calls>"
#define CALL(name, parameters) CALLS(INVOKE(name, parameters))
#define RUN(command) CALL("run", P("command", command))
#define JOB(command) CALL("run", P("command", command) J("background", "true"))
#define DONE "ok</think>done"

static const char SESSION[] = "{\"approve\":\"auto\"}";

static struct daemon_fixture d;
static struct client *c;
static char id[27];

static void open_session(const char *config)
{
    daemon_make(&d, "{\"text\":\"unused\"}\n");
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
    daemon_session(&d, c, config, id);
}

static void close_session(void)
{
    client_free(c);
    daemon_remove(&d);
}

static void restart(void)
{
    client_free(c);
    daemon_kill(&d);
    daemon_start(&d, NULL);
    c = daemon_connect(&d, NULL, NULL);
}

struct log {
    json_t *results;    /* items */
    char last_call[64]; /* id of the newest call */
    bool live;
};

static void keep_results(void *user, const char *method, const json_t *params)
{
    struct log *l = user;
    const json_t *item = json_object_get(params, "item");
    l->live = l->live || !strcmp(method, "session/live");
    if (!strcmp(method, "session/event") && !strcmp(text_of(item, "kind"), "tool_result"))
        json_array_append_new(l->results, json_deep_copy(item));
    if (!strcmp(method, "session/event") && !strcmp(text_of(item, "kind"), "tool_call"))
        snprintf(l->last_call, sizeof l->last_call, "%s", text_of(item, "callId"));
}

/* All tool results of a session, and its newest call. */
static struct log read_log(const char *session)
{
    struct log l = {.results = json_array()};
    struct client *reader = daemon_connect(&d, keep_results, &l);
    json_decref(daemon_call(reader, "session/attach",
                            json_pack("{s:s, s:i}", "id", session, "fromSeq", 0)));
    while (!l.live)
        assert_int_equal(client_poll(reader, 5000, NULL), OK);
    client_free(reader);
    return l;
}

/* The items of all tool results of a session. */
static json_t *results_of(const char *session)
{
    return read_log(session).results;
}

/* The call that waits for its client. Valid until the next call. */
static const char *waiting_call(void)
{
    static struct log l;
    l = read_log(id);
    json_decref(l.results);
    return l.last_call;
}

/* One turn in which the model makes these calls, one step each (NULL ends), and ends. */
static void turn_of(const char *session, ...)
{
    json_t *forced = json_array();
    va_list ap;
    va_start(ap, session);
    for (const char *s; (s = va_arg(ap, const char *));)
        json_array_append_new(forced, json_pack("{s:s}", "text", s));
    va_end(ap);
    json_array_append_new(forced, json_pack("{s:s}", "text", DONE));
    json_decref(daemon_call(c, "session/prompt",
                            json_pack("{s:s, s:[{s:s, s:s}], s:o}", "id", session, "content",
                                      "type", "text", "text", "go", "forced", forced)));
    json_auto_t *w = daemon_wait(c, session);
    if (strcmp(text_of(w, "reason"), "end") != 0)
        fail_msg("%s: %s", text_of(w, "state"), text_of(w, "reason"));
}

/* The text of the n-th result from the end (1: the last). Valid until the next call. */
static const char *result(const char *session, size_t n)
{
    static char text[16384];
    json_auto_t *all = results_of(session);
    assert_true(json_array_size(all) >= n);
    snprintf(text, sizeof text, "%s",
             text_of(json_array_get(all, json_array_size(all) - n), "text"));
    return text;
}

static void assert_result(size_t n, const char *want)
{
    const char *text = result(id, n);
    if (strcmp(text, want) != 0)
        fail_msg("\"%s\", want \"%s\"", text, want);
}

static void assert_result_has(size_t n, const char *want)
{
    const char *text = result(id, n);
    if (!strstr(text, want))
        fail_msg("\"%s\" lacks \"%s\"", text, want);
}

static json_int_t last_seq(void)
{
    json_auto_t *s = daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
    return json_integer_value(json_object_get(s, "lastSeq"));
}

static void fork_at(json_int_t seq, char out[27])
{
    json_auto_t *f =
        daemon_call(c, "session/fork", json_pack("{s:s, s:I}", "id", id, "atSeq", seq));
    snprintf(out, 27, "%s", text_of(f, "id"));
}

/* ---- the working folder ---- */

static void test_working_folder_carries_over(void **state)
{
    (void)state;
    char want[256], fork[27];
    open_session(SESSION);
    turn_of(id, RUN("mkdir -p a/b; cd a"), RUN("cd b; exit 3"), RUN("pwd"), NULL);
    snprintf(want, sizeof want, "%s/a/b\n", d.work);
    assert_result(1, want);
    json_int_t in_b = last_seq();
    turn_of(id, RUN("cd ..; exec true"), RUN("cd .. ; trap '' EXIT"), RUN("(cd /usr); pwd"),
            NULL);
    assert_result(1, want); /* none of these leaves word: a shell that is replaced, say */
    turn_of(id, RUN("cd /usr/lib"), NULL);
    restart();
    turn_of(id, RUN("pwd"), NULL);
    assert_result(1, "/usr/lib\n");
    fork_at(in_b, fork);
    turn_of(fork, RUN("pwd"), NULL);
    assert_string_equal(result(fork, 1), want);
    /* File tools stay with the workspace. */
    turn_of(id, CALL("list_dir", ""), NULL);
    assert_result(1, "a/\n");
    close_session();
}

static void test_working_folder_that_is_gone(void **state)
{
    (void)state;
    char want[512];
    open_session(SESSION);
    turn_of(id, RUN("mkdir gone; cd gone"), RUN("rmdir ../gone"), RUN("pwd"), RUN("pwd"), NULL);
    snprintf(want, sizeof want,
             "[the working folder %s/gone cannot be entered any more: this runs in the "
             "workspace]\n%s\n",
             d.work, d.work);
    assert_result(2, want);
    snprintf(want, sizeof want, "%s\n", d.work);
    assert_result(1, want);
    close_session();
}

/* ---- todo ---- */

#define ITEMS(a, b)                                                                            \
    J("items", "[{\"text\":\"first\",\"status\":\"" a                                          \
               "\"},{\"text\":\"second\",\"status\":\"" b "\"}]")

static void test_todo_list_is_part_of_the_session(void **state)
{
    (void)state;
    char fork[27];
    open_session(SESSION);
    turn_of(id, CALL("todo", ""), CALL("todo", ITEMS("active", "open")), NULL);
    assert_result(2, "[the list is empty]\n");
    assert_result(1, "1. [>] first\n2. [ ] second\n");
    json_int_t early = last_seq();
    turn_of(id, CALL("todo", ITEMS("done", "active")), NULL);
    restart();
    turn_of(id, CALL("todo", ""), NULL);
    assert_result(1, "1. [x] first\n2. [>] second\n");
    /* A fork, and a session that was rewound, have it as it was there. */
    fork_at(early, fork);
    turn_of(fork, CALL("todo", ""), NULL);
    assert_string_equal(result(fork, 1), "1. [>] first\n2. [ ] second\n");
    json_decref(
        daemon_call(c, "session/rewind", json_pack("{s:s, s:I}", "id", id, "toSeq", early)));
    turn_of(id, CALL("todo", ""), NULL);
    assert_result(1, "1. [>] first\n2. [ ] second\n");
    close_session();
}

static void test_todo_list_survives_compaction(void **state)
{
    (void)state;
    open_session(SESSION);
    turn_of(id, CALL("todo", ITEMS("active", "open")), RUN("cd /usr"), NULL);
    json_decref(daemon_call(
        c, "session/compact",
        json_pack("{s:s, s:[{s:s}]}", "id", id, "forced", "text", "ok</think>a summary")));
    json_decref(daemon_wait(c, id));
    turn_of(id, CALL("todo", ""), RUN("pwd"), NULL);
    assert_result(2, "1. [>] first\n2. [ ] second\n");
    assert_result(1, "/usr\n");
    close_session();
}

/* ---- jobs ---- */

static const char *job_of(const char *text)
{
    static char job[16];
    assert_int_equal(sscanf(text, "[job %7[a-z0-9] was started", job), 1);
    return job;
}

/* A call of jobs with the id that is known only now. */
static const char *jobs(const char *action, const char *job, int wait_ms)
{
    static char text[4][1024];
    static unsigned n;
    char *out = text[n++ % 4];
    snprintf(out, sizeof text[0],
             CALL("jobs", P("action", "%s") P("job", "%s") J("wait_ms", "%d")), action, job,
             wait_ms);
    return out;
}

static void test_job_is_started_read_and_ends(void **state)
{
    (void)state;
    char want[128];
    open_session(SESSION);
    turn_of(id,
            JOB("echo one; while [ ! -e go ]; do sleep 0.02; done; printf tw; sleep 0.1; "
                "echo o; exit 4"),
            NULL);
    const char *job = job_of(result(id, 1));
    for (int i = 0; i < 200; i++) { /* what it has printed, piece by piece */
        turn_of(id, jobs("read", job, 0), NULL);
        if (!strncmp(result(id, 1), "one\n[", 5))
            break;
    }
    snprintf(want, sizeof want, "one\n[%s has been running for ", job);
    assert_int_equal(strncmp(result(id, 1), want, strlen(want)), 0);
    turn_of(id, CALL("jobs", P("action", "list")), RUN("touch go"), jobs("read", job, 10000),
            jobs("read", job, 5), jobs("kill", job, 0), NULL);
    assert_result_has(5, "running for ");
    assert_result_has(5, "echo one; while");
    snprintf(want, sizeof want, "two\n[%s: ended with exit status 4]\n", job);
    assert_result(3, want);
    snprintf(want, sizeof want, "[%s: ended with exit status 4]\n", job);
    assert_result(2, want);
    assert_result(1, want);
    close_session();
}

static void test_job_is_killed(void **state)
{
    (void)state;
    char marker[64], command[512], want[64];
    open_session(SESSION);
    snprintf(marker, sizeof marker, "agentd-job-%d", (int)getpid());
    snprintf(command, sizeof command,
             JOB("trap '' TERM; echo on; setsid bash -c 'exec -a %s sleep 1000'"), marker);
    turn_of(id, command, NULL);
    const char *job = job_of(result(id, 1));
    turn_of(id, jobs("kill", job, 0), NULL);
    snprintf(want, sizeof want, "[%s: killed]\n", job);
    assert_result_has(1, want);
    assert_int_equal(toolrun_count_processes(marker), 0);
    close_session();
}

/* It ends with the daemon, with its session, and not with the turn. */
static void test_hermes_81880_jobs_end_with_daemon_and_session(void **state)
{
    (void)state;
    char marker[64], command[512];
    snprintf(marker, sizeof marker, "agentd-job-end-%d", (int)getpid());
    snprintf(command, sizeof command,
             JOB("echo on; setsid bash -c 'exec -a %s sleep 1000' & wait"), marker);
    for (int way = 0; way < 3; way++) {
        open_session(SESSION);
        turn_of(id, command, NULL);
        char job[16];
        snprintf(job, sizeof job, "%s", job_of(result(id, 1)));
        for (int i = 0; i < 500 && !toolrun_find_process(marker); i++)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        assert_true(toolrun_find_process(marker) > 0);
        if (way == 0) {
            json_decref(daemon_call(c, "session/delete", json_pack("{s:s}", "id", id)));
            assert_int_equal(toolrun_count_processes(marker), 0);
        } else if (way == 1) {
            client_free(c);
            assert_int_equal(daemon_stop(&d), 0);
            assert_int_equal(toolrun_count_processes(marker), 0);
            daemon_start(&d, NULL);
            c = daemon_connect(&d, NULL, NULL);
        } else {
            restart();
            assert_int_equal(toolrun_count_processes(marker), 0);
            turn_of(id, jobs("read", job, 0), CALL("jobs", P("action", "list")), NULL);
            assert_result_has(2, "error: there is no job");
            assert_result(1, "[no jobs]\n");
        }
        close_session();
    }
}

static void test_jobs_are_bounded(void **state)
{
    (void)state;
    open_session(SESSION);
    for (int i = 0; i < 8; i++) {
        char command[512];
        snprintf(command, sizeof command, JOB("sleep 100; : %d"), i);
        turn_of(id, command, NULL);
        (void)job_of(result(id, 1));
    }
    turn_of(id, JOB("echo ninth"), CALL("jobs", P("action", "read")),
            CALL("jobs", P("action", "kill") P("job", "none")), NULL);
    assert_result(3, "error: 8 jobs of this session run already, and no more may\n");
    assert_result(2, "error: jobs: arguments: \"job\" is missing, read needs one\n");
    assert_result_has(1, "error: there is no job \"none\"");
    close_session();
}

/* A call that waits for a job ends with the turn that is cancelled. */
static void test_cancel_while_a_call_waits_for_a_job(void **state)
{
    (void)state;
    open_session(SESSION);
    turn_of(id, JOB("sleep 100"), NULL);
    const char *job = job_of(result(id, 1));
    json_decref(daemon_call(c, "session/prompt",
                            json_pack("{s:s, s:[{s:s, s:s}], s:[{s:s}]}", "id", id, "content",
                                      "type", "text", "text", "go", "forced", "text",
                                      jobs("read", job, 600000))));
    for (int i = 0; i < 1000; i++) {
        json_auto_t *s = daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
        if (!strcmp(text_of(s, "state"), "tool"))
            break;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    json_decref(daemon_call(c, "session/cancel", json_pack("{s:s}", "id", id)));
    json_auto_t *w = daemon_wait(c, id);
    assert_string_equal(text_of(w, "reason"), "cancelled");
    turn_of(id, CALL("jobs", P("action", "list")), NULL); /* the job goes on */
    assert_result_has(1, "running for ");
    close_session();
}

/* ---- calls that are wrong ---- */

static void test_wrong_arguments_get_one_repair_round(void **state)
{
    (void)state;
    open_session(SESSION);
    turn_of(id, CALL("read_file", P("path", "f") P("limit", "ten")),
            CALL("read_file", P("path", "f") P("limit", "eleven")),
            CALL("list_dir", P("dir", "x")), CALL("list_dir", ""),
            CALL("list_dir", P("dir", "y")), NULL);
    /* The first time: path, what came, what is wanted, and the declaration. */
    assert_result_has(5,
                      "[not run: read_file: arguments.limit: got string \"ten\", want integer. "
                      "Correct it and make the call once more; its parameters are {\"type\":");
    assert_result_has(5, "\"limit\":{\"type\":\"integer\",\"minimum\":1");
    /* The second time it is a result as well, that ends the trying. */
    assert_result_has(4,
                      "got string \"eleven\", want integer. The call was wrong again after it "
                      "was corrected");
    assert_result_has(
        3, "list_dir: arguments: there is no \"dir\"; there is path, depth. Correct");
    assert_result(2, "[empty]\n");
    assert_result_has(1, ". Correct it and make"); /* a good call was between */
    close_session();
}

/* openai/codex #24369: control bytes in a tool's name poisoned every later turn. */
static void test_codex_24369_control_bytes_in_names_and_arguments(void **state)
{
    (void)state;
    open_session(SESSION);
    turn_of(
        id, CALL("ru\x01\x1bn", P("command", "true")), CALL("run", P("com\x02mand", "true")),
        CALL("run", J("command", "\"echo a\\u0000b\"")),
        CALL("write_file", P("path", "f") J("content", "\"a\\u0000b\"")),
        CALL("todo", J("items", "[{\"text\":\"a\\u0000b\\u001b[2J\",\"status\":\"open\"}]")),
        NULL);
    assert_result_has(5, "[not run: ");
    assert_result_has(4, "[not run: ");
    assert_result_has(3, "error: command: holds a NUL byte");
    assert_result_has(2, "created f (3 bytes)");
    assert_result(1, "error: todo: arguments.items[0].text: holds a NUL byte\n");
    restart();
    turn_of(id, CALL("todo", ""), RUN("echo alive"), NULL);
    assert_result(2, "[the list is empty]\n");
    assert_result(1, "alive\n");
    close_session();
}

/* anthropics/claude-code #35287, justrach/codegraff #275: a tool server that never answers (a
 * client-side tool is the nearest thing here) does not take the session with it. */
static void test_claude_code_35287_codegraff_275_a_client_that_never_answers(void **state)
{
    (void)state;
    open_session("{\"tools\":[],\"clientTools\":[{\"name\":\"ask\",\"description\":\"d\","
                 "\"parameters\":{\"type\":\"object\"}}]}");
    json_decref(
        daemon_call(c, "session/prompt",
                    json_pack("{s:s, s:[{s:s, s:s}], s:[{s:s}]}", "id", id, "content", "type",
                              "text", "text", "go", "forced", "text", CALL("ask", ""))));
    json_auto_t *w = daemon_wait(c, id);
    assert_string_equal(text_of(w, "state"), "requires_action");
    json_decref(daemon_call(c, "session/cancel", json_pack("{s:s}", "id", id)));
    json_auto_t *after = daemon_wait(c, id);
    assert_string_equal(text_of(after, "reason"), "cancelled");
    turn_of(id, NULL);
    close_session();
}

/* ggml-org/llama.cpp #23465: results of tools as a text and as content parts. */
static void test_llama_cpp_23465_results_as_text_and_as_parts(void **state)
{
    (void)state;
    static const char *const contents[] = {
        "\"plain\"",
        "[{\"type\":\"text\",\"text\":\"one\"},{\"type\":\"text\",\"text\":\"two\"}]"};
    static const char *const want[] = {"plain", "one\n\ntwo"};
    open_session("{\"tools\":[],\"clientTools\":[{\"name\":\"ask\",\"description\":\"d\","
                 "\"parameters\":{\"type\":\"object\"}}]}");
    for (int i = 0; i < 2; i++) {
        json_decref(daemon_call(c, "session/prompt",
                                json_pack("{s:s, s:[{s:s, s:s}], s:[{s:s}, {s:s}]}", "id", id,
                                          "content", "type", "text", "text", "go", "forced",
                                          "text", CALL("ask", ""), "text", DONE)));
        json_decref(daemon_wait(c, id));
        char call[64];
        json_auto_t *s = daemon_call(c, "session/get", json_pack("{s:s}", "id", id));
        assert_string_equal(text_of(s, "state"), "requires_action");
        snprintf(call, sizeof call, "%s", waiting_call());
        json_auto_t *params = json_pack("{s:s, s:s, s:o}", "id", id, "callId", call, "content",
                                        json_loads(contents[i], JSON_DECODE_ANY, NULL));
        json_t *bad = json_deep_copy(params);
        json_object_set_new(bad, "content", json_pack("[{s:s}]", "type", "image"));
        assert_int_equal(daemon_refused(c, "tool/result", bad), -32602);
        json_decref(daemon_call(c, "tool/result", json_incref(params)));
        json_decref(daemon_wait(c, id));
        assert_result(1, want[i]);
    }
    close_session();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_working_folder_carries_over),
        cmocka_unit_test(test_working_folder_that_is_gone),
        cmocka_unit_test(test_todo_list_is_part_of_the_session),
        cmocka_unit_test(test_todo_list_survives_compaction),
        cmocka_unit_test(test_job_is_started_read_and_ends),
        cmocka_unit_test(test_job_is_killed),
        cmocka_unit_test(test_hermes_81880_jobs_end_with_daemon_and_session),
        cmocka_unit_test(test_jobs_are_bounded),
        cmocka_unit_test(test_cancel_while_a_call_waits_for_a_job),
        cmocka_unit_test(test_wrong_arguments_get_one_repair_round),
        cmocka_unit_test(test_codex_24369_control_bytes_in_names_and_arguments),
        cmocka_unit_test(test_llama_cpp_23465_results_as_text_and_as_parts),
        cmocka_unit_test(test_claude_code_35287_codegraff_275_a_client_that_never_answers),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
