/* bench_repeat -m MODEL [--file PATH]: a file that a tool shows ten times, without the model's
 * arithmetic: what tokenising it and fetching its Engram rows takes each time.
 *
 * Each repetition opens the checkpoint anew, with nothing remembered and no row in memory, and
 * builds the input segment of the same tool result ten times: chat format, ids, row numbers,
 * rows. The ratio is that of the median of the nine repeats to the first read; reported is the
 * median of --reps (default 5). JSON lines; exit code 1 when a limit is missed. The rows of a
 * first read come from the disk around the page cache where the file system lets them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/options.h"
#include "engine/chat.h"
#include "engine/engram_cache.h"
#include "engine/model.h"
#include "engine/tokenizer.h"
#include "tests/support/bench.h"
#include "tests/support/ceilings.h"

#define N_READS 10
#define MAX_REPS 64
#define CHUNK 128 /* tokens whose rows are fetched together */
#define MAX_FILE ((size_t)1 << 20)
#define REPEAT_OF_FIRST 0.2 /* the limit in docs/performance.md */

struct repeat {
    const char *model, *file;
    int64_t reps, engram_ram;
};

#define AT(member) offsetof(struct repeat, member)
static const struct option table[] = {
    {"model", 'm', OPTION_STRING, AT(model), "DIR", .help = "checkpoint", .required = true},
    {"file", 0, OPTION_STRING, AT(file), "PATH", .help = "default: engine/kv.c"},
    {"reps", 0, OPTION_INT, AT(reps), "N", 1, MAX_REPS, .help = "default 5"},
    {"engram-ram", 0, OPTION_BYTES, AT(engram_ram), "BYTES", 1, INT64_MAX,
     .help = "memory for Engram rows (default: 64M)"},
};
static const struct command command = {"bench_repeat",
                                       "",
                                       "the same file read ten times",
                                       OPTION_TABLE(table),
                                       OPTION_TABLE_EMPTY,
                                       0,
                                       0};

/* Seconds of one read. */
struct cost {
    double tokens, rows;
};

static double now(void)
{
    return (double)clock_mono_ns(clock_real()) * 1e-9;
}

static void tokenise(struct model *m, const struct chat_ids *chat, const struct buf *text,
                     struct ids *out)
{
    struct chat_segment s = CHAT_SEGMENT_INIT(chat, false, 2 * MAX_FILE);
    struct error e;
    if (chat_segment_tool_result(&s, text->data, text->len, &e) ||
        chat_segment_finish(&s, m->tokenizer, out, &e))
        bench_fail("%s", e.msg);
    chat_segment_fini(&s);
}

/* As forward.c does for a chunk: compressed ids, row numbers, reading ahead, rows. */
static void fetch(struct model *m, const struct ids *ids)
{
    uint32_t back = m->engram.ngram - 1, tables = m->engram.n_tables;
    uint32_t piece[CONFIG_MAX_NGRAM + CHUNK];
    uint64_t *rows = calloc((size_t)CHUNK * tables, sizeof(*rows)),
             *at = calloc(CHUNK, tables * sizeof(*at));
    struct error e;
    if (!rows || !at)
        bench_fail("no memory for row numbers");
    for (size_t done = 0, n; done < ids->n; done += n) {
        n = ids->n - done < CHUNK ? ids->n - done : CHUNK;
        for (size_t i = 0; i < back + n; i++)
            piece[i] = done + i < back ? ENGRAM_DEAD : m->token_map[ids->v[done + i - back]];
        for (uint32_t k = 0; k < m->config.n_engram; k++) {
            engram_rows(&m->engram, k, piece, (uint32_t)n, rows);
            engram_cache_prefetch(m->engram_cache, k, rows, n * tables);
            if (engram_cache_fetch(m->engram_cache, k, rows, n * tables, at, &e))
                bench_fail("%s", e.msg);
        }
    }
    free(rows);
    free(at);
}

