/* The man pages name all there is: every verb and option of both programs, every key of
 * agentd.conf, every method, notification and field of the protocol; and docs/cases.md names
 * tests that are there. What there is, the programs say themselves: --help, schema. */
#include "tests/support/test.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>

#include "agentd/cli.h"
#include "agentd/schema.h"
#include "base/auto.h"
#include "base/buf.h"
#include "base/fs.h"
#include "tests/support/agentctl.h"

static void read_page(const char *path, struct buf *page)
{
    struct error e;
    buf_init(page, 1u << 20);
    assert_ok(fs_read_file(path, page, &e), &e);
}

/* groff writes a dash as \-. */
static void add_escaped(char *out, size_t cap, const char *s)
{
    size_t n = strlen(out);
    for (; *s && n + 3 < cap; s++) {
        if (*s == '-')
            out[n++] = '\\';
        out[n++] = *s;
    }
    out[n] = '\0';
}

/* Whether `word` stands in the page, not as a part of a longer one. */
static bool has_word(const char *page, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = page; (p = strstr(p, word)); p++)
        if ((p == page || (!isalnum((unsigned char)p[-1]) && p[-1] != '_')) &&
            !isalnum((unsigned char)p[n]) && p[n] != '_' && p[n] != '\\')
            return true;
    return false;
}

/* ---- verbs and options ------------------------------------------------------------ */

/* Every long option of a verb's --help is in the page as `format` says. */
static int check_options(const char *help, const struct buf *page, const char *dashes)
{
    char name[64], want[160];
    int n = 0;
    for (const char *line = help; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (sscanf(line, " -%*c, --%63[a-z-]", name) != 1 &&
            sscanf(line, " --%63[a-z-]", name) != 1)
            continue;
        want[0] = '\0';
        add_escaped(want, sizeof want, dashes);
        add_escaped(want, sizeof want, name);
        if (strcmp(name, "help") != 0 && !has_word(buf_str(page), want))
            fail_msg("the page does not have %s", want);
        n++;
    }
    return n;
}

