/* Results that are computed while their tools still run, on a real checkpoint: the daemon goes
 * through tool steps whose output comes at random moments in random pieces, and `verify` (a
 * fresh process that computes the tape in one go, without any of this) has to find the digest
 * of every computed row equal. */
#include "tests/support/test.h"

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/daemon.h"

#define MODEL "tests/golden/a_tiny/model"
#define AUTO_RUN "{\"approve\":\"auto\",\"tools\":[\"run\"]"
#define HEAD "ok</think>\n\n<｜DSML｜ calls>\n"
#define RUN(command)                                                                           \
    "<｜DSML｜ invoke name=\"run\">\n<｜DSML｜ parameter name=\"command\" "                \
    "string=\"true\">" command "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n"
#define TAIL "</｜DSML｜ calls>"
#define DONE "ok</think>All done."

static json_int_t ledger_of(const json_t *answer, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(answer, "ledger"), key));
}

/* xorshift64 */
static uint32_t draw(uint64_t *s, uint32_t n)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return (uint32_t)(*s >> 33) % n;
}

struct fixture {
    struct daemon_fixture d;
    struct client *c;
    char id[27];
    char model[160];
};

static void write_file(const char *dir, const char *name, const char *text, size_t n)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* The golden checkpoint with a longer context, so that an output can be cut in it. */
static void make_model(struct fixture *x)
{
    static const char *const links[] = {"model.safetensors", "model.safetensors.index.json",
                                        "tokenizer.json", "tokenizer_config.json"};
    static const char key[] = "\"max_position_embeddings\": ";
    char from[PATH_MAX], to[256], text[16384], *at;
    snprintf(x->model, sizeof(x->model), "%s/model", x->d.dir);
    assert_int_equal(mkdir(x->model, 0700), 0);
    for (size_t i = 0; i < sizeof(links) / sizeof(*links); i++) {
        snprintf(to, sizeof(to), MODEL "/%s", links[i]);
        if (!realpath(to, from))
            continue;
        snprintf(to, sizeof(to), "%s/%s", x->model, links[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    FILE *f = fopen(MODEL "/config.json", "re");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof(text) - 16, f);
    fclose(f);
    text[n] = '\0';
    assert_non_null(at = strstr(text, key));
    at += strlen(key);
    memmove(at + 1, at, strlen(at) + 1); /* 4096 becomes 94096 */
    *at = '9';
    write_file(x->model, "config.json", text, n + 1);
    x->d.model = x->model;
}

/* A `verify` of everything takes its time on a busy machine. */
static struct client *connect_patiently(const struct daemon_fixture *d)
{
    const struct client_options o = {.socket_path = d->socket, .timeout_ms = 300000};
    struct client *c = NULL;
    struct error e;
    assert_ok(client_open(&c, &o, &e), &e);
    return c;
}

static void begin(struct fixture *x, const char *session)
{
    daemon_make(&x->d, "");
    make_model(x);
    daemon_start(&x->d, NULL);
    x->c = connect_patiently(&x->d);
    daemon_session(&x->d, x->c, session, x->id);
}

static void end(struct fixture *x)
{
    client_free(x->c);
    daemon_remove(&x->d);
}

static void restart(struct fixture *x)
{
    client_free(x->c);
    daemon_start(&x->d, NULL);
    x->c = connect_patiently(&x->d);
}

/* A prompt whose runs are these. */
static void force(struct fixture *x, const char *const *runs)
{
    json_t *list = json_array();
    for (; *runs; runs++)
        json_array_append_new(list, json_pack("{s:s}", "text", *runs));
    json_decref(daemon_call(x->c, "session/prompt",
                            json_pack("{s:s, s:[{s:s, s:s}], s:o}", "id", x->id, "content",
                                      "type", "text", "text", "go", "forced", list)));
}

static json_t *answer(struct fixture *x, const char *reason)
{
    json_t *a = daemon_call(x->c, "session/wait",
                            json_pack("{s:s, s:i}", "id", x->id, "timeoutMs", 290000));
    assert_string_equal(text_of(a, "state"), "idle");
    if (strcmp(text_of(a, "reason"), reason) != 0)
        daemon_show_log(&x->d);
    assert_string_equal(text_of(a, "reason"), reason);
    assert_int_equal(ledger_of(a, "prompt_tokens"),
                     ledger_of(a, "resident") + ledger_of(a, "restored") +
                         ledger_of(a, "recomputed") + ledger_of(a, "relost") +
                         ledger_of(a, "prefilled"));
    assert_true(ledger_of(a, "ahead") <= ledger_of(a, "prefilled"));
    return a;
}

static void verify(struct fixture *x)
{
    json_t *v = daemon_call(x->c, "session/verify", json_pack("{s:s}", "id", x->id));
    if (!json_is_true(json_object_get(v, "equal"))) {
        daemon_show_log(&x->d);
        fail_msg("verify: %s", json_dumps(v, 0));
    }
    json_decref(v);
}

/* Waits for a file that a tool makes in its folder. */
static void wait_for(const struct fixture *x, const char *name)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", x->d.work, name);
    for (int i = 0; access(path, F_OK); i++) { /* it takes what it takes, 20 s at most */
        if (i > 4000)
            fail_msg("%s does not come", name);
        nap(5);
    }
}

/* ---- bit-equal -------------------------------------------------------------------- */

/* Output that comes slowly: nearly all of it is computed before the tool ends. */
static void test_output_is_ahead(void **state)
{
    (void)state;
    struct fixture x;
    static const char *const runs[] = {
        HEAD RUN("for i in 1 2 3 4 5 6 7 8 9 10; do printf 'line %s of an output that goes on "
                 "and on, as they do\\n' $i $i $i $i; sleep 0.05; done; sleep 0.3") TAIL,
        DONE, NULL};
    begin(&x, AUTO_RUN "}");
    force(&x, runs);
    json_t *a = answer(&x, "end");
    /* 2,000 bytes of output are some 1,500 tokens here. How many of them a machine gets through
     * in time is bench_ingest's to say. */
    assert_in_range(ledger_of(a, "ahead"), 1, 3000);
    json_decref(a);
    verify(&x);
    end(&x);
}

/* One command: pieces of text that the tokenizer could join, cut anywhere, also inside
 * characters, with pauses between some. */
static void make_command(uint64_t *seed, char *out, size_t cap)
{
    static const char *const pieces[] = {
        "word",
        "wor",
        "d ",
        " ",
        "  ",
        "\\n",
        "\\n\\n",
        "12",
        "345",
        ".",
        "()",
        "\\303",
        "\\251",
        "\\344\\270",
        "\\255",
        "\\000",
        "\\033[1m",
        "the end",
        "</tool_result>",
        "\\377",
        "_x",
        "a longer piece of ordinary text, ",
    };
    size_t n = 0, parts = 20 + draw(seed, 60);
    for (size_t i = 0; i < parts && n + 120 < cap; i++) {
        const char *p = pieces[draw(seed, sizeof(pieces) / sizeof(*pieces))];
        n += (size_t)snprintf(out + n, cap - n, "printf '%s'; ", p);
        if (draw(seed, 3) == 0)
            n += (size_t)snprintf(out + n, cap - n, "sleep 0.0%u; ", 1 + draw(seed, 4));
        if (draw(seed, 6) == 0)
            n += (size_t)snprintf(out + n, cap - n, "printf 'ab cd%%s, ' 1 2 3 4 5 6 7 8 9; ");
    }
    snprintf(out + n, cap - n, "true");
}

/* Several calls at once; the modes in which it is computed, and the one in which it is not. */
static void random_steps(const char *mode, bool is_ahead, uint64_t seed)
{
    struct fixture x;
    char session[160];
    snprintf(session, sizeof(session), AUTO_RUN ",\"mode\":\"%s\"}", mode);
    begin(&x, session);
    size_t cap = (size_t)64 << 10;
    char run[2048], *command = malloc(cap);
    json_int_t ahead = 0;
    assert_non_null(command);
    int n_turns = getenv("AGENTD_SLOW") ? 8 : 2;
    for (int turn = 0; turn < n_turns; turn++) {
        size_t n = (size_t)snprintf(run, sizeof(run), "%s", HEAD);
        uint32_t n_calls = 1 + draw(&seed, 4);
        for (uint32_t i = 0; i < n_calls; i++) {
            char name[16];
            make_command(&seed, command, cap);
            snprintf(name, sizeof(name), "c%u.sh", i);
            write_file(x.d.work, name, command, strlen(command));
            n += (size_t)snprintf(run + n, sizeof(run) - n, RUN("bash %s"), name);
        }
        snprintf(run + n, sizeof(run) - n, "%s", TAIL);
        force(&x, (const char *const[]){run, DONE, NULL});
        json_t *a = answer(&x, "end");
        ahead += ledger_of(a, "ahead");
        json_decref(a);
    }
    if (is_ahead)
        assert_true(ahead >= 64);
    else
        assert_int_equal(ahead, 0);
    verify(&x);
    free(command);
    end(&x);
}

static void test_random_steps(void **state)
{
    (void)state;
    random_steps("ced", true, 0x1234567);
    random_steps("full", true, 0x7654321);
}

static void test_ced_report_is_not_ahead(void **state)
{
    (void)state;
    random_steps("ced-report", false, 0x2468ace);
}

/* Later calls end before the first does: they wait for it, and the order is that of the calls.
 */
static void test_call_order(void **state)
{
    (void)state;
    struct fixture x;
    static const char *const runs[] = {
        HEAD RUN(
            "for i in 1 2 3 4 5 6 7 8; do echo 'the first call writes a line now and then, "
            "and not the last'; sleep 0.05; done") RUN("echo second; touch second")
            RUN("seq 1 400") TAIL,
        DONE, NULL};
    begin(&x, AUTO_RUN "}");
    force(&x, runs);
    json_t *a = answer(&x, "end");
    assert_true(ledger_of(a, "ahead") >= 128);
    json_decref(a);
    verify(&x);
    end(&x);
}

/* ---- what is cut, rejected, stopped ----------------------------------------------- */

/* More output than is kept: what comes ahead is of the head, which stays. */
static void test_truncated(void **state)
{
    (void)state;
    if (!getenv("AGENTD_SLOW"))
        skip(); /* 32 KiB are 27,000 tokens here */
    struct fixture x;
    static const char *const runs[] = {
        HEAD RUN("head -c 3000 /dev/zero | tr '\\\\0' 'a '; seq 1 20000; sleep 0.5; seq 1 9")
            TAIL,
        DONE, NULL};
    begin(&x, AUTO_RUN "}");
    force(&x, runs);
    json_t *a = answer(&x, "end");
    assert_in_range(ledger_of(a, "ahead"), 64, 16384);
    assert_true(ledger_of(a, "prefilled") > 2 * ledger_of(a, "ahead"));
    json_decref(a);
    verify(&x);
    end(&x);
}

/* The launcher of the only tool that runs: the daemon's only child. */
static pid_t launcher_of(const struct fixture *x)
{
    char path[64], line[256] = "";
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)x->d.pid, (int)x->d.pid);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof(line), f));
    fclose(f);
    pid_t pid = (pid_t)strtol(line, NULL, 10);
    assert_true(pid > 0);
    return pid;
}