/* One repetition: the first read, and the median of the repeats. */
static void read_ten_times(const struct repeat *b, const struct buf *text, struct cost *first,
                           struct cost *again, size_t *n_ids)
{
    const struct engine_options o = {
        .n_threads = 1, .engram_ram = (uint64_t)b->engram_ram, .no_weight_digest = true};
    double tokens[N_READS], rows[N_READS];
    AUTO(ids) struct ids before = IDS_INIT(MAX_FILE);
    struct engine *engine = NULL;
    struct chat_ids chat;
    struct error e;
    if (engine_open_model(&engine, b->model, &o, &e))
        bench_fail("%s", e.msg);
    struct model *m = model_of(engine);
    if (!m->engram_cache ||
        engram_cache_rows(m->engram_cache) < (size_t)CHUNK * m->engram.n_tables)
        bench_fail("no Engram layers, or too little memory for their rows");
    if (chat_ids_find(&chat, m->tokenizer, &e))
        bench_fail("%s", e.msg);
    for (size_t i = 0; i < N_READS; i++) {
        AUTO(ids) struct ids ids = IDS_INIT(MAX_FILE);
        double start = now();
        tokenise(m, &chat, text, &ids);
        double middle = now();
        fetch(m, &ids);
        tokens[i] = middle - start, rows[i] = now() - middle;
        if (i && (ids.n != before.n || memcmp(ids.v, before.v, ids.n * sizeof(*ids.v)) != 0))
            bench_fail("read %zu gave other ids", i + 1);
        if (!i && ids_add_all(&before, ids.v, ids.n, &e))
            bench_fail("%s", e.msg);
    }
    *first = (struct cost){tokens[0], rows[0]};
    *again = (struct cost){median(tokens + 1, N_READS - 1), median(rows + 1, N_READS - 1)};
    *n_ids = before.n;
    engine_free(engine);
}

static bool report(const char *name, double *first, double *ratio, size_t n)
{
    double r = median(ratio, n);
    char text[64];
    snprintf(text, sizeof(text), "%s, first read", name);
    figure_print(&(struct figure){.group = "repeat",
                                  .name = text,
                                  .unit = "ms",
                                  .against = "",
                                  .value = median(first, n) * 1e3});
    snprintf(text, sizeof(text), "%s, repeats", name);
    figure_print(&(struct figure){.group = "repeat",
                                  .name = text,
                                  .unit = "x time",
                                  .against = "first read",
                                  .value = r,
                                  .ratio = r,
                                  .limit = REPEAT_OF_FIRST});
    return r <= REPEAT_OF_FIRST;
}

int main(int argc, char **argv)
{
    static struct repeat b = {.file = "engine/kv.c", .reps = 5, .engram_ram = 64 << 20};
    static double first[3][MAX_REPS], ratio[3][MAX_REPS];
    AUTO(buf) struct buf text = BUF_INIT(MAX_FILE);
    struct options seen;
    struct error e;
    size_t n_ids = 0, n;
    if (options_parse(&command, argc, (const char *const *)argv, &b, &seen, &e) ||
        fs_read_regular(b.file, &text, &e))
        bench_fail("%s", e.msg);
    n = (size_t)b.reps;
    for (size_t i = 0; i < n; i++) {
        struct cost one, again;
        read_ten_times(&b, &text, &one, &again, &n_ids);
        first[0][i] = one.tokens, ratio[0][i] = again.tokens / one.tokens;
        first[1][i] = one.rows, ratio[1][i] = again.rows / one.rows;
        first[2][i] = one.tokens + one.rows;
        ratio[2][i] = (again.tokens + again.rows) / first[2][i];
    }
    fprintf(stderr, "bench_repeat: %s, %zu bytes, %zu tokens\n", b.file, text.len, n_ids);
    bool ok = report("tokenising", first[0], ratio[0], n);
    ok = report("Engram rows", first[1], ratio[1], n) && ok;
    ok = report("both", first[2], ratio[2], n) && ok;
    return !ok;
}
