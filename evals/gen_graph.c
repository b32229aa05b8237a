/* graphwalks-synth: a shuffled list of directed edges; questions ask for the nodes at a depth
 * of a breadth-first search, or for the parents of a node. A node's name is the first ten
 * hexadecimal digits of the MD5 of its decimal number. */
#include <stdlib.h>
#include <string.h>

#include "base/encode.h"
#include "base/options.h"
#include "evals/gen.h"
#include "evals/md5.h"

#define SUITE "graphwalks-synth"
#define TASK "walk"
#define NAME_CHARS 10
#define LINE_CHARS (2 * NAME_CHARS + 5) /* "a -> b\n" */
#define N_ANSWER 512
#define N_RESERVED 768 /* tokens for question and answer */
#define MAX_ANSWERS 20
#define MAX_DEPTH 3
#define MAX_TRIES 2000
#define DEGREE 3 /* edges for each node */

static const char heading[] =
    "The following lines are the edges of a directed graph, each written as FROM -> TO.\n\n";
static const char ending[] = " Your last line must be of this form and hold nothing else: "
                             "Final Answer: [node, node, ...]";

struct edge {
    uint32_t from, to;
};

struct graph {
    uint32_t n_nodes, n_edges;
    struct edge *edges; /* [n_edges] sorted once written, for out[] */
    uint32_t *out;      /* [n_nodes + 1] first edge of each node */
    uint32_t *depths;   /* [n_nodes] of the last search */
    uint32_t *queue;
};

static void graph_fini(struct graph *t)
{
    free(t->edges);
    free(t->out);
    free(t->depths);
    free(t->queue);
}

static void node_name(uint32_t node, char out[NAME_CHARS + 1])
{
    char text[16], hex[HEX_CHARS(MD5_BYTES)];
    uint8_t digest[MD5_BYTES];
    int n = snprintf(text, sizeof text, "%u", node);
    md5_short(text, (size_t)n, digest);
    hex_encode(digest, sizeof digest, hex);
    memcpy(out, hex, NAME_CHARS);
    out[NAME_CHARS] = 0;
}

static int compare_edges(const void *a, const void *b)
{
    const struct edge *x = a, *y = b;
    return x->from != y->from ? (x->from > y->from) - (x->from < y->from)
                              : (x->to > y->to) - (x->to < y->to);
}

/* As many edges as fit, drawn one after the other; the same one may be drawn twice, which does
 * not change the graph. */
static enum err write_edges(struct gen_text *g, struct graph *t, struct pyrandom *r,
                            struct error *e)
{
    AUTO(buf) struct buf line = BUF_INIT(256);
    bool fits = true;
    enum err rc = buf_add_str(&line, heading, e);
    if (!rc)
        rc = gen_text_add(g, &line, NULL, e);
    /* A line has at least one token for four characters. */
    const uint32_t cap = (uint32_t)(g->max_tokens / (LINE_CHARS / 4)) + 16;
    t->edges = calloc(cap, sizeof *t->edges);
    if (!t->edges)
        return err_set(e, ERR_NOMEM, "no memory for %u edges", cap);
    while (!rc && t->n_edges < cap) {
        struct edge edge = {pyrandom_below(r, t->n_nodes), pyrandom_below(r, t->n_nodes)};
        char from[NAME_CHARS + 1], to[NAME_CHARS + 1];
        if (edge.from == edge.to)
            continue;
        node_name(edge.from, from);
        node_name(edge.to, to);
        buf_clear(&line);
        if (!(rc = buf_printf(&line, e, "%s -> %s\n", from, to)))
            rc = gen_text_add(g, &line, &fits, e);
        if (!fits)
            break;
        t->edges[t->n_edges++] = edge;
    }
    return rc;
}

