/* grep: lines that match, in files below a folder. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <regex.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/auto.h"
#include "tools/body.h"
#include "tools/confined.h"

#define WINDOW_BYTES (1 << 20) /* a longer line is searched in pieces */
#define SHOWN_BYTES 400        /* of a matching line */
#define MAX_FILES 200000
#define MAX_DEPTH 64
#define MAX_NESTING 64
#define MAX_STATES 20000
#define MAX_MEMORY_BYTES (1ULL << 30) /* a hostile expression can ask for any amount */

struct grep {
    bool fixed, ignore_case;
    regex_t regex;
    char *needle; /* fixed: the text, in lower case if ignore_case */
    size_t needle_len;
    const char *include;
    char *window, *folded;
    long long n_left; /* lines that may still be shown */
    size_t n_files, n_hits;
    bool stopped; /* by n_left or MAX_FILES */
};

static void fold(char *dst, const char *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = (char)tolower((unsigned char)src[i]);
}

static bool matches(struct grep *g, const char *line, size_t n)
{
    if (!g->fixed) {
        regmatch_t m = {.rm_so = 0, .rm_eo = (regoff_t)n};
        return regexec(&g->regex, line, 1, &m, REG_STARTEND) == 0;
    }
    if (g->ignore_case) {
        fold(g->folded, line, n);
        line = g->folded;
    }
    return memmem(line, n, g->needle, g->needle_len) != NULL;
}

static void show(struct grep *g, const char *path, size_t number, const char *line, size_t n)
{
    size_t shown = n > SHOWN_BYTES ? SHOWN_BYTES : n;
    while (shown < n && shown > 0 && ((unsigned char)line[shown] & 0xC0) == 0x80)
        shown--;
    printf("%s:%zu:", path, number);
    fwrite(line, 1, shown, stdout);
    if (shown < n)
        printf(" [%zu bytes more]", n - shown);
    putchar('\n');
    g->n_hits++;
    if (--g->n_left == 0)
        g->stopped = true;
}

/* Searches the whole lines at the start of the window; returns the bytes that were used up. */
static size_t search_lines(struct grep *g, const char *path, size_t have, bool at_end,
                           size_t *number)
{
    size_t used = 0;
    while (used < have && !g->stopped) {
        const char *line = g->window + used;
        const char *newline = memchr(line, '\n', have - used);
        if (!newline && !at_end && have - used < WINDOW_BYTES)
            break;
        size_t n = newline ? (size_t)(newline - line) : have - used;
        if (matches(g, line, n))
            show(g, path, *number, line, n);
        used += n + (newline != NULL);
        *number += newline != NULL;
    }
    return used;
}

static void search_file(struct grep *g, int fd, const char *path)
{
    size_t have = 0, number = 1;
    bool first = true;
    while (!g->stopped) {
        ssize_t n = read(fd, g->window + have, WINDOW_BYTES - have);
        if (n < 0)
            return;
        have += (size_t)n;
        if (first && memchr(g->window, 0, have < 8192 ? have : 8192))
            return; /* binary */
        first = false;
        size_t used = search_lines(g, path, have, n == 0, &number);
        memmove(g->window, g->window + used, have - used);
        have -= used;
        if (n == 0)
            return;
    }
}

static bool is_included(const struct grep *g, const char *path)
{
    if (!g->include)
        return true;
    const char *slash = strrchr(path, '/');
    bool whole = strchr(g->include, '/') != NULL;
    return fnmatch(g->include, whole || !slash ? path : slash + 1, 0) == 0;
}

static void search_folder(struct grep *g, int fd, const char *prefix, int depth);

static void search_entry(struct grep *g, int parent, const char *name, const char *path,
                         int depth)
{
    struct stat st;
    if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    bool folder = S_ISDIR(st.st_mode);
    if (folder ? depth == MAX_DEPTH || !strcmp(name, ".git")
               : !S_ISREG(st.st_mode) || !is_included(g, path))
        return;
    AUTO_FD int fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (folder)
        search_folder(g, fd, path, depth + 1);
    else if (++g->n_files > MAX_FILES)
        g->stopped = true;
    else
        search_file(g, fd, path);
}

static int not_dots(const struct dirent *d)
{
    return strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0;
}

static void search_folder(struct grep *g, int fd, const char *prefix, int depth)
{
    struct dirent **list;
    char path[4608];
    int n = scandirat(fd, ".", &list, not_dots, alphasort);
    for (int i = 0; i < n; i++) {
        int len =
            snprintf(path, sizeof path, "%s%s%s", prefix, *prefix ? "/" : "", list[i]->d_name);
        if (!g->stopped && len > 0 && (size_t)len < sizeof path)
            search_entry(g, fd, list[i]->d_name, path, depth);
        free(list[i]);
    }
    if (n >= 0)
        free(list);
}

