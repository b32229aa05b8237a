/* base/options: every way to write an option, every way to get it wrong, help text. */
#include "tests/support/test.h"

#include "base/auto.h"
#include "base/options.h"

struct common_options {
    bool json;
    int64_t verbose;
};

struct values {
    struct common_options common;
    const char *model;
    int64_t threads;
    uint64_t budget;
    double temperature;
    int mode;
    bool detach;
};

static const char *const modes[] = {"ced", "ced-report", "full", NULL};
static const struct option own[] = {
    {"model", 'm', OPTION_STRING, offsetof(struct values, model), "DIR", .help = "model folder",
     .required = true},
    {"threads", 't', OPTION_INT, offsetof(struct values, threads), "N", .min = 0, .max = 64,
     .help = "threads"},
    {"budget", 0, OPTION_BYTES, offsetof(struct values, budget), "BYTES", .help = "cache"},
    {"temperature", 0, OPTION_FLOAT, offsetof(struct values, temperature), "X", .min = 0,
     .max = 2, .help = "of the sampler"},
    {"mode", 0, OPTION_ENUM, offsetof(struct values, mode), "MODE", .choices = modes,
     .help = "prefill"},
    {"detach", 'd', OPTION_FLAG, offsetof(struct values, detach), .help = "do not wait"},
};
static const struct option common[] = {
    {"json", 0, OPTION_FLAG, offsetof(struct values, common.json), .help = "JSON output"},
    {"verbose", 'v', OPTION_COUNT, offsetof(struct values, common.verbose), .help = "say more"},
};
static const struct command command = {
    "run", "PROMPT [NAME]", "start a session", OPTION_TABLE(own), OPTION_TABLE(common), 1, 2};

/* Splits at blanks: no argument of these tests holds one. */
static enum err parse(const char *line, struct values *v, struct options *o, struct error *e)
{
    static char copy[512];
    const char *argv[40];
    int argc = 0;
    snprintf(copy, sizeof copy, "%s", line);
    char *rest = copy;
    for (char *word; (word = strsep(&rest, " "));)
        argv[argc++] = word;
    return options_parse(&command, argc, argv, v, o, e);
}

static void test_all_forms(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "run -m dir -t 3 --budget 64K --temperature 0.5 --mode full -d -v -v --json hello",
        "run hello --model dir --threads 3 --budget 64k --temperature .5 --mode full --detach "
        "-vv "
        "--json",
        "run --model=dir -t3 --budget=65536 --temperature=5e-1 --mode=full -dvvt 3 hello "
        "--json",
        "run -mdir --threads=3 --budget 64K --temperature 0.5 --mode full -vdv --json -- hello",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        struct error e = {0};
        struct values v = {0};
        struct options o;
        assert_ok(parse(lines[i], &v, &o, &e), &e);
        assert_string_equal(v.model, "dir");
        assert_int_equal(v.threads, 3);
        assert_int_equal(v.budget, 65536);
        assert_true(v.temperature > 0.49 && v.temperature < 0.51);
        assert_int_equal(v.mode, 2);
        assert_true(v.detach && v.common.json);
        assert_int_equal(v.common.verbose, 2);
        assert_int_equal(o.n_args, 1);
        assert_string_equal(o.args[0], "hello");
        assert_false(o.help);
    }
}

static void test_defaults_and_seen(void **state)
{
    (void)state;
    struct error e = {0};
    struct values v = {.threads = 9, .mode = 1};
    struct options o;
    assert_ok(parse("run -m x - -- -d", &v, &o, &e), &e);
    assert_int_equal(v.threads, 9);
    assert_int_equal(v.mode, 1);
    assert_int_equal(o.n_args, 2);
    assert_string_equal(o.args[0], "-");
    assert_string_equal(o.args[1], "-d");
    assert_true(options_has(&command, &o, "model"));
    assert_false(options_has(&command, &o, "threads"));
    assert_false(options_has(&command, &o, "json"));
}

static void test_messages(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"run p", "--model DIR is required"},
        {"run -m x", "missing argument: want PROMPT [NAME]"},
        {"run -m x a b c", "unexpected argument \"c\""},
        {"run -m x --zap a", "unknown option \"--zap\""},
        {"run -m x --thread 3 a", "unknown option \"--thread\""},
        {"run -m x -dz a", "unknown option \"-z\" in \"-dz\""},
        {"run a -m", "--model: missing DIR"},
        {"run -m x a -t 65", "--threads: want 0..64, is 65"},
        {"run -m x a -t -1", "--threads: want 0..64, is -1"},
        {"run -m x a -t 3x", "--threads: want a whole number, is \"3x\""},
        {"run -m x a --threads=", "--threads: want a whole number, is \"\""},
        {"run -m x a -t 99999999999999999999",
         "--threads: want 0..64, is 99999999999999999999"},
        {"run -m x a --detach=1", "--detach takes no value"},
        {"run -m x a --mode fast", "--mode: want one of ced, ced-report, full, is \"fast\""},
        {"run -m x a --budget 1Q",
         "--budget: want bytes such as 4096, 64K, 16M, 2G, is \"1Q\""},
        {"run -m x a --budget -1",
         "--budget: want bytes such as 4096, 64K, 16M, 2G, is \"-1\""},
        {"run -m x a --budget 99999999T", "--budget: 99999999T: more bytes than 64 bits hold"},
        {"run -m x a --temperature nan", "--temperature: want a number, is \"nan\""},
        {"run -m x a --temperature 3", "--temperature: want 0..2, is 3"},
        {"run -m x a --temperature 1,5", "--temperature: want a number, is \"1,5\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error e = {0};
        struct values v = {0};
        struct options o;
        assert_int_equal(parse(cases[i][0], &v, &o, &e), ERR_INVAL);
        assert_string_equal(e.msg, cases[i][1]);
    }
}

static void test_help(void **state)
{
    (void)state;
    struct error e = {0};
    struct values v = {0};
    struct options o;
    assert_ok(parse("run --zap --help", &v, &o, &e), &e);
    assert_true(o.help);
    assert_int_equal(parse("run -m x -- --help -h", &v, &o, &e), OK);
    assert_false(o.help);
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    assert_non_null(f);
    options_usage(&command, "agentctl", f);
    fclose(f);
    AUTO_FREE char *owned = text;
    assert_non_null(
        strstr(owned, "usage: agentctl run [options] PROMPT [NAME]\n\nstart a session\n"));
    assert_non_null(strstr(owned, "  -m, --model DIR              model folder (required)\n"));
    assert_non_null(
        strstr(owned, "      --mode MODE              prefill: ced | ced-report | full\n"));
    assert_non_null(strstr(owned, "      --json                   JSON output\n"));
}

static void test_bytes(void **state)
{
    (void)state;
    struct error e = {0};
    uint64_t v;
    assert_ok(options_parse_bytes("18446744073709551615", &v, &e), &e);
    assert_true(v == UINT64_MAX);
    assert_ok(options_parse_bytes("16777215T", &v, &e), &e);
    assert_true(v == UINT64_C(16777215) << 40);
    assert_int_equal(options_parse_bytes("16777216T", &v, &e), ERR_LIMIT);
    assert_int_equal(options_parse_bytes("18446744073709551616", &v, &e), ERR_LIMIT);
    static const char *const bad[] = {"", "K", " 1", "1 ", "1KB", "0x10", "1.5G", "+1", "-1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(options_parse_bytes(bad[i], &v, &e), ERR_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_forms), cmocka_unit_test(test_defaults_and_seen),
        cmocka_unit_test(test_messages),  cmocka_unit_test(test_help),
        cmocka_unit_test(test_bytes),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
