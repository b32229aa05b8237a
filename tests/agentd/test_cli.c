/* agentctl as a program, against a server that answers what each test wants. */
#include "tests/support/test.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "agentd/cli_text.h"
#include "agentd/verbs.h"
#include "base/auto.h"
#include "tests/support/agentctl.h"
#include "tests/support/fake_server.h"

/* ---- the server ----------------------------------------------------------------- */

struct scene {
    struct fake_server *server;
    json_t *waited;       /* answer of session/wait; NULL: never, until a cancel */
    json_t *verified;     /* answer of session/verify */
    bool overloaded;      /* refuse session/prompt */
    bool hang_up;         /* close the connection at session/wait */
    json_t *pending_wait; /* request that waits for a cancel */
    json_t *prompt;       /* parameters of the last session/prompt */
    json_t *created;      /* parameters of the last session/new */
    bool cancelled;
    int signal_fd; /* written to when session/wait arrived */
};

static json_t *two_sessions(void)
{
    return json_pack("{s:[{s:s, s:s, s:s, s:s, s:s, s:i}, {s:s, s:s, s:s, s:s, s:s, s:i}]}",
                     "sessions", "id", "01AAAAAAAAAAAAAAAAAAAAAAA1", "name", "brisk-otter",
                     "state", "generating", "reason", "", "cwd", "/w\x1b[2Jx", "tokens", 61204,
                     "id", "01AAAAAAAAAAAAAAAAAAAAAAA2", "name", "brisk-owl", "state", "idle",
                     "reason", "end", "cwd", "/", "tokens", 3);
}

static json_t *event(json_int_t seq, json_t *item)
{
    return json_pack("{s:s, s:I, s:s, s:o}", "sessionId", "01AAAAAAAAAAAAAAAAAAAAAAA1", "seq",
                     seq, "type", "item", "item", item);
}

static json_t *call(const char *status)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:{s:s}, s:s}", "id", "c1", "callId", "c1", "kind",
                     "tool_call", "name", "read_file", "arguments", "path", "a\x1b]0;title",
                     "status", status);
}

/* A call whose status changes, and its result. */
static void send_turn(struct fake_server *s)
{
    fake_notify(s, "session/state", json_pack("{s:s}", "state", "generating"));
    fake_notify(s, "session/event", event(2, call("started")));
    fake_notify(s, "session/event", event(3, call("interrupted")));
    fake_notify(s, "session/event",
                event(4, json_pack("{s:s, s:s, s:s, s:s}", "id", "c1.r", "kind", "tool_result",
                                   "status", "interrupted", "text", "outcome unknown")));
}

static void handle_wait(struct fake_server *s, struct scene *c, const json_t *request)
{
    send_turn(s);
    if (c->waited)
        fake_answer(s, request, json_incref(c->waited));
    else
        c->pending_wait = json_incref((json_t *)(uintptr_t)request);
    if (c->signal_fd > 0 && write(c->signal_fd, "w", 1) != 1)
        abort();
}

static void handle_cancel(struct fake_server *s, struct scene *c, const json_t *request)
{
    c->cancelled = true;
    fake_answer(s, request, json_pack("{s:b}", "cancelled", 1));
    if (!c->pending_wait)
        return;
    fake_answer(s, c->pending_wait,
                json_pack("{s:s, s:s, s:s, s:{}}", "state", "idle", "reason", "cancelled",
                          "text", "", "ledger"));
    json_decref(c->pending_wait);
    c->pending_wait = NULL;
}

static void keep(json_t **at, json_t *params)
{
    json_decref(*at);
    *at = json_incref(params);
}