/* Sorts the edges and indexes them by their start. */
static enum err index_edges(struct graph *t, struct error *e)
{
    t->out = calloc(t->n_nodes + 1, sizeof *t->out);
    t->depths = calloc(t->n_nodes, sizeof *t->depths);
    t->queue = calloc(t->n_nodes, sizeof *t->queue);
    if (!t->out || !t->depths || !t->queue)
        return err_set(e, ERR_NOMEM, "no memory for %u nodes", t->n_nodes);
    qsort(t->edges, t->n_edges, sizeof *t->edges, compare_edges);
    for (uint32_t node = 0, i = 0; node <= t->n_nodes; node++) {
        while (i < t->n_edges && t->edges[i].from < node)
            i++;
        t->out[node] = i;
    }
    return OK;
}

/* Nodes at exactly this depth, at the end of t->queue. */
static uint32_t search(struct graph *t, uint32_t start, uint32_t depth)
{
    uint32_t head = 0, tail = 1, level = 0; /* queue[level, tail): of the depth being made */
    memset(t->depths, 0xff, t->n_nodes * sizeof *t->depths);
    t->queue[0] = start;
    t->depths[start] = 0;
    for (uint32_t d = 1; d <= depth; d++) {
        for (level = tail; head < level; head++) {
            uint32_t node = t->queue[head];
            for (uint32_t i = t->out[node]; i < t->out[node + 1]; i++) {
                uint32_t to = t->edges[i].to;
                if (t->depths[to] != UINT32_MAX)
                    continue;
                t->depths[to] = d;
                t->queue[tail++] = to;
            }
        }
    }
    memmove(t->queue, t->queue + level, (tail - level) * sizeof *t->queue);
    return tail - level;
}

static uint32_t parents(struct graph *t, uint32_t node)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_edges; i++)
        if (t->edges[i].to == node && (!n || t->queue[n - 1] != t->edges[i].from))
            t->queue[n++] = t->edges[i].from;
    return n;
}

/* Every second question is a search; one with 1..MAX_ANSWERS answers is looked for. */
static enum err ask(void *task, struct gen_context *x, uint32_t i, struct gen_question *q,
                    struct error *e)
{
    struct graph *t = task;
    struct pyrandom *r = &x->random;
    char name[NAME_CHARS + 1];
    uint32_t n = 0, node = 0, depth = 0;
    for (int k = 0; k < MAX_TRIES && (!n || n > MAX_ANSWERS); k++) {
        node = pyrandom_below(r, t->n_nodes);
        depth = i % 2 ? 0 : 1 + pyrandom_below(r, MAX_DEPTH);
        n = depth ? search(t, node, depth) : parents(t, node);
    }
    if (!n || n > MAX_ANSWERS)
        return err_set(e, ERR_LIMIT, "graph of %u edges: no question found", t->n_edges);
    node_name(node, name);
    enum err rc =
        depth
            ? buf_printf(&q->text, e,
                         "Which nodes does a breadth-first search from node %s first reach at "
                         "depth %u exactly?%s",
                         name, depth, ending)
            : buf_printf(&q->text, e, "Which nodes have an edge to node %s?%s", name, ending);
    for (uint32_t k = 0; k < n && !rc; k++) {
        node_name(t->queue[k], name);
        rc = wordlist_add(&q->answers, name, NAME_CHARS, e);
    }
    return rc ? rc : wordlist_sort_unique(&q->answers, e);
}

enum err graphwalks_generate(const struct suite_options *o, uint32_t context,
                             struct suite_writer *w, struct error *e)
{
    AUTO(graph) struct graph t = {.n_nodes = o->n_tokens / 16 / DEGREE};
    AUTO(gen_context) struct gen_context x;
    enum err rc = gen_context_begin(&x, SUITE, TASK, o, context, N_RESERVED, e);
    if (!rc)
        rc = write_edges(&x.g, &t, &x.random, e);
    if (!rc)
        rc = index_edges(&t, e);
    if (!rc)
        rc = gen_context_end(&x, w, e);
    return rc ? rc : gen_context_ask(&x, w, SUITE_SET_F1, N_ANSWER, ask, &t, e);
}