static int check_verbs(const struct agentctl_ran *(*run)(const char *const *),
                       const struct buf *page, const char *before)
{
    static char help[AGENTCTL_OUTPUT];
    char want[128], *save = NULL;
    int n_verbs = 0;
    snprintf(help, sizeof help, "%s", run((const char *const[]){"help", NULL})->out);
    for (char *line = strtok_r(help, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char verb[32];
        if (strncmp(line, "  ", 2) != 0 || sscanf(line, "  %31s", verb) != 1)
            continue;
        snprintf(want, sizeof want, "%s", before);
        add_escaped(want, sizeof want, verb);
        assert_has(buf_str(page), want);
        n_verbs++;
        /* eval is another program, with a page of its own verbs; completion has no options. */
        if (strcmp(verb, "help") != 0 && strcmp(verb, "eval") != 0 &&
            strcmp(verb, "completion") != 0)
            assert_true(check_options(run((const char *const[]){verb, "--help", NULL})->out,
                                      page, "--") > 0);
    }
    return n_verbs;
}

static void test_agentctl_page_is_complete(void **state)
{
    (void)state;
    AUTO(buf) struct buf page;
    char want[128];
    read_page("docs/agentctl.1", &page);
    assert_true(check_verbs(agentctl_run, &page, ".TP\n.B ") > 20);
    for (size_t i = 0; i < CLI_N_OPTIONS; i++) {
        want[0] = '\0';
        add_escaped(want, sizeof want, "--");
        add_escaped(want, sizeof want, cli_option_table[i].name);
        assert_has(buf_str(&page), want);
    }
}

static void test_agentd_page_is_complete(void **state)
{
    (void)state;
    AUTO(buf) struct buf page;
    read_page("docs/agentd.8", &page);
    assert_true(check_verbs(agentd_run, &page, ".SS agentd ") > 8);
}

static void test_conf_page_has_every_key(void **state)
{
    (void)state;
    AUTO(buf) struct buf page;
    read_page("docs/agentd.conf.5", &page);
    const char *serve = agentd_run((const char *const[]){"serve", "--help", NULL})->out;
    assert_true(check_options(serve, &page, ".B ") > 20);
    for (size_t i = 0; i < CLI_N_OPTIONS; i++) {
        char want[80] = ".B ";
        add_escaped(want, sizeof want, cli_option_table[i].name);
        assert_has(buf_str(&page), want);
    }
    for (size_t i = 0; i < 3; i++)
        assert_has(buf_str(&page), ((const char *const[]){"allow = ", "ask = ", "deny = "})[i]);
}

/* ---- the protocol ----------------------------------------------------------------- */

static void check_fields(const char *page, json_t *schema)
{
    const char *key;
    json_t *value;
    size_t i;
    json_object_foreach(json_object_get(schema, "properties"), key, value) {
        if (!has_word(page, key))
            fail_msg("the page does not have the field %s", key);
        check_fields(page, value);
    }
    json_array_foreach(json_object_get(schema, "anyOf"), i, value)
        check_fields(page, value);
    if (json_object_get(schema, "items"))
        check_fields(page, json_object_get(schema, "items"));
}

static void check_section(const char *page, const json_t *document, const char *section)
{
    const char *name, *field;
    json_t *one, *schema;
    json_object_foreach(json_object_get(document, section), name, one) {
        char want[96] = ".TP\n.B ";
        add_escaped(want, sizeof want, name);
        assert_has(page, want);
        check_fields(page, one);
        json_object_foreach(one, field, schema)
            check_fields(page, schema);
    }
}

static void test_protocol_page_is_complete(void **state)
{
    (void)state;
    AUTO(buf) struct buf page;
    json_auto_t *document = NULL;
    struct error e;
    read_page("docs/agentd-protocol.7", &page);
    assert_ok(schema_document(&document, &e), &e);
    check_section(buf_str(&page), document, "methods");
    check_section(buf_str(&page), document, "notifications");
    check_section(buf_str(&page), document, "$defs");
    for (const struct schema_code *c = schema_codes; c->code; c++) {
        char number[16], want[32] = ".B ";
        snprintf(number, sizeof number, "%d", c->code);
        add_escaped(want, sizeof want, number);
        assert_has(buf_str(&page), want);
    }
}

/* ---- cases ------------------------------------------------------------------------ */

/* `FILE.c` and behind it `FUNCTION`s of that file. */
static void test_cases_name_tests_that_are_there(void **state)
{
    (void)state;
    AUTO(buf) struct buf page;
    AUTO(buf) struct buf source = BUF_INIT(1u << 20);
    struct error e;
    char word[160], path[200] = "";
    int n = 0;
    read_page("docs/cases.md", &page);
    for (const char *p = buf_str(&page); (p = strchr(p, '`')); p++) {
        const char *end = strchr(p + 1, '`');
        assert_non_null(end);
        snprintf(word, sizeof word, "%.*s", (int)(end - p - 1), p + 1);
        p = end;
        size_t len = strlen(word);
        if (len > 2 && !strcmp(word + len - 2, ".c")) {
            snprintf(path, sizeof path, "tests/%s", word);
            buf_clear(&source);
            assert_ok(fs_read_file(path, &source, &e), &e);
        } else if (path[0] && !strchr(word, '/')) {
            if (!has_word(buf_str(&source), word))
                fail_msg("%s has no %s", path, word);
            n++;
        }
    }
    assert_true(n > 80);
}

/* A row's second cell that begins with a test, not with why the case cannot occur. */
static bool is_tested(const char *cell)
{
    return cell[0] == '`';
}

/* Whether `number` stands by itself in one of the names in backquotes. */
static bool is_in_a_name(const char *cell, const char *number)
{
    size_t n = strlen(number);
    bool in_name = false;
    for (const char *p = cell; *p; p++) {
        in_name ^= *p == '`';
        if (in_name && !isalnum((unsigned char)p[0]) && !strncmp(p + 1, number, n) &&
            !isdigit((unsigned char)p[1 + n]))
            return true;
    }
    return false;
}

/* The numbers of the cases of a row, those in parentheses (requests that belong to a case)
 * aside: how many there are, and how many of them the tests are named after. */
static void count_numbers(const char *cell, const char *tests, int *n, int *n_named)
{
    bool aside = false;
    *n = *n_named = 0;
    for (const char *p = cell; *p && *p != ':'; p++) {
        char number[16];
        aside = *p == '(' || (aside && *p != ')');
        if (aside || p == cell || p[-1] != ' ' || sscanf(p, "%15[0-9]", number) != 1)
            continue;
        ++*n;
        *n_named += is_in_a_name(tests, number);
    }
}

/* Of loops, what models write, streams, cancelling, processes, sockets and injection every
 * case has a test with its number in its name; of what is stored every row has one. Or the row
 * says why it cannot occur. */
static void test_cases_are_in_the_names_of_their_tests(void **state)
{
    (void)state;
    AUTO(buf) struct buf page;
    char *save = NULL;
    bool every = true;
    int n_rows = 0;
    read_page("docs/cases.md", &page);
    for (char *line = strtok_r((char *)(void *)page.data, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        if (!strncmp(line, "## ", 3))
            every = strncmp(line, "## Sessions:", 12) && strncmp(line, "## Stored", 9);
        char *cell = strncmp(line, "| ", 2) ? NULL : line + 2;
        char *tests = cell ? strstr(cell, " | ") : NULL;
        if (!tests || !strncmp(cell, "case |", 6))
            continue;
        *tests = '\0';
        int n, n_named;
        count_numbers(cell, tests + 3, &n, &n_named);
        if (is_tested(tests + 3) && n > 0 && n_named < (every ? n : 1))
            fail_msg("%d of the %d cases are in no test's name: %s", n - n_named, n, cell);
        n_rows++;
    }
    assert_true(n_rows > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agentctl_page_is_complete),
        cmocka_unit_test(test_agentd_page_is_complete),
        cmocka_unit_test(test_conf_page_has_every_key),
        cmocka_unit_test(test_protocol_page_is_complete),
        cmocka_unit_test(test_cases_name_tests_that_are_there),
        cmocka_unit_test(test_cases_are_in_the_names_of_their_tests),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