static bool handle(struct fake_server *s, void *user, const json_t *request)
{
    struct scene *c = user;
    const char *m = json_string_value(json_object_get(request, "method"));
    json_t *params = json_object_get(request, "params");
    if (fake_initialize(s, request))
        return true;
    if (!strcmp(m, "session/list")) {
        fake_answer(s, request, two_sessions());
    } else if (!strcmp(m, "session/new")) {
        keep(&c->created, params);
        fake_answer(
            s, request,
            json_pack("{s:s, s:s}", "id", "01AAAAAAAAAAAAAAAAAAAAAAA1", "name", "brisk-otter"));
    } else if (!strcmp(m, "session/attach")) {
        fake_answer(s, request, json_pack("{s:i, s:s}", "seq", 1, "state", "idle"));
        if (json_object_get(params, "fromSeq"))
            send_turn(s);
        fake_notify(s, "session/live", json_pack("{s:i}", "seq", 4));
    } else if (!strcmp(m, "session/prompt") && c->overloaded) {
        fake_refuse(s, request, -32001, "the queue is full",
                    json_pack("{s:s, s:b, s:s, s:i}", "kind", "busy", "retryable", 1, "hint",
                              "come back", "retryAfterMs", 100));
    } else if (!strcmp(m, "session/prompt")) {
        keep(&c->prompt, params);
        fake_answer(s, request, json_pack("{s:s, s:i}", "turnId", "t1", "seq", 1));
    } else if (!strcmp(m, "session/wait")) {
        if (c->hang_up)
            return false;
        handle_wait(s, c, request);
    } else if (!strcmp(m, "session/cancel")) {
        handle_cancel(s, c, request);
    } else if (!strcmp(m, "session/verify")) {
        fake_answer(s, request, json_incref(c->verified));
    } else {
        fake_refuse(
            s, request, -32601, "no such method",
            json_pack("{s:s, s:b, s:s}", "kind", "unsupported", "retryable", 0, "hint", ""));
    }
    return true;
}

static int setup(void **state)
{
    struct scene *c = calloc(1, sizeof *c);
    assert_non_null(c);
    c->server = fake_server_new(handle, c);
    setenv("AGENTD_SOCKET", fake_server_path(c->server), 1);
    *state = c;
    return 0;
}

static int teardown(void **state)
{
    struct scene *c = *state;
    fake_server_free(c->server);
    json_decref(c->waited);
    json_decref(c->verified);
    json_decref(c->pending_wait);
    json_decref(c->prompt);
    json_decref(c->created);
    free(c);
    return 0;
}

static json_t *waited(const char *reason, const char *text)
{
    return json_pack("{s:s, s:s, s:s, s:{s:i}}", "state",
                     strcmp(reason, "requires_action") ? "idle" : "requires_action", "reason",
                     reason, "text", text, "ledger", "prompt_tokens", 7);
}

/* ---- tests ---------------------------------------------------------------------- */

static void test_usage(void **state)
{
    (void)state;
    static const char *const wrong[][5] = {
        {NULL},
        {"frobnicate"},
        {"run"},
        {"run", "a", "b"},
        {"run", "--no-such-option", "a"},
        {"run", "--approve", "perhaps", "a"},
        {"run", "--max-steps", "0", "a"},
        {"run", ""},
        {"run", "a\xff"},
        {"run", "--forced", "/nowhere", "a"},
        {"ps", "--timeout", "soon"},
        {"fork", "brisk-otter@x"},
        {"fork", "brisk-otter@0"},
        {"rename", "a"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const struct agentctl_ran *r = agentctl_run(wrong[i]);
        if (r->code != EXIT_USAGE || *r->out || !*r->err)
            fail_msg("case %zu: code %d, stdout \"%s\", stderr \"%s\"", i, r->code, r->out,
                     r->err);
    }
    assert_int_equal(AGENTCTL("help")->code, EXIT_DONE);
    assert_has(AGENTCTL("run", "--help")->out, "--forced");
    assert_has(AGENTCTL("--version")->out, AGENTD_VERSION);
    assert_has(AGENTCTL("completion")->out, "complete -o default -F _agentctl agentctl");
}

static void test_no_daemon(void **state)
{
    (void)state;
    const struct agentctl_ran *r = AGENTCTL("ps", "--socket", "/nowhere/agentd.sock");
    assert_int_equal(r->code, EXIT_NO_DAEMON);
    assert_has(r->err, "/nowhere/agentd.sock");
    assert_string_equal(r->out, "");
}

static void test_names(void **state)
{
    (void)state;
    const struct agentctl_ran *r = AGENTCTL("ps", "-a", "--names");
    assert_int_equal(r->code, EXIT_DONE);
    assert_string_equal(r->out, "brisk-otter\nbrisk-owl\n");
    assert_string_equal(AGENTCTL("ps", "--names")->out, "brisk-otter\n");
    r = AGENTCTL("ps", "-a");
    assert_lacks(r->out, "\x1b");
    assert_has(r->out, "\\x1b[2J");
    assert_has(r->out, "61.2k");
    r = AGENTCTL("cancel", "brisk");
    assert_int_equal(r->code, EXIT_NOTFOUND);
    assert_has(r->err, "ambiguous: brisk-otter, brisk-owl");
    assert_int_equal(AGENTCTL("cancel", "swift-otter")->code, EXIT_NOTFOUND);
    assert_int_equal(AGENTCTL("cancel", "")->code, EXIT_USAGE);
    assert_int_equal(AGENTCTL("cancel", "brisk-ot")->code, EXIT_DONE);
    assert_int_equal(AGENTCTL("cancel", "01aaaaaaaaaaaaaaaaaaaaaaa2")->code, EXIT_DONE);
    assert_int_equal(AGENTCTL("cancel", "@-")->code, EXIT_NOTFOUND); /* none of this folder */
    r = AGENTCTL("ps", "-a", "--json");
    json_auto_t *j = json_loads(r->out, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(j, "sessions")), 2);
    /* a verb that this daemon does not have */
    assert_int_equal(AGENTCTL("usage", "brisk-owl")->code, EXIT_MODEL);
}