/* ---- the other way ------------------------------------------------------------------------
 */

/* The word behind `mark` in the question, at most cap - 1 bytes. */
static bool word_behind(const char *text, size_t n, const char *mark, char *out, size_t cap)
{
    const char *at = memmem(text, n, mark, strlen(mark));
    if (!at)
        return false;
    at += strlen(mark);
    size_t len = 0;
    while (at + len < text + n && len < cap - 1 && at[len] != ' ' && at[len] != '?')
        len++;
    memcpy(out, at, len);
    out[len] = 0;
    return len > 0;
}

static bool holds(const struct wordlist *l, const char *word, size_t n_word)
{
    for (uint32_t i = 0; i < l->n; i++) {
        size_t n;
        const char *w = wordlist_at(l, i, &n);
        if (n == n_word && !memcmp(w, word, n))
            return true;
    }
    return false;
}

/* Names of the lines' ends `to` whose start is in `from` and not seen yet; with backwards, the
 * other way round. Works on the text alone: no numbers, no index. */
static enum err step(const char *context, size_t n, const struct wordlist *from,
                     const struct wordlist *seen, bool backwards, struct wordlist *out,
                     struct error *e)
{
    enum err rc = OK;
    for (const char *p = context, *end = context + n; p < end && !rc;) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        const char *arrow = memmem(p, (size_t)((eol ? eol : end) - p), " -> ", 4);
        const char *stop = eol ? eol : end;
        if (arrow && !memchr(p, ' ', (size_t)(arrow - p)) && arrow > p) {
            const char *a = p, *b = arrow + 4;
            size_t n_a = (size_t)(arrow - p), n_b = (size_t)(stop - b);
            const char *key = backwards ? b : a, *got = backwards ? a : b;
            size_t n_key = backwards ? n_b : n_a, n_got = backwards ? n_a : n_b;
            if (holds(from, key, n_key) && !holds(seen, got, n_got) && !holds(out, got, n_got))
                rc = wordlist_add(out, got, n_got, e);
        }
        p = stop + 1;
    }
    return rc;
}

enum err graphwalks_solve(const char *context, size_t n_context, const char *question,
                          size_t n_question, struct wordlist *answers, struct error *e)
{
    AUTO(wordlist) struct wordlist front = WORDLIST_INIT;
    AUTO(wordlist) struct wordlist seen = WORDLIST_INIT;
    char node[64], depth_text[16];
    int64_t depth = 0;
    if (!memmem(question, n_question, "breadth-first", 13)) {
        if (!word_behind(question, n_question, "an edge to node ", node, sizeof node))
            return err_set(e, ERR_FORMAT, "question: want a node");
        enum err rc = wordlist_add(&front, node, strlen(node), e);
        return rc ? rc : step(context, n_context, &front, &seen, true, answers, e);
    }
    if (!word_behind(question, n_question, "from node ", node, sizeof node) ||
        !word_behind(question, n_question, "at depth ", depth_text, sizeof depth_text) ||
        options_parse_int(depth_text, 1, 100, &depth, NULL))
        return err_set(e, ERR_FORMAT, "question: want a node and a depth");
    enum err rc = wordlist_add(&front, node, strlen(node), e);
    for (; depth > 0 && !rc; depth--) {
        AUTO(wordlist) struct wordlist next = WORDLIST_INIT;
        for (uint32_t i = 0; i < front.n && !rc; i++) {
            size_t n;
            const char *w = wordlist_at(&front, i, &n);
            rc = wordlist_add(&seen, w, n, e);
        }
        if (!rc)
            rc = step(context, n_context, &front, &seen, false, &next, e);
        struct wordlist swap = front;
        front = next;
        next = swap;
    }
    for (uint32_t i = 0; i < front.n && !rc; i++) {
        size_t n;
        const char *w = wordlist_at(&front, i, &n);
        rc = wordlist_add(answers, w, n, e);
    }
    return rc;
}
