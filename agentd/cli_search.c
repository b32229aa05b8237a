/* agentctl search and diff: what was said where, and where two sessions part. */
#include <stdlib.h>
#include <string.h>

#include "agentd/cli_text.h"
#include "agentd/cli_verbs.h"

/* ---- search --------------------------------------------------------------------- */

struct search_options {
    struct cli_options cli; /* first */
    int64_t limit;
};

static const struct option search_table[] = {
    {"limit", 'l', OPTION_INT, offsetof(struct search_options, limit), "N", .min = 1,
     .max = 1000, .help = "at most this many (50)"},
};

const struct command cli_search_command = {"search",
                                           "QUERY [NAME]",
                                           "find words in what was said, in one session or all",
                                           OPTION_TABLE(search_table),
                                           CLI_OPTION_TABLE,
                                           1,
                                           2};

static void print_hits(const struct cli *x, const json_t *answer)
{
    json_t *h;
    size_t i;
    json_array_foreach(json_object_get(answer, "hits"), i, h) {
        printf("%s@%lld  %s  ", cli_str(h, "name"), (long long)cli_int(h, "seq"),
               cli_str(h, "kind"));
        cli_text_print(stdout, cli_str(h, "snippet"));
        fputs("\n", stdout);
    }
    if (json_is_true(json_object_get(answer, "more")))
        cli_note(x, "there is more: --limit shows it");
}

static int search_with(struct cli *x, const struct search_options *o, const char *query,
                       const char *name)
{
    json_auto_t *answer = NULL;
    char id[CLI_ID_CAP] = "";
    struct error e;
    enum err rc = name ? cli_resolve(x, name, id, NULL, &e) : OK;
    if (!rc) {
        json_t *params = json_pack("{s:s, s:s*}", "query", query, "id", name ? id : NULL);
        if (o->limit)
            json_object_set_new(params, "limit", json_integer(o->limit));
        rc = cli_call(x, "search", params, &answer, &e);
    }
    if (rc)
        return cli_fail(x, rc, &e);
    if (o->cli.json)
        cli_json_print(stdout, answer, true);
    else if (!o->cli.jsonl)
        print_hits(x, answer);
    json_t *h;
    size_t i;
    if (o->cli.jsonl)
        json_array_foreach(json_object_get(answer, "hits"), i, h)
            cli_json_print(stdout, h, false);
    return json_array_size(json_object_get(answer, "hits")) ? EXIT_DONE : EXIT_NOTFOUND;
}

int cli_search(int argc, char **argv)
{
    struct search_options o = {0};
    struct options seen;
    struct cli x;
    int code = cli_parse(&cli_search_command, argc, argv, &o, &seen);
    if (code == CLI_GO_ON)
        code = cli_open(&x, &cli_search_command, &o.cli, NULL, NULL);
    if (code != CLI_GO_ON)
        return code;
    code = search_with(&x, &o, seen.args[0], seen.n_args > 1 ? seen.args[1] : NULL);
    cli_close(&x);
    return code;
}

/* ---- diff ----------------------------------------------------------------------- */

const struct command cli_diff_command = {"diff",
                                         "A B",
                                         "where two sessions part, and what that costs",
                                         OPTION_TABLE_EMPTY,
                                         CLI_OPTION_TABLE,
                                         2,
                                         2};

#define SHOWN_LINES 6
#define SHOWN_BYTES 600

static void print_item(char mark, const json_t *side, const json_t *item)
{
    printf("%c %s", mark, cli_str(side, "name"));
    if (!json_is_object(item)) {
        fputs(": no more items\n", stdout);
        return;
    }
    printf("@%lld  %s  ", (long long)cli_int(item, "seq"), cli_str(item, "kind"));
    const char *text = cli_str(item, "text");
    if (*cli_str(item, "name")) {
        cli_text_print(stdout, cli_str(item, "name"));
        fputs(" ", stdout);
    }
    cli_text_print_head(stdout, *text ? text : cli_str(item, "arguments"), SHOWN_LINES,
                        SHOWN_BYTES, "    ");
}

static void print_tokens(char mark, const json_t *side)
{
    const json_t *token = json_object_get(side, "token");
    char n[CLI_FIGURE_BYTES];
    printf("%c %s: ", mark, cli_str(side, "name"));
    if (json_is_null(token)) {
        fputs("ends here\n", stdout);
        return;
    }
    printf("token %lld, %s tokens to compute from here\n", (long long)json_integer_value(token),
           cli_thousands(cli_int(side, "recompute"), n));
    fputs("    ", stdout);
    cli_text_print_head(stdout, cli_str(side, "text"), SHOWN_LINES, SHOWN_BYTES, "    ");
}

static void print_diff(const json_t *d)
{
    const json_t *a = json_object_get(d, "a"), *b = json_object_get(d, "b"),
                 *item = json_object_get(d, "item");
    char n[CLI_FIGURE_BYTES];
    cli_thousands(cli_int(d, "shared"), n);
    if (json_is_true(json_object_get(d, "equal"))) {
        printf("the same %s tokens\n", n);
    } else {
        printf("%s tokens are the same; the last of them\n    ", n);
        cli_text_print_head(stdout, cli_str(d, "before"), SHOWN_LINES, SHOWN_BYTES, "    ");
        print_tokens('-', a);
        print_tokens('+', b);
    }
    if (item) {
        printf("first item that differs: number %lld\n", (long long)cli_int(item, "index") + 1);
        print_item('-', a, json_object_get(item, "a"));
        print_item('+', b, json_object_get(item, "b"));
    }
}

static int diff_with(struct cli *x, const struct cli_options *o, const char *const *names)
{
    json_auto_t *answer = NULL;
    char a[CLI_ID_CAP], b[CLI_ID_CAP];
    struct error e;
    enum err rc = cli_resolve(x, names[0], a, NULL, &e);
    if (!rc)
        rc = cli_resolve(x, names[1], b, NULL, &e);
    if (!rc)
        rc = cli_call(x, "session/diff", json_pack("{s:s, s:s}", "id", a, "other", b), &answer,
                      &e);
    if (rc)
        return cli_fail(x, rc, &e);
    if (o->json || o->jsonl)
        cli_json_print(stdout, answer, o->json);
    else
        print_diff(answer);
    /* As diff(1): 1 says that there is a difference. */
    bool equal = json_is_true(json_object_get(answer, "equal"));
    return equal && !json_object_get(answer, "item") ? EXIT_DONE : EXIT_FAILED;
}

int cli_diff(int argc, char **argv)
{
    struct cli_options o = {0};
    struct options seen;
    struct cli x;
    int code = cli_parse(&cli_diff_command, argc, argv, &o, &seen);
    if (code == CLI_GO_ON)
        code = cli_open(&x, &cli_diff_command, &o, NULL, NULL);
    if (code != CLI_GO_ON)
        return code;
    code = diff_with(&x, &o, seen.args);
    cli_close(&x);
    return code;
}
