/* Sources: bash(1), "SHELL GRAMMAR", "QUOTING", "EXPANSION" and "REDIRECTION"; what the manual
 * leaves open was tried with bash 5.2 (tests/tools/test_shell.c compares). */
#include "tools/shell.h"

#include <stdint.h>
#include <string.h>

#include "base/buf.h"

struct here_doc {
    const char *delimiter;
    bool quoted, strips_tabs;
};

#define MAX_HERE_DOCS 16

struct reader {
    const char *text;
    size_t n, at;
    struct shell_line *line;
    struct buf word; /* of the word being read */
    size_t cap_commands, n_words_total;
    struct here_doc here[MAX_HERE_DOCS]; /* bodies begin behind the next newline */
    size_t n_here;
    unsigned depth;
    struct error *e;
};

static enum err refuse(const struct reader *r, const char *what)
{
    return err_set(r->e, ERR_UNSUPPORTED, "byte %zu of the command: %s", r->at + 1, what);
}

/* The byte `ahead` of the current one; 0 behind the end (a NUL byte inside was refused). */
static char peek(const struct reader *r, size_t ahead)
{
    return r->at + ahead < r->n ? r->text[r->at + ahead] : '\0';
}

static bool starts_with(const struct reader *r, const char *s)
{
    size_t n = strlen(s);
    return r->n - r->at >= n && memcmp(r->text + r->at, s, n) == 0;
}

static bool is_end_of_word(char c)
{
    return c == '\0' || strchr(" \t\n|&;()<>", c) != NULL;
}

static bool is_name_byte(char c, bool first)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (!first && c >= '0' && c <= '9');
}

/* ---- white space, comments, here-documents ---- */

/* The body of one here-document, from the beginning of a line. */
static enum err skip_body(struct reader *r, const struct here_doc *h)
{
    size_t n = strlen(h->delimiter);

    while (r->at < r->n) {
        const char *start = r->text + r->at;
        const char *end = memchr(start, '\n', r->n - r->at);
        size_t len = end ? (size_t)(end - start) : r->n - r->at;
        r->at += len + (end != NULL);
        const char *s = start;
        while (h->strips_tabs && s < start + len && *s == '\t')
            s++;
        if ((size_t)(start + len - s) == n && memcmp(s, h->delimiter, n) == 0)
            return OK;
        /* Expansions in it run commands, and a backslash can hide its end. */
        for (size_t i = 0; !h->quoted && i < len; i++)
            if (strchr("$`\\", start[i]))
                return refuse(r, "a here-document that is expanded");
    }
    return refuse(r, "a here-document without an end");
}

static enum err skip_newline(struct reader *r)
{
    r->at++;
    for (size_t i = 0; i < r->n_here; i++) {
        enum err rc = skip_body(r, &r->here[i]);
        if (rc)
            return rc;
    }
    r->n_here = 0;
    return OK;
}

/* Whether two lines are joined here, between words. bash joins lines before it looks for
 * words, so that in any other place the joint may make a substitution, an operator or a name
 * out of two harmless halves: those are refused where words are read. */
static bool is_joint(const struct reader *r)
{
    bool between = r->at == 0 || strchr(" \t\n", r->text[r->at - 1]);
    return between && peek(r, 0) == '\\' && peek(r, 1) == '\n';
}

/* Blanks, joined lines and a comment: up to something that means something. */
static void skip_blanks(struct reader *r)
{
    for (;;) {
        if (peek(r, 0) == ' ' || peek(r, 0) == '\t')
            r->at++;
        else if (is_joint(r))
            r->at += 2;
        else
            break;
    }
    if (peek(r, 0) == '#')
        while (r->at < r->n && peek(r, 0) != '\n')
            r->at++;
}

static enum err skip_newlines(struct reader *r)
{
    skip_blanks(r);
    while (peek(r, 0) == '\n') {
        enum err rc = skip_newline(r);
        if (rc)
            return rc;
        skip_blanks(r);
    }
    return OK;
}

/* ---- words ---- */

