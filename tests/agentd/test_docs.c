/* The man page of agentctl names every verb and every option that all verbs share. */
#include "tests/support/test.h"

#include "agentd/cli.h"
#include "base/buf.h"
#include "base/fs.h"
#include "tests/support/agentctl.h"

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

static void test_agentctl_page_is_complete(void **state)
{
    (void)state;
    AUTO(buf) struct buf page = BUF_INIT(1u << 20);
    struct error e;
    char want[128];
    int n_verbs = 0;
    assert_ok(fs_read_file("docs/agentctl.1", &page, &e), &e);
    static char help[AGENTCTL_OUTPUT];
    snprintf(help, sizeof help, "%s", AGENTCTL("help")->out);
    char *save = NULL;
    for (char *line = strtok_r(help, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char verb[32];
        if (strncmp(line, "  ", 2) != 0 || sscanf(line, "  %31s", verb) != 1)
            continue;
        snprintf(want, sizeof want, ".TP\n.B ");
        add_escaped(want, sizeof want, verb);
        assert_has(buf_str(&page), want);
        n_verbs++;
    }
    assert_true(n_verbs > 20);
    for (size_t i = 0; i < CLI_N_OPTIONS; i++) {
        want[0] = '\0';
        add_escaped(want, sizeof want, "--");
        add_escaped(want, sizeof want, cli_option_table[i].name);
        assert_has(buf_str(&page), want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agentctl_page_is_complete),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