/* agentctl, with what the test set before and the server's thread wrote seen by the other. */
static const struct agentctl_ran *ctl(struct scene *c, const char *const *argv)
{
    fake_server_sync(c->server);
    const struct agentctl_ran *r = agentctl_run(argv);
    fake_server_sync(c->server);
    return r;
}
#define CTL(...) ctl(c, (const char *const[]){__VA_ARGS__, NULL})

static void test_run(void **state)
{
    struct scene *c = *state;
    c->waited = waited("end", "the answer\x1b[31m");
    const struct agentctl_ran *r =
        CTL("run", "-n", "x", "--seed", "5", "--tools", "run,grep", "hello");
    assert_int_equal(r->code, EXIT_DONE);
    assert_string_equal(r->out, "the answer\\x1b[31m\n");
    assert_has(r->err, "session brisk-otter");
    assert_has(r->err, "read_file {\"path\":\"a\\u001B]0;title\"}");
    assert_has(r->err, "interrupted: outcome unknown");
    assert_lacks(r->err, "\x1b");
    assert_int_equal(json_integer_value(json_object_get(c->created, "seed")), 5);
    assert_int_equal(json_array_size(json_object_get(c->created, "tools")), 2);
    assert_null(json_object_get(c->created, "approve")); /* not said: the daemon's default */
    assert_non_null(json_object_get(c->created, "cwd"));
    assert_int_equal(json_string_length(json_object_get(c->prompt, "clientMessageId")), 26);
    r = CTL("run", "-q", "hello");
    assert_string_equal(r->err, "");
    r = CTL("send", "brisk-owl", "more", "--json");
    assert_int_equal(r->code, EXIT_DONE);
    json_auto_t *j = json_loads(r->out, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(j, "reason")), "end");
    r = CTL("run", "-d", "hello");
    assert_int_equal(r->code, EXIT_DONE);
    assert_string_equal(r->out, "brisk-otter\n");
}

static void test_jsonl(void **state)
{
    struct scene *c = *state;
    c->waited = waited("end", "x");
    const struct agentctl_ran *r = CTL("run", "--jsonl", "hello");
    assert_int_equal(r->code, EXIT_DONE);
    int n = 0;
    for (const char *p = r->out; *p; p += strcspn(p, "\n") + 1, n++) {
        json_auto_t *j = json_loadb(p, strcspn(p, "\n"), 0, NULL);
        assert_non_null(j);
        assert_true(json_object_get(j, "method") || json_object_get(j, "reason"));
    }
    assert_int_equal(n, 6); /* live, state, three events, the end */
}