static enum err add_byte(struct reader *r, char c)
{
    return buf_add_byte(&r->word, (uint8_t)c, r->e);
}

/* At a `$`: a parameter by name marks the word, a lone `$` is itself, the rest is refused. */
static enum err read_dollar(struct reader *r, bool quoted, unsigned *marks)
{
    char c = peek(r, 1);

    if (c == '(' || c == '{' || c == '[')
        return refuse(r, c == '(' ? "a substitution" : "an expansion that is not read");
    if (!quoted && (c == '\'' || c == '"'))
        return refuse(r, "quotes of the form $'' or $\"\"");
    r->at++;
    if (!is_name_byte(c, false) && !(c && strchr("@*#?-$!", c)))
        return add_byte(r, '$');
    *marks |= SHELL_EXPANDS;
    r->at++;
    while (is_name_byte(c, true) && is_name_byte(peek(r, 0), false))
        r->at++;
    return OK;
}

static enum err read_single_quoted(struct reader *r)
{
    const char *start = r->text + r->at + 1;
    const char *end = r->at < r->n ? memchr(start, '\'', r->n - r->at - 1) : NULL;

    if (!end)
        return refuse(r, "a quote without an end");
    r->at += (size_t)(end - start) + 2;
    return buf_add(&r->word, start, (size_t)(end - start), r->e);
}

static enum err read_double_quoted(struct reader *r, unsigned *marks)
{
    enum err rc = OK;

    r->at++;
    while (!rc && peek(r, 0) != '"') {
        char c = peek(r, 0), next = peek(r, 1);
        if (c == '\0')
            return refuse(r, "a quote without an end");
        if (c == '`')
            return refuse(r, "a substitution");
        if (c == '\\' && next == '\n')
            return refuse(r, "lines that are joined inside a word");
        if (c == '$') {
            rc = read_dollar(r, true, marks);
        } else if (c == '\\' && next && strchr("$`\"\\", next)) {
            r->at += 2;
            rc = add_byte(r, next);
        } else {
            r->at++;
            rc = add_byte(r, c);
        }
    }
    r->at++;
    return rc;
}

static enum err read_backslash(struct reader *r, unsigned *marks)
{
    char c = peek(r, 1);

    if (c == '\0')
        return refuse(r, "a backslash at the end");
    if (c == '\n')
        return refuse(r, "lines that are joined inside a word");
    r->at += 2;
    *marks |= SHELL_QUOTED;
    return add_byte(r, c);
}

/* Marks that a byte without quotes gives its word. `first`: the word begins with it; `before`
 * is the byte in front of it. */
static unsigned marks_of(char c, char next, bool first, char before)
{
    if (c == '*' || c == '?' || c == '[')
        return SHELL_GLOB;
    /* {} is itself, and so is a brace that stands alone. */
    if (c == '{' && next != '}' && !(first && is_end_of_word(next)))
        return SHELL_EXPANDS;
    if (c == '~' && (first || before == '=' || before == ':'))
        return SHELL_EXPANDS;
    return 0;
}

/* One piece of a word: a quoted part, an expansion, or a byte. */
static enum err read_piece(struct reader *r, size_t start, unsigned *marks)
{
    char c = peek(r, 0);

    switch (c) {
    case '\'':
        *marks |= SHELL_QUOTED;
        return read_single_quoted(r);
    case '"':
        *marks |= SHELL_QUOTED;
        return read_double_quoted(r, marks);
    case '\\':
        return read_backslash(r, marks);
    case '`':
        return refuse(r, "a substitution");
    case '$':
        return read_dollar(r, false, marks);
    default:
        *marks |= marks_of(c, peek(r, 1), r->at == start, r->at > 0 ? r->text[r->at - 1] : 0);
        r->at++;
        return add_byte(r, c);
    }
}

static enum err keep_word(struct reader *r, unsigned marks, struct shell_word *out)
{
    if (++r->n_words_total > SHELL_MAX_WORDS)
        return err_set(r->e, ERR_LIMIT, "more than %d words", SHELL_MAX_WORDS);
    if (marks & SHELL_GLOB && r->word.len == 1 && r->word.data[0] == '[')
        marks &= ~(unsigned)SHELL_GLOB; /* the command called [ */
    out->text = arena_text(&r->line->arena, buf_str(&r->word), r->word.len, r->e);
    out->marks = marks;
    return out->text ? OK : ERR_NOMEM;
}