/* ---- the pattern ---- */

/* Moves past a bracket expression; p is behind its '['. */
static const char *skip_bracket(const char *p)
{
    p += *p == '^';
    p += *p == ']';
    while (*p && *p != ']')
        p++;
    return *p ? p + 1 : p;
}

/* Reads the larger number of "{m,n}"; p is behind the '{'. */
static double repetitions(const char **p)
{
    double most = 1;
    while (**p && **p != '}') {
        char *end;
        double n = (double)strtoul(*p, &end, 10);
        *p = end > *p ? end : *p + 1;
        most = n > most ? n : most;
    }
    return most;
}

/* About how many states the compiled expression has: regcomp() unrolls {m,n}, and nested ones
 * multiply. -1 when groups are nested too deep. */
static double count_states(const char *p)
{
    double sums[MAX_NESTING] = {0}, last = 0;
    size_t depth = 0;
    while (*p) {
        char c = *p++;
        if (c == '(') {
            if (++depth == MAX_NESTING)
                return -1;
            sums[depth] = last = 0;
        } else if (c == ')' && depth > 0) {
            last = sums[depth--] + 1;
            sums[depth] += last;
        } else if (c == '{') {
            double n = repetitions(&p);
            sums[depth] += last * (n - 1);
            last *= n;
        } else if (!strchr("*+?|^$", c)) {
            if (c == '[')
                p = skip_bracket(p);
            else if (c == '\\' && *p)
                p++;
            last = 1;
            sums[depth] += last;
        }
    }
    for (; depth > 0; depth--)
        sums[depth - 1] += sums[depth];
    return sums[0];
}

static int compile(struct grep *g, const char *pattern)
{
    char why[128];
    if (g->fixed) {
        g->needle_len = strlen(pattern);
        g->needle = strdup(pattern);
        if (g->needle && g->ignore_case)
            fold(g->needle, pattern, g->needle_len);
        return g->needle ? 0 : body_fail("no memory");
    }
    double n_states = count_states(pattern);
    if (n_states < 0 || n_states > MAX_STATES)
        return body_fail("pattern: too large: nested too deep, or too many repetitions");
    int rc = regcomp(&g->regex, pattern, REG_EXTENDED | (g->ignore_case ? REG_ICASE : 0));
    if (rc == 0)
        return 0;
    regerror(rc, &g->regex, why, sizeof why);
    return body_fail("pattern: %s", why);
}

static void limit_memory(void)
{
#ifndef __SANITIZE_ADDRESS__ /* reserves terabytes of address space */
    setrlimit(RLIMIT_AS, &(struct rlimit){MAX_MEMORY_BYTES, MAX_MEMORY_BYTES});
#endif
}

/* The path to print in front of what is found below the starting point. */
static const char *shown_prefix(const char *path)
{
    return strcmp(path, ".") != 0 && strcmp(path, "./") != 0 ? path : "";
}

int body_grep(const struct body *b)
{
    struct error e;
    struct stat st;
    struct confined c = {b->launch->workspace, b->launch->spill_folder};
    const char *path = body_string(b, "path", ".");
    struct grep g = {.fixed = body_flag(b, "fixed"),
                     .ignore_case = body_flag(b, "ignore_case"),
                     .include = body_string(b, "include", NULL),
                     .n_left = body_integer(b, "max_matches", 200)};
    AUTO_FD int fd = -1;
    limit_memory();
    if (confined_open(&c, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, &fd, &e))
        return body_fail("%s", e.msg);
    if (fstat(fd, &st) != 0 || !(S_ISDIR(st.st_mode) || S_ISREG(st.st_mode)))
        return body_fail("%s: neither a file nor a folder", path);
    g.window = malloc(WINDOW_BYTES);
    g.folded = malloc(WINDOW_BYTES);
    int rc = g.window && g.folded ? compile(&g, body_string(b, "pattern", ""))
                                  : body_fail("no memory");
    if (rc == 0 && S_ISDIR(st.st_mode))
        search_folder(&g, fd, shown_prefix(path), 0);
    else if (rc == 0)
        search_file(&g, fd, path);
    if (rc == 0 && g.n_hits == 0)
        printf("[no match in %zu files]\n", S_ISREG(st.st_mode) ? 1 : g.n_files);
    if (rc == 0 && g.stopped)
        printf("[stopped after %zu lines in %zu files]\n", g.n_hits, g.n_files);
    free(g.window);
    free(g.folded);
    return rc; /* the rest ends with the process */
}