/* Never 0 without an answer. */
static void test_reasons(void **state)
{
    struct scene *c = *state;
    static const struct {
        const char *reason, *text;
        int code;
    } ends[] = {
        {"end", "text", EXIT_DONE},          {"end", "", EXIT_FAILED},
        {"length", "cut", EXIT_LIMIT},       {"cancelled", "part", EXIT_INTERRUPTED},
        {"failed", "", EXIT_MODEL},          {"loop", "again", EXIT_FAILED},
        {"something new", "x", EXIT_FAILED},
    };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        json_decref(c->waited);
        c->waited = waited(ends[i].reason, ends[i].text);
        assert_int_equal(CTL("wait", "brisk-otter")->code, ends[i].code);
        assert_int_equal(CTL("run", "--json", "hello")->code, ends[i].code);
    }
}

static void test_forced(void **state)
{
    struct scene *c = *state;
    char path[] = "/tmp/forced-XXXXXX";
    int fd = mkostemp(path, O_CLOEXEC);
    assert_true(fd >= 0);
    assert_true(write(fd, "[{\"ids\":[1,2]},{\"text\":\"a\"}]", 28) == 28);
    c->waited = waited("end", "x");
    assert_int_equal(CTL("run", "--forced", path, "hello")->code, EXIT_DONE);
    assert_int_equal(json_array_size(json_object_get(c->prompt, "forced")), 2);
    assert_int_equal(ftruncate(fd, 20), 0);
    const struct agentctl_ran *r = CTL("run", "--forced", path, "hello");
    assert_int_equal(r->code, EXIT_USAGE);
    assert_has(r->err, path);
    close(fd);
    unlink(path);
}

static void test_logs(void **state)
{
    struct scene *c = *state;
    const struct agentctl_ran *r = CTL("logs", "brisk-otter");
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->out, "@2 → read_file {");
    assert_lacks(r->out, "@3 ");
    assert_has(r->out, "@4 ← interrupted: outcome unknown\n");
    assert_string_equal(r->err, "");
    assert_has(CTL("logs", "-v", "brisk-otter")->out, "@3 → read_file [interrupted] {");
    r = CTL("show", "brisk-otter@4");
    assert_int_equal(r->code, EXIT_DONE);
    assert_string_equal(r->out, "@4 ← interrupted: outcome unknown\n");
    assert_int_equal(CTL("show", "brisk-otter@7")->code, EXIT_NOTFOUND);
    assert_int_equal(CTL("logs", "-f", "--timeout", "0.1", "brisk-otter")->code, EXIT_TIMEOUT);
}

static void test_verify(void **state)
{
    struct scene *c = *state;
    c->verified = json_pack("{s:b, s:i, s:i, s:i, s:f}", "equal", 1, "segments", 4, "rows",
                            1234, "tokens", 5678, "ms", 910.0);
    const struct agentctl_ran *r = CTL("verify", "brisk-otter");
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->out, "1,234 computed rows");
    json_object_set_new(c->verified, "rows", json_integer(0));
    for (int equal = 0; equal < 2; equal++) {
        json_object_set_new(c->verified, "equal", json_boolean(equal));
        r = CTL("verify", "brisk-otter");
        assert_int_equal(r->code, EXIT_CORRUPT);
        assert_has(r->out, "NOT verified: there is no digest to compare with");
    }
    json_object_set_new(c->verified, "tokens", json_integer(0));
    r = CTL("verify", "brisk-otter");
    assert_int_equal(r->code, EXIT_DONE);
    assert_has(r->out, "equal: there is no token on the tape yet");
    json_object_set_new(c->verified, "rows", json_integer(1200));
    json_object_set_new(c->verified, "equal", json_false());
    json_object_set_new(c->verified, "firstMismatch", json_pack("{s:i}", "segment", 3));
    r = CTL("verify", "brisk-otter");
    assert_int_equal(r->code, EXIT_CORRUPT);
    assert_has(r->out, "NOT equal");
    assert_has(r->out, "segment: 3");
    assert_int_equal(CTL("verify", "--json", "brisk-otter")->code, EXIT_CORRUPT);
}