/* The word that begins here (there is one). */
static enum err read_word(struct reader *r, struct shell_word *out)
{
    size_t start = r->at;
    unsigned marks = 0;
    enum err rc = OK;

    buf_clear(&r->word);
    while (!rc && !is_end_of_word(peek(r, 0)))
        rc = read_piece(r, start, &marks);
    return rc ? rc : keep_word(r, marks, out);
}

/* ---- simple commands ---- */

/* Arrays of a command grow by doubling; the old ones stay in the arena. */
static void *grow(struct reader *r, void *list, size_t n, size_t bytes)
{
    if (n & (n - 1) || (n == 0 && list))
        return list;
    void *more = arena_array(&r->line->arena, n ? 2 * n : 1, bytes, r->e);
    if (more && n)
        memcpy(more, list, n * bytes);
    return more;
}

static enum err add_word(struct reader *r, struct shell_command *c, const struct shell_word *w)
{
    struct shell_word *list = grow(r, c->words, c->n_words, sizeof *list);
    if (!list)
        return ERR_NOMEM;
    c->words = list;
    list[c->n_words++] = *w;
    return OK;
}

static enum err add_redirect(struct reader *r, struct shell_command *c,
                             enum shell_direction direction, const struct shell_word *target)
{
    struct shell_redirect *list = grow(r, c->redirects, c->n_redirects, sizeof *list);
    if (!list)
        return ERR_NOMEM;
    c->redirects = list;
    list[c->n_redirects++] = (struct shell_redirect){direction, *target};
    return OK;
}

static enum err add_here(struct reader *r, const struct shell_word *w, bool strips_tabs)
{
    if (r->n_here == MAX_HERE_DOCS)
        return err_set(r->e, ERR_LIMIT, "more than %d here-documents", MAX_HERE_DOCS);
    if (w->marks & (SHELL_EXPANDS | SHELL_GLOB) || strchr(w->text, '\n'))
        return refuse(r, "a here-document with an unusual end");
    r->here[r->n_here++] = (struct here_doc){w->text, w->marks & SHELL_QUOTED, strips_tabs};
    return OK;
}

enum redirect_kind { TO_FILE, FROM_FILE, DUP_OUT, DUP_IN, HERE_DOC, HERE_TABS, HERE_STRING };

static const struct {
    const char *spelling;
    enum redirect_kind kind;
} operators[] = {/* the longer before its beginning */
                 {"&>>", TO_FILE}, {"&>", TO_FILE}, {"<<<", HERE_STRING}, {"<<-", HERE_TABS},
                 {"<<", HERE_DOC}, {"<&", DUP_IN},  {"<>", TO_FILE},      {"<", FROM_FILE},
                 {">>", TO_FILE},  {">&", DUP_OUT}, {">|", TO_FILE},      {">", TO_FILE}};
enum { N_OPERATORS = sizeof operators / sizeof operators[0] };

/* The redirection that begins here, with the number in front of it; -1: none does. */
static int find_redirect(const struct reader *r, size_t *n_bytes)
{
    struct reader look = *r;

    while (peek(&look, 0) >= '0' && peek(&look, 0) <= '9')
        look.at++;
    for (int i = 0; i < N_OPERATORS; i++)
        if (starts_with(&look, operators[i].spelling) &&
            (look.at == r->at || operators[i].spelling[0] != '&')) {
            *n_bytes = look.at - r->at + strlen(operators[i].spelling);
            return i;
        }
    return -1;
}

/* "2", "-" and "2-" behind >& and <&. */
static bool is_descriptor(const struct shell_word *w)
{
    size_t n = strspn(w->text, "0123456789");
    return !w->marks && w->text[0] && (w->text[n] == '\0' || strcmp(w->text + n, "-") == 0);
}

