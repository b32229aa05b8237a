#include "evals/difflib.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"

#define AUTOJUNK_LENGTH 200

struct span {
    uint32_t a, a_end, b, b_end;
};

struct matcher {
    const uint32_t *a, *b;
    uint32_t n_a, n_b;
    uint32_t *order;   /* [n_b] places in b, sorted by element, then by place */
    uint32_t *first;   /* [n_a] where in order the places of a[i] begin; n_b: nowhere */
    uint32_t *lengths; /* [n_b + 1] of the block that ends in front of b[j]; two rows in turn */
    uint32_t *next;
    struct span *todo; /* regions still to be matched */
    size_t n_todo;
};

static void matcher_fini(struct matcher *m)
{
    free(m->order);
    free(m->first);
    free(m->lengths);
    free(m->next);
    free(m->todo);
}

static int compare_places(const void *x, const void *y, void *b)
{
    uint32_t i = *(const uint32_t *)x, k = *(const uint32_t *)y;
    const uint32_t *v = b;
    return v[i] != v[k] ? (v[i] > v[k]) - (v[i] < v[k]) : (i > k) - (i < k);
}

/* Where the places of an element begin in order, by bisection. */
static uint32_t find(const struct matcher *m, uint32_t element)
{
    uint32_t low = 0, high = m->n_b;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (m->b[m->order[mid]] < element)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static bool stands_at(const struct matcher *m, uint32_t at, uint32_t element)
{
    return at < m->n_b && m->b[m->order[at]] == element;
}

static enum err prepare(struct matcher *m, struct error *e)
{
    m->order = calloc(m->n_b + 1, sizeof *m->order);
    m->first = calloc(m->n_a + 1, sizeof *m->first);
    m->lengths = calloc(m->n_b + 1, sizeof *m->lengths);
    m->next = calloc(m->n_b + 1, sizeof *m->next);
    m->todo = calloc((size_t)m->n_a + 2, sizeof *m->todo);
    if (!m->order || !m->first || !m->lengths || !m->next || !m->todo)
        return err_set(e, ERR_NOMEM, "no memory to compare %u and %u elements", m->n_a, m->n_b);
    for (uint32_t i = 0; i < m->n_b; i++)
        m->order[i] = i;
    qsort_r(m->order, m->n_b, sizeof *m->order, compare_places, (void *)(uintptr_t)m->b);
    const uint32_t popular = m->n_b >= AUTOJUNK_LENGTH ? m->n_b / 100 + 1 : m->n_b;
    for (uint32_t i = 0; i < m->n_a; i++) {
        uint32_t at = find(m, m->a[i]);
        bool is_junk = m->n_b - at > popular && stands_at(m, at + popular, m->a[i]);
        m->first[i] = stands_at(m, at, m->a[i]) && !is_junk ? at : m->n_b;
    }
    return OK;
}

/* Row i of the lengths: of the blocks that end with a[i] and b[j]. Both rows are zero outside
 * of what the last two elements of a set; `clear` undoes it. */
static void clear_row(const struct matcher *m, uint32_t *row, uint32_t i)
{
    for (uint32_t at = m->first[i]; stands_at(m, at, m->a[i]); at++)
        row[m->order[at] + 1] = 0;
}

/* The longest block in the span that starts with no junk: *i, *j and the length. */
static uint32_t longest(struct matcher *m, const struct span *s, uint32_t *best_i,
                        uint32_t *best_j)
{
    uint32_t best = 0;
    *best_i = s->a;
    *best_j = s->b;
    for (uint32_t i = s->a; i < s->a_end; i++) {
        for (uint32_t at = m->first[i]; stands_at(m, at, m->a[i]); at++) {
            uint32_t j = m->order[at];
            if (j < s->b)
                continue;
            if (j >= s->b_end)
                break;
            uint32_t n = m->next[j + 1] = m->lengths[j] + 1;
            if (n > best) {
                best = n;
                *best_i = i + 1 - n;
                *best_j = j + 1 - n;
            }
        }
        if (i > s->a)
            clear_row(m, m->lengths, i - 1);
        uint32_t *swap = m->lengths;
        m->lengths = m->next;
        m->next = swap;
    }
    if (s->a_end > s->a)
        clear_row(m, m->lengths, s->a_end - 1);
    return best;
}

/* The same, grown on both sides over elements that could not start a block. */
static uint32_t longest_grown(struct matcher *m, const struct span *s, uint32_t *i, uint32_t *j)
{
    uint32_t n = longest(m, s, i, j);
    for (; *i > s->a && *j > s->b && m->a[*i - 1] == m->b[*j - 1]; n++) {
        --*i;
        --*j;
    }
    while (*i + n < s->a_end && *j + n < s->b_end && m->a[*i + n] == m->b[*j + n])
        n++;
    return n;
}

enum err difflib_ratio(const uint32_t *a, size_t n_a, const uint32_t *b, size_t n_b,
                       double *out, struct error *e)
{
    if (n_a > INT32_MAX || n_b > INT32_MAX)
        return err_set(e, ERR_LIMIT, "%zu and %zu elements are too many to compare", n_a, n_b);
    AUTO(matcher)
    struct matcher m = {.a = a, .b = b, .n_a = (uint32_t)n_a, .n_b = (uint32_t)n_b};
    enum err rc = prepare(&m, e);
    if (rc)
        return rc;
    uint64_t matched = 0;
    m.todo[m.n_todo++] = (struct span){0, m.n_a, 0, m.n_b};
    while (m.n_todo) {
        struct span s = m.todo[--m.n_todo];
        uint32_t i, j, n = longest_grown(&m, &s, &i, &j);
        if (!n)
            continue;
        matched += n;
        if (s.a < i && s.b < j)
            m.todo[m.n_todo++] = (struct span){s.a, i, s.b, j};
        if (i + n < s.a_end && j + n < s.b_end)
            m.todo[m.n_todo++] = (struct span){i + n, s.a_end, j + n, s.b_end};
    }
    *out = n_a + n_b ? 2.0 * (double)matched / (double)(n_a + n_b) : 1.0;
    return OK;
}
