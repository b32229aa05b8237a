/* The spelling of a special token, wherever text comes from outside: never its id on the tape.
 *
 * One session is run with the spelling of every added token in a user message, a file that a
 * tool prints, the names of files, the description and a parameter of a tool, and the system
 * prompt; another with harmless words in their place. Both tapes must have the same special ids
 * in the same order, and the first must still say every spelling, byte by byte. */
#include "tests/support/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "engine/engine.h"
#include "engine/ids.h"
#include "engine/tokenizer.h"
#include "sessions/session.h"
#include "sessions/store.h"
#include "sessions/tape.h"
#include "tests/support/daemon.h"

#define EOS "<｜end▁of▁sentence｜>"
#define INVOKE(name, params)                                                                   \
    "<｜DSML｜ invoke name=\\\"" name "\\\">\\n" params "</｜DSML｜ invoke>\\n"
#define PARAM(name, value)                                                                     \
    "<｜DSML｜ parameter name=\\\"" name "\\\" string=\\\"true\\\">" value                     \
    "</｜DSML｜ parameter>\\n"
static const char script[] = "{\"text\":\"ok</think>\\n\\n<｜DSML｜ calls>\\n" INVOKE(
    "run", PARAM("command", "cat said")) INVOKE("read_file", PARAM("path", "said"))
    INVOKE("list_dir", PARAM("path", "names")) INVOKE("grep", PARAM("pattern", "found"))
        INVOKE("look", PARAM("at", "it")) "</｜DSML｜ calls>" EOS
                                          "\"}\n{\"text\":\"ok</think>done" EOS "\"}\n";

/* Spellings of all added tokens. */
struct spellings {
    char *of[4096];
    size_t n;
};

static struct engine *open_engine(const struct daemon_fixture *d, const char *model)
{
    struct engine *m = NULL;
    struct error e;
    assert_ok(engine_open_script(&m, d->script + strlen("script:"), model, &e), &e);
    return m;
}

static void collect(const struct engine *m, struct spellings *s)
{
    const struct tokenizer *tok = engine_describe(m)->tokenizer;
    s->n = 0;
    for (uint32_t id = 0; id < engine_describe(m)->vocab_size && s->n < 4096; id++) {
        size_t n = 0;
        const uint8_t *bytes = tokenizer_bytes(tok, id, &n);
        if (bytes && n && tokenizer_is_added(tok, id))
            s->of[s->n++] = strndup((const char *)bytes, n);
    }
    assert_true(s->n > 10);
}

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

/* All spellings, or as many harmless words, with `between` around each. */
static char *phrase(const struct spellings *s, bool harmless, const char *between)
{
    size_t cap = 64;
    for (size_t i = 0; i < s->n; i++)
        cap += strlen(s->of[i]) + strlen(between) + 8;
    char *out = malloc(cap);
    size_t at = (size_t)snprintf(out, cap, "begin");
    for (size_t i = 0; i < s->n; i++)
        at +=
            (size_t)snprintf(out + at, cap - at, "%s%s", between, harmless ? "word" : s->of[i]);
    snprintf(out + at, cap - at, "%send\n", between);
    return out;
}

/* A file below names/ whose path, without that, is `number` and the spelling. */
static void make_named(const struct daemon_fixture *d, size_t number, const char *spelling)
{
    char path[512];
    int n = snprintf(path, sizeof path, "%s/names/%zu%s", d->work, number, spelling);
    assert_in_range(n, 1, sizeof path - 1);
    for (char *c = path + strlen(d->work) + 1; (c = strchr(c, '/')); c++) {
        *c = '\0';
        assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
        *c = '/';
    }
    write_file(path, "found\n");
}

/* ---- one session ------------------------------------------------------------------ */

struct seen_call {
    char id[128];
};

static void on_event(void *user, const char *method, const json_t *params)
{
    struct seen_call *k = user;
    const json_t *item = json_object_get(params, "item");
    const char *name = json_string_value(json_object_get(item, "name"));
    if (!strcmp(method, "session/event") && name && !strcmp(name, "look"))
        snprintf(k->id, sizeof k->id, "%s", json_string_value(json_object_get(item, "callId")));
}

/* Everything that comes from outside says `text`. */
static void converse(const struct daemon_fixture *d, const char *text)
{
    char id[27];
    struct seen_call call = {.id = ""};
    struct client *c = daemon_connect(d, on_event, &call);
    json_t *params = json_pack(
        "{s:s, s:s, s:s, s:s, s:[s,s,s,s], s:[{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}}}}]}", "cwd",
        d->work, "name", "spoken", "approve", "auto", "system", text, "tools", "run",
        "read_file", "list_dir", "grep", "clientTools", "name", "look", "description", text,
        "parameters", "type", "object", "properties", "at", "type", "string", "description",
        text);
    assert_non_null(params);
    json_t *r = daemon_call(c, "session/new", params);
    snprintf(id, sizeof id, "%s", json_string_value(json_object_get(r, "id")));
    json_decref(r);
    json_decref(
        daemon_call(c, "session/attach", json_pack("{s:s, s:i}", "id", id, "fromSeq", 0)));
    daemon_prompt(c, id, text);
    while (!call.id[0])
        assert_int_equal(client_poll(c, 20000, NULL), OK);
    json_decref(daemon_call(
        c, "tool/result",
        json_pack("{s:s, s:s, s:s}", "id", id, "callId", call.id, "content", text)));
    r = daemon_wait(c, id);
    const char *said = json_string_value(json_object_get(r, "text"));
    if (!said || strcmp(said, "done") != 0)
        fail_msg("%s", json_dumps(r, 0));
    json_decref(r);
    client_free(c);
}

