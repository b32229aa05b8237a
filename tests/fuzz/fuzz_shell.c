/* tools/shell and tools/rules: any line is read within its caps or refused with a reason; a
 * command that was read, quoted and read again, has the same words; and a line is allowed only
 * if it is also allowed with a refused command behind it taken away, never with one added. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "tools/rules.h"
#include "tools/shell.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every word in single quotes. */
static enum err quote(const struct shell_command *c, struct buf *out)
{
    enum err rc = OK;
    for (size_t i = 0; i < c->n_words && !rc; i++) {
        rc = buf_add_str(out, i ? " '" : "'", NULL);
        for (const char *p = c->words[i].text; *p && !rc; p++)
            rc = *p == '\'' ? buf_add_str(out, "'\\''", NULL)
                            : buf_add_byte(out, (uint8_t)*p, NULL);
        if (!rc)
            rc = buf_add_str(out, "'", NULL);
    }
    return rc;
}

static void read_again(const struct shell_command *c)
{
    AUTO(buf) struct buf text = BUF_INIT(SHELL_MAX_BYTES);
    AUTO(shell_line) struct shell_line l = {0};
    if (quote(c, &text) || text.len == 0)
        return;
    if (shell_parse(buf_str(&text), text.len, &l, NULL))
        abort();
    if (l.n_commands != 1 || l.commands[0].n_words != c->n_words || l.commands[0].assigns ||
        l.commands[0].n_redirects)
        abort();
    for (size_t i = 0; i < c->n_words; i++)
        if (strcmp(l.commands[0].words[i].text, c->words[i].text) ||
            !shell_word_is_literal(&l.commands[0].words[i]))
            abort();
}

static enum rule_verdict check(const struct rules *r, const char *text, size_t n)
{
    char why[ERR_MSG_BYTES];
    json_auto_t *a = json_pack("{s:o}", "command", json_stringn_nocheck(text, n));
    const struct rule_call call = {"run", a, "/tmp", NULL};
    return rules_check(&r, 1, &call, why);
}

static void hold_rules_against(const char *text, size_t n)
{
    struct rules *r = rules_new();
    AUTO(buf) struct buf more = BUF_INIT(2 * SHELL_MAX_BYTES);
    if (!r || rules_add(r, "allow run a *; run b 'c d'", NULL) ||
        rules_add(r, "deny run z *", NULL))
        abort();
    enum rule_verdict v = check(r, text, n);
    if (buf_add(&more, text, n, NULL) || buf_add_str(&more, "\nz 1", NULL))
        abort();
    enum rule_verdict with = check(r, buf_str(&more), more.len);
    if (v == RULE_ALLOW && with == RULE_ALLOW)
        abort();
    rules_free(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    AUTO(shell_line) struct shell_line l = {0};
    struct error e = {0};
    if (size > SHELL_MAX_BYTES - 16)
        return 0;
    hold_rules_against(text, size);
    if (shell_parse(text, size, &l, &e)) {
        if (!e.msg[0])
            abort();
        return 0;
    }
    for (size_t i = 0; i < l.n_commands; i++)
        read_again(&l.commands[i]);
    return 0;
}
