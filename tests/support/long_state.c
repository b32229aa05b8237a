#include "tests/support/long_state.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/auto.h"
#include "tests/support/bench.h"

#define SEGMENT 8192

uint32_t long_state_id(uint64_t position)
{
    return 3 + (uint32_t)((position * 2654435761u) >> 12) % 250;
}

static struct seq *new_seq(struct engine *m)
{
    struct seq *s = NULL;
    struct error e;
    if (seq_new(m, NULL, &s, &e))
        bench_fail("%s", e.msg);
    return s;
}

/* ---- from a file --------------------------------------------------------------------------
 */

static void take(int fd, void *p, size_t n, const char *path)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = read(fd, (char *)p + done, n - done);
        if (k <= 0)
            bench_fail("%s is cut short", path);
        done += (size_t)k;
    }
}

struct seq *long_state_read(struct engine *m, const char *path, uint64_t n_tokens)
{
    const struct state_layout *l = engine_describe(m)->layout;
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct seq *s = new_seq(m);
    struct seq_digest digest;
    struct state_regions r;
    struct stat st;
    struct error e;
    uint64_t n_bytes = l->tip_bytes + sizeof(digest);
    for (uint32_t i = 0; i < l->n_planes; i++)
        n_bytes += state_rows(&l->planes[i], n_tokens) * l->planes[i].row_bytes;
    if (fd < 0 || fstat(fd, &st) || (uint64_t)st.st_size != n_bytes)
        bench_fail("%s has not the %" PRIu64 " bytes of %" PRIu64 " tokens of this model", path,
                   n_bytes, n_tokens);
    if (seq_import_begin(s, n_tokens, &r, &e))
        bench_fail("%s", e.msg);
    for (uint32_t i = 0; i < l->n_planes; i++)
        take(fd, r.plane[i], state_rows(&l->planes[i], n_tokens) * l->planes[i].row_bytes,
             path);
    AUTO_FREE void *tip = malloc(l->tip_bytes);
    if (!tip)
        bench_fail("no memory for a tip");
    take(fd, tip, l->tip_bytes, path);
    take(fd, &digest, sizeof(digest), path);
    if (seq_import_tip(s, tip, l->tip_bytes, &digest, &e))
        bench_fail("%s", e.msg);
    return s;
}

/* ---- by repeating rows --------------------------------------------------------------------
 */

static struct seq *prefill(struct engine *m, uint64_t n_tokens)
{
    struct seq *s = new_seq(m);
    struct error e;
    while (seq_position(s) < n_tokens) {
        uint32_t ids[SEGMENT];
        uint64_t left = n_tokens - seq_position(s), n = left < SEGMENT ? left : SEGMENT;
        for (uint64_t i = 0; i < n; i++)
            ids[i] = long_state_id(seq_position(s) + i);
        if (seq_input(s, ids, n, PREFILL_CED, &e))
            bench_fail("%s", e.msg);
        bench_run(m);
    }
    return s;
}

/* The plane's rows of the first n_base tokens, over and over. */
static void fill_plane(const struct seq *base, uint32_t plane, const struct plane_spec *p,
                       uint64_t n_base, uint64_t n_tokens, uint8_t *out)
{
    size_t once = state_rows(p, n_base) * p->row_bytes;
    size_t all = state_rows(p, n_tokens) * p->row_bytes;
    struct error e;
    if (n_base % p->ratio || seq_export_rows(base, plane, 0, state_rows(p, n_base), out, &e))
        bench_fail("plane %s cannot be repeated after %" PRIu64 " tokens", p->name, n_base);
    for (size_t at = once; at < all; at += once)
        memcpy(out + at, out, all - at < once ? all - at : once);
}

void long_tape_make(struct long_tape *t, uint64_t n_base, uint64_t n_tokens)
{
    size_t n_segments = (size_t)((n_tokens + SEGMENT - 1) / SEGMENT);
    t->ids = malloc(n_tokens * sizeof(*t->ids));
    t->segments = calloc(n_segments, sizeof(*t->segments));
    if (!t->ids || !t->segments)
        bench_fail("no memory for a tape of %" PRIu64 " tokens", n_tokens);
    for (uint64_t i = 0; i < n_tokens; i++)
        t->ids[i] = long_state_id(i % n_base);
    for (uint64_t i = 0; i < n_segments; i++) {
        uint64_t start = i * SEGMENT, left = n_tokens - start;
        t->segments[i] = (struct segment){start, left < SEGMENT ? left : SEGMENT, SEGMENT_INPUT,
                                          PREFILL_CED};
    }
    t->view = (struct tape_view){
        .ids = t->ids, .n_ids = n_tokens, .segments = t->segments, .n_segments = n_segments};
}

void long_tape_fini(struct long_tape *t)
{
    free(t->ids);
    free(t->segments);
    *t = (struct long_tape){0};
}

static void rebuild(struct engine *m, struct seq *s, uint64_t n_base, uint64_t n_tokens)
{
    AUTO(long_tape) struct long_tape t = {0};
    uint64_t n_replayed = 0;
    struct error e;
    long_tape_make(&t, n_base, n_tokens);
    if (seq_rebuild(s, &t.view, RESUME_DEEP, NULL, &n_replayed, &e))
        bench_fail("%s", e.msg);
    bench_run(m);
}

struct seq *long_state_repeat(struct engine *m, uint64_t n_base, uint64_t n_tokens)
{
    const struct state_layout *l = engine_describe(m)->layout;
    struct seq *base = prefill(m, n_base < n_tokens ? n_base : n_tokens);
    struct state_regions r;
    struct error e;
    if (n_tokens <= n_base)
        return base;
    struct seq *s = new_seq(m);
    if (seq_import_begin(s, n_tokens, &r, &e))
        bench_fail("%s", e.msg);
    for (uint32_t i = 0; i < l->n_planes; i++)
        fill_plane(base, i, &l->planes[i], n_base, n_tokens, r.plane[i]);
    seq_free(base);
    rebuild(m, s, n_base, n_tokens);
    return s;
}