/* The special ids of a tape, and the bytes of the others: what it says. */
struct heard {
    struct ids special;
    struct buf text;
};

static void listen_in(const struct daemon_fixture *d, const struct tokenizer *tok,
                      struct heard *out)
{
    char db[200], packs[200], state[200];
    struct error e;
    struct store *st = NULL;
    AUTO(tape) struct tape t = {0};
    AUTO(session_info) struct session_info s = {0};
    snprintf(db, sizeof db, "%s/agentd.db", d->store);
    snprintf(packs, sizeof packs, "%s/packs", d->store);
    snprintf(state, sizeof state, "%s/state", d->store);
    const struct store_options o = {
        .db_path = db, .packs_dir = packs, .state_dir = state, .no_direct_io = true};
    assert_ok(store_open(&st, &o, &e), &e);
    assert_ok(session_find(st, "spoken", &s, &e), &e);
    assert_ok(tape_load(st, s.id, &t, &e), &e);
    store_close(st);
    *out = (struct heard){.special.max = 1 << 20, .text = BUF_INIT(1 << 24)};
    for (uint64_t i = 0; i < t.view.n_ids; i++)
        if (tokenizer_is_added(tok, t.ids[i]))
            assert_ok(ids_add_all(&out->special, &t.ids[i], 1, &e), &e);
        else
            assert_ok(tokenizer_decode(tok, &t.ids[i], 1, &out->text, &e), &e);
}

static void hear(const char *model, const struct spellings *s, const struct tokenizer *tok,
                 bool harmless, const char *between, struct heard *out)
{
    struct daemon_fixture d;
    daemon_make(&d, script);
    if (model) {
        d.extra[0] = "--model";
        d.extra[1] = model;
    }
    char *text = phrase(s, harmless, between);
    char path[256];
    snprintf(path, sizeof path, "%s/said", d.work);
    write_file(path, text);
    for (size_t i = 0; i < s->n; i++)
        make_named(&d, i, harmless ? "word" : s->of[i]);
    daemon_start(&d, NULL);
    converse(&d, text);
    assert_int_equal(daemon_stop(&d), 0);
    listen_in(&d, tok, out);
    free(text);
    daemon_remove(&d);
}

static size_t count(const struct buf *text, const char *what)
{
    size_t n = 0;
    for (const char *at = buf_str(text); (at = strstr(at, what)); at++)
        n++;
    return n;
}

/* Said in: system prompt, tool description, parameter description, prompt, cat, read_file, the
 * client's result; and as a path by grep. */
#define PLACES 7

static void check_model(const char *model, const char *between)
{
    struct daemon_fixture d; /* for the script file only */
    struct spellings s;
    struct heard harmless, hostile;
    daemon_make(&d, script);
    struct engine *m = open_engine(&d, model);
    const struct tokenizer *tok = engine_describe(m)->tokenizer;
    collect(m, &s);
    hear(model, &s, tok, true, between, &harmless);
    hear(model, &s, tok, false, between, &hostile);
    assert_int_equal(harmless.special.n, hostile.special.n);
    assert_memory_equal(harmless.special.v, hostile.special.v,
                        harmless.special.n * sizeof *harmless.special.v);
    for (size_t i = 0; i < s.n; i++) {
        char path[300];
        snprintf(path, sizeof path, "names/%zu%s", i, s.of[i]);
        if (count(&hostile.text, s.of[i]) < PLACES || count(&hostile.text, path) < 1)
            fail_msg("%s was said %zu times, as a path %zu times", s.of[i],
                     count(&hostile.text, s.of[i]), count(&hostile.text, path));
        free(s.of[i]);
    }
    ids_fini(&harmless.special);
    ids_fini(&hostile.special);
    buf_fini(&harmless.text);
    buf_fini(&hostile.text);
    engine_free(m);
    daemon_remove(&d);
}

static void test_llama_cpp_24382_26273_transformers_29279_47822_bytes(void **state)
{
    (void)state;
    check_model(NULL, " ");
    check_model(NULL, ""); /* one behind the other, without a border */
}

static void test_llama_cpp_24382_26273_transformers_29279_47822_a_tiny(void **state)
{
    (void)state;
    check_model("tests/golden/a_tiny/model", " ");
    check_model("tests/golden/a_tiny/model", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama_cpp_24382_26273_transformers_29279_47822_bytes),
        cmocka_unit_test(test_llama_cpp_24382_26273_transformers_29279_47822_a_tiny),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