static enum err read_redirect(struct reader *r, int op, size_t n_bytes, struct shell_command *c)
{
    enum redirect_kind kind = operators[op].kind;
    struct shell_word target;
    enum err rc;

    r->at += n_bytes;
    if ((kind == TO_FILE || kind == FROM_FILE) && peek(r, 0) == '(')
        return refuse(r, "a process substitution");
    skip_blanks(r);
    if (is_end_of_word(peek(r, 0)))
        return refuse(r, "a redirection to nothing");
    if ((rc = read_word(r, &target)))
        return rc;
    switch (kind) {
    case TO_FILE:
        return add_redirect(r, c, SHELL_WRITES, &target);
    case FROM_FILE:
        return add_redirect(r, c, SHELL_READS, &target);
    case DUP_OUT:
        return is_descriptor(&target) ? OK : add_redirect(r, c, SHELL_WRITES, &target);
    case DUP_IN:
        return is_descriptor(&target) ? OK : refuse(r, "a descriptor that is not a number");
    case HERE_DOC:
    case HERE_TABS:
        return add_here(r, &target, kind == HERE_TABS);
    case HERE_STRING:
        return OK;
    }
    return OK;
}

/* Whether NAME=, NAME+= or NAME[...]= begins here, without quotes. */
static bool is_assignment(const struct reader *r)
{
    struct reader look = *r;

    if (!is_name_byte(peek(&look, 0), true))
        return false;
    while (is_name_byte(peek(&look, 0), false))
        look.at++;
    if (peek(&look, 0) == '[')
        return true; /* or a glob: neither is allowed by a rule */
    if (peek(&look, 0) == '+')
        look.at++;
    return peek(&look, 0) == '=';
}

/* Words that begin a structure where a command is expected. */
static bool is_reserved(const struct shell_word *w)
{
    static const char *const reserved[] = {
        "if",     "then",  "else",  "elif", "fi",   "case", "esac",     "for",
        "select", "while", "until", "do",   "done", "in",   "function", "time",
        "coproc", "[[",    "]]",    "{",    "}",    "!"};

    for (size_t i = 0; !(w->marks & SHELL_QUOTED) && i < sizeof reserved / sizeof *reserved;
         i++)
        if (strcmp(w->text, reserved[i]) == 0)
            return true;
    return false;
}

static enum err new_command(struct reader *r, struct shell_command **out)
{
    struct shell_line *l = r->line;

    if (l->n_commands == SHELL_MAX_COMMANDS)
        return err_set(r->e, ERR_LIMIT, "more than %d commands", SHELL_MAX_COMMANDS);
    struct shell_command *list = grow(r, l->commands, l->n_commands, sizeof *list);
    if (!list)
        return ERR_NOMEM;
    l->commands = list;
    list[l->n_commands] = (struct shell_command){0};
    *out = &list[l->n_commands++];
    return OK;
}

static enum err read_simple(struct reader *r)
{
    struct shell_command *c;
    size_t n_bytes, n_parts = 0;
    enum err rc = new_command(r, &c);

    for (; !rc; n_parts++) {
        struct shell_word w;
        skip_blanks(r);
        int op = find_redirect(r, &n_bytes);
        if (op >= 0) {
            rc = read_redirect(r, op, n_bytes, c);
            continue;
        }
        if (peek(r, 0) == '(')
            return refuse(r, "a function or an array");
        if (is_end_of_word(peek(r, 0)))
            return n_parts ? OK : refuse(r, "a command is missing");
        bool assigns = c->n_words == 0 && is_assignment(r);
        if ((rc = read_word(r, &w)))
            return rc;
        if (c->n_words == 0 && !assigns && is_reserved(&w))
            return refuse(r, "a control structure");
        c->assigns = c->assigns || assigns;
        rc = assigns ? OK : add_word(r, c, &w);
    }
    return rc;
}

/* ---- groups and lists ---- */

static enum err read_list(struct reader *r, char end);

/* Redirections behind a group: a command without words. */
static enum err read_group_redirects(struct reader *r)
{
    struct shell_command *c = NULL;
    size_t n_bytes;
    enum err rc = OK;