static void test_trouble(void **state)
{
    struct scene *c = *state;
    c->overloaded = true;
    const struct agentctl_ran *r = CTL("run", "hello");
    assert_int_equal(r->code, EXIT_AGAIN);
    assert_has(r->err, "the queue is full (come back)");
    c->overloaded = false;
    r = CTL("run", "--timeout", "0.2", "hello");
    assert_int_equal(r->code, EXIT_TIMEOUT);
    assert_has(r->err, "still works on it");
    assert_string_equal(r->out, "");
    c->hang_up = true;
    r = CTL("run", "hello");
    assert_int_equal(r->code, EXIT_NO_DAEMON);
    assert_has(r->err, "closed the connection");
}

/* The first interruption cancels the turn; the second, or SIGTERM, leaves it alone. */
static void test_interrupts(void **state)
{
    struct scene *c = *state;
    static const char *const argv[] = {"run", "hello", NULL};
    const struct agentctl_ran *r;
    int pipe_fds[2];
    char byte;
    assert_int_equal(pipe(pipe_fds), 0);
    c->signal_fd = pipe_fds[1];
    fake_server_sync(c->server);
    for (int sig = 0; sig < 2; sig++) {
        struct agentctl_run run = agentctl_start(argv);
        assert_int_equal(read(pipe_fds[0], &byte, 1), 1);
        assert_int_equal(kill(run.pid, sig ? SIGTERM : SIGINT), 0);
        r = agentctl_finish(&run);
        fake_server_sync(c->server);
        assert_int_equal(r->code, EXIT_INTERRUPTED);
        assert_string_equal(r->out, "");
        assert_has(r->err, sig ? "detached" : "cancelling the turn");
        assert_true(c->cancelled == !sig);
        c->cancelled = false;
        fake_server_sync(c->server);
    }
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

static void test_text(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"plain\n\ttext é 漢", "plain\n\ttext é 漢"},
        {"\x1b]52;c;AAAA\a", "\\x1b]52;c;AAAA\\x07"},
        {"a\rb\x7f", "a\\x0db\\x7f"},
        {"\xc2\x9b"
         "31m",
         "\\x9b31m"},
        {"\xe2\x80\xaegnp.exe", "\\u202egnp.exe"},
        {"\xff\xc0\x80\xed\xa0\x80", "\\xff\\xc0\\x80\\xed\\xa0\\x80"},
        {"\xf0\x9f", "\\xf0\\x9f"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO(buf) struct buf b = BUF_INIT(1024);
        struct error e;
        assert_ok(cli_text_add(&b, cases[i].in, strlen(cases[i].in), &e), &e);
        assert_string_equal(buf_str(&b), cases[i].out);
    }
    char f[CLI_FIGURE_BYTES];
    assert_string_equal(cli_figure(999, f), "999");
    assert_string_equal(cli_figure(999.6, f), "1.00k");
    assert_string_equal(cli_figure(118000, f), "118k");
    assert_string_equal(cli_figure(1.02e6, f), "1.02M");
    assert_string_equal(cli_thousands(0, f), "0");
    assert_string_equal(cli_thousands(1234567, f), "1,234,567");
    assert_string_equal(cli_bytes(54.8e6, f), "54.8 MB");
    assert_string_equal(cli_duration(200000, f), "3 min 20 s");
    AUTO(buf) struct buf line = BUF_INIT(1024);
    json_auto_t *p =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:i}", "phase", "prefill", "done", 118000, "total",
                  203000, "restored", 96000, "tokPerSec", 1900, "etaMs", 45000);
    struct error e;
    assert_ok(cli_progress_line(p, &line, &e), &e);
    assert_string_equal(buf_str(&line), "prefill 118k/203k ▕████████████        ▏ 58 % · 96.0k "
                                        "from SSD · 1.90k tok/s · 45 s");
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_usage),  T(test_no_daemon), T(test_names),      T(test_run),
        T(test_jsonl),  T(test_reasons),   T(test_forced),     T(test_logs),
        T(test_verify), T(test_trouble),   T(test_interrupts), T(test_text),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