/* The result begins otherwise than the output did: nothing of what was ahead is kept. */
static void test_rejected(void **state)
{
    (void)state;
    struct fixture x;
    static const char *const runs[] = {
        HEAD RUN("seq 1 300; sleep 0.3; touch ready; sleep 30") TAIL, DONE, NULL};
    begin(&x, AUTO_RUN "}");
    force(&x, runs);
    wait_for(&x, "ready");
    kill(launcher_of(&x), SIGKILL);
    json_t *a = answer(&x, "end");
    assert_int_equal(ledger_of(a, "ahead"), 0);
    json_decref(a);
    verify(&x);
    end(&x);
}

static void test_cancelled(void **state)
{
    (void)state;
    struct fixture x;
    static const char *const runs[] = {
        HEAD RUN("seq 1 300; sleep 0.2; touch ready; sleep 30") TAIL, DONE, NULL};
    static const char *const next[] = {DONE, NULL};
    begin(&x, AUTO_RUN "}");
    force(&x, runs);
    wait_for(&x, "ready");
    json_decref(daemon_call(x.c, "session/cancel", json_pack("{s:s}", "id", x.id)));
    json_decref(answer(&x, "cancelled"));
    force(&x, next);
    json_t *a = answer(&x, "end");
    assert_int_equal(ledger_of(a, "ahead"), 0);
    assert_int_equal(ledger_of(a, "recomputed"), 0); /* and the sequence is as it was */
    json_decref(a);
    verify(&x);
    end(&x);
}

/* Killed with half of it ahead: of that nothing was on the tape, and nothing is missed. */
static void test_killed(void **state)
{
    (void)state;
    struct fixture x;
    static const char *const runs[] = {
        HEAD RUN("echo x >> count; seq 1 300; sleep 0.2; touch ready; sleep 30") TAIL,
        HEAD RUN("cat count") TAIL, DONE, NULL};
    begin(&x, AUTO_RUN "}");
    force(&x, runs);
    wait_for(&x, "ready");
    daemon_kill(&x.d);
    restart(&x);
    json_t *a = answer(&x, "end");
    json_decref(a);
    json_t *e = daemon_call(x.c, "session/get", json_pack("{s:s}", "id", x.id));
    json_decref(e);
    verify(&x);
    char path[256], text[16] = "";
    snprintf(path, sizeof(path), "%s/count", x.d.work);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    assert_int_equal(fread(text, 1, sizeof(text), f), 2); /* its body ran once */
    fclose(f);
    end(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_output_is_ahead),
        cmocka_unit_test(test_random_steps),
        cmocka_unit_test(test_ced_report_is_not_ahead),
        cmocka_unit_test(test_call_order),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_rejected),
        cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_killed),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
