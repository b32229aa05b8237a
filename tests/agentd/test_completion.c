/* Completion: what `help` and --help list is what bash, zsh and fish offer, of both programs;
 * bash reads it and completes by it. */
#include "tests/support/test.h"

#include <stdbool.h>
#include <unistd.h>

#include "agentd/verbs.h"
#include "tests/support/agentctl.h"

struct program {
    const char *name;
    const struct agentctl_ran *(*run)(const char *const *argv);
};
static const struct program programs[] = {{"agentctl", agentctl_run}, {"agentd", agentd_run}};

/* Whether the line that tells of `verb` offers `word`; zsh and fish tell of it in several. */
static bool offers(const char *text, const char *begins, const char *ends, const char *word)
{
    size_t n = strlen(word);
    const char *from = strstr(text, begins), *to = from ? strstr(from, ends) : NULL;
    for (const char *p = from; p && to && (p = strstr(p, word)) && p < to; p++)
        if (!strchr("abcdefghijklmnopqrstuvwxyz-", p[n]))
            return true;
    return false;
}

static void check_option(const char *shell, const char *text, const char *program,
                         const char *verb, const char *option)
{
    char begins[160], word[80];
    bool found;
    if (!strcmp(shell, "fish")) {
        snprintf(begins, sizeof begins,
                 "complete -c %s -n '__fish_seen_subcommand_from %s' -l %s ", program, verb,
                 option);
        found = strstr(text, begins) != NULL;
    } else {
        bool zsh = !strcmp(shell, "zsh");
        snprintf(begins, sizeof begins, zsh ? "\n    %s)\n" : "\n        %s) words='", verb);
        snprintf(word, sizeof word, "%s--%s", zsh ? "'" : " ", option);
        found = offers(text, begins, ";;", word);
    }
    if (!found)
        fail_msg("%s: %s %s --%s is not offered", shell, program, verb, option);
}

/* Every long option of the verb's --help. */
static int check_verb(const struct program *p, const char *shell, const char *text,
                      const char *verb)
{
    static char help[AGENTCTL_OUTPUT];
    char *save = NULL, name[64];
    int n = 0;
    snprintf(help, sizeof help, "%s", p->run((const char *const[]){verb, "--help", NULL})->out);
    for (char *line = strtok_r(help, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (sscanf(line, " -%*c, --%63[a-z-]", name) != 1 &&
            sscanf(line, " --%63[a-z-]", name) != 1)
            continue;
        if (!strcmp(name, "help"))
            continue;
        check_option(shell, text, p->name, verb, name);
        n++;
    }
    return n;
}

static void check_verbs(const struct program *p, const char *shell, const char *text)
{
    static char help[AGENTCTL_OUTPUT];
    char *save = NULL, verb[32];
    int n_verbs = 0, n_options = 0;
    snprintf(help, sizeof help, "%s", p->run((const char *const[]){"help", NULL})->out);
    for (char *line = strtok_r(help, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, "  ", 2) != 0 || sscanf(line, "  %31s", verb) != 1)
            continue;
        assert_has(text, verb);
        n_verbs++;
        /* These have no table: eval is another program. */
        if (strcmp(verb, "help") && strcmp(verb, "completion") && strcmp(verb, "eval"))
            n_options += check_verb(p, shell, text, verb);
    }
    assert_true(n_verbs > 9 && n_options > 40);
}

static void test_every_verb_and_option_is_offered(void **state)
{
    (void)state;
    static const char *const shells[] = {"bash", "zsh", "fish"};
    static char text[AGENTCTL_OUTPUT];
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        for (size_t k = 0; k < 3; k++) {
            const struct agentctl_ran *r =
                programs[i].run((const char *const[]){"completion", shells[k], NULL});
            assert_int_equal(r->code, EXIT_DONE);
            assert_true(strlen(r->out) < sizeof text - 1);
            snprintf(text, sizeof text, "%s", r->out);
            check_verbs(&programs[i], shells[k], text);
        }
}

static void test_other_shells_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        const struct agentctl_ran *r =
            programs[i].run((const char *const[]){"completion", "tcsh", NULL});
        assert_int_equal(r->code, EXIT_USAGE);
        assert_has(r->err, "want bash, zsh or fish, is \"tcsh\"");
        assert_string_equal(r->out, "");
    }
}

/* ---- the shells themselves -------------------------------------------------------- */

/* What bash offers for a command line whose last word is being typed. */
static void check_bash(const char *program, const char *line, const char *want)
{
    char script[400];
    snprintf(script, sizeof script,
             "PATH=build:$PATH; . <(%s completion bash); COMP_WORDS=(%s); "
             "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _%s; echo \"${COMPREPLY[@]}\"",
             program, line, program);
    const struct agentctl_ran *r =
        program_run("/bin/bash", (const char *const[]){"-c", script, NULL});
    assert_string_equal(r->err, "");
    assert_int_equal(r->code, 0);
    assert_string_equal(r->out, want);
}

static void test_bash_completes(void **state)
{
    (void)state;
    if (access("/bin/bash", X_OK) != 0)
        skip();
    check_bash("agentd", "agentd tok", "tokenize\n");
    check_bash("agentd", "agentd serve --kv-q", "--kv-quota\n");
    check_bash("agentd", "agentd score --chu", "--chunk\n");
    check_bash("agentctl", "agentctl rewi", "rewind\n");
    check_bash("agentctl", "agentctl run --max-s", "--max-steps\n");
}

/* Where another shell is installed it reads its own without running it. */
static void test_other_shells_read_it(void **state)
{
    (void)state;
    static const char *const shells[][3] = {{"zsh", "/usr/bin/zsh", "/bin/zsh"},
                                            {"fish", "/usr/bin/fish", "/bin/fish"}};
    int n = 0;
    for (size_t i = 0; i < 2; i++)
        for (size_t k = 0; k < 2; k++) {
            const char *path = access(shells[i][1], X_OK) == 0 ? shells[i][1] : shells[i][2];
            char script[160];
            if (access(path, X_OK) != 0)
                continue;
            snprintf(script, sizeof script, "build/%s completion %s | %s -n /dev/stdin",
                     programs[k].name, shells[i][0], path);
            const struct agentctl_ran *r =
                program_run("/bin/bash", (const char *const[]){"-c", script, NULL});
            assert_string_equal(r->err, "");
            assert_int_equal(r->code, 0);
            n++;
        }
    if (!n)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_verb_and_option_is_offered),
        cmocka_unit_test(test_other_shells_are_refused),
        cmocka_unit_test(test_bash_completes),
        cmocka_unit_test(test_other_shells_read_it),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