    for (;;) {
        skip_blanks(r);
        int op = find_redirect(r, &n_bytes);
        if (op < 0)
            break;
        if (!c && (rc = new_command(r, &c)))
            return rc;
        if ((rc = read_redirect(r, op, n_bytes, c)))
            return rc;
    }
    return is_end_of_word(peek(r, 0)) ? OK : refuse(r, "a word behind a group");
}

static enum err read_group(struct reader *r, char end)
{
    if (++r->depth > SHELL_MAX_DEPTH)
        return err_set(r->e, ERR_LIMIT, "groups inside each other: more than %d",
                       SHELL_MAX_DEPTH);
    r->at++;
    if (end == ')' && peek(r, 0) == '(')
        return refuse(r, "arithmetic");
    enum err rc = read_list(r, end);
    if (rc)
        return rc;
    r->at++;
    r->depth--;
    return read_group_redirects(r);
}

static bool is_lone(const struct reader *r, char c)
{
    return peek(r, 0) == c && is_end_of_word(peek(r, 1));
}

static enum err read_command(struct reader *r)
{
    skip_blanks(r);
    while (is_lone(r, '!')) {
        r->at++;
        skip_blanks(r);
    }
    if (peek(r, 0) == '(')
        return read_group(r, ')');
    if (is_lone(r, '{'))
        return read_group(r, '}');
    return read_simple(r);
}

/* Commands joined by |, |&, && and ||. */
static enum err read_and_or(struct reader *r)
{
    for (;;) {
        enum err rc = read_command(r);
        if (rc)
            return rc;
        skip_blanks(r);
        if (starts_with(r, "&&") || starts_with(r, "||") || starts_with(r, "|&"))
            r->at += 2;
        else if (peek(r, 0) == '|')
            r->at++;
        else
            return OK;
        if ((rc = skip_newlines(r)))
            return rc;
    }
}

static bool is_at_end(const struct reader *r, char end)
{
    return end == '}' ? is_lone(r, '}') : peek(r, 0) == end;
}

/* Up to `end` (0: of the text), which is not consumed. */
static enum err read_list(struct reader *r, char end)
{
    bool is_empty = true;
    enum err rc = skip_newlines(r);

    while (!rc && !is_at_end(r, end)) {
        if (r->at == r->n)
            return refuse(r, "a group without an end");
        if ((rc = read_and_or(r)))
            return rc;
        is_empty = false;
        skip_blanks(r);
        char c = peek(r, 0);
        if (c == ';' && (peek(r, 1) == ';' || peek(r, 1) == '&'))
            return refuse(r, "part of a case");
        if (c == ';' || c == '&')
            r->at++;
        else if (c != '\n' && !(c == end && end != '}'))
            return refuse(r, "something that is not read");
        rc = skip_newlines(r);
    }
    if (!rc && is_empty && end)
        return refuse(r, "an empty group");
    return rc;
}

void shell_line_fini(struct shell_line *l)
{
    arena_fini(&l->arena);
    *l = (struct shell_line){0};
}

enum err shell_parse(const char *text, size_t n, struct shell_line *out, struct error *e)
{
    struct shell_line line = {0};
    struct reader r = {.text = text, .n = n, .line = &line, .e = e};
    enum err rc = OK;

    if (n > SHELL_MAX_BYTES)
        return err_set(e, ERR_LIMIT, "a command of %zu bytes, at most %zu are read", n,
                       SHELL_MAX_BYTES);
    if (n && memchr(text, '\0', n))
        return err_set(e, ERR_UNSUPPORTED, "a NUL byte");
    arena_init(&line.arena, 16 * SHELL_MAX_BYTES);
    buf_init(&r.word, SHELL_MAX_BYTES + 1);
    rc = read_list(&r, '\0');
    if (!rc && r.n_here)
        rc = refuse(&r, "a here-document without a body");
    buf_fini(&r.word);
    if (rc) {
        shell_line_fini(&line);
        return rc;
    }
    *out = line;
    return OK;
}
