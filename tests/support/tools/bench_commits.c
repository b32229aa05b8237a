/* bench_commits [--dir DIR] [--commits N] [--rounds N]: tape commits a second with and without
 * the search index, in turns, on one disk. A commit is a step of an agent: 300 tokens, an item
 * of --words words. Without: the same event, which is of no item, so that nothing is indexed
 * (the index over items goes with it: what the difference costs is the most that the search
 * can). Prints one JSON line with medians. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/options.h"
#include "sessions/session.h"
#include "sessions/store.h"
#include "sessions/tape.h"
#include "tests/support/bench.h"
#include "tests/support/store_fixture.h"

#define MAX_ROUNDS 99
#define TOKENS 300

struct values {
    const char *dir;
    int64_t commits, rounds, words;
};

#define AT(member) offsetof(struct values, member)
static const struct option table[] = {
    {"dir", 0, OPTION_STRING, AT(dir), "DIR", .help = "an empty folder on the disk"},
    {"commits", 0, OPTION_INT, AT(commits), "N", 1, 100000, .help = "of a round (200)"},
    {"rounds", 0, OPTION_INT, AT(rounds), "N", 1, MAX_ROUNDS, .help = "of each kind (5)"},
    {"words", 0, OPTION_INT, AT(words), "N", 1, 100000, .help = "of an item (200)"},
};
static const struct command command = {"bench_commits",
                                       "",
                                       "what the search index costs a commit",
                                       OPTION_TABLE(table),
                                       OPTION_TABLE_EMPTY,
                                       0,
                                       0};

struct bench {
    struct values o;
    struct store *st;
    char id[SESSION_ID_CAP];
    uint64_t n_tokens, n_items, random;
};

static uint64_t next(struct bench *b)
{
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return b->random >> 33;
}

/* Words of a vocabulary of 20,000, the common ones more often. */
static char *make_item(struct bench *b)
{
    AUTO(buf) struct buf text = BUF_INIT(1 << 22);
    for (int64_t i = 0; i < b->o.words; i++) {
        uint64_t r = next(b) % 20000, s = next(b) % 20000;
        if (buf_printf(&text, NULL, "w%llx ", (unsigned long long)(r * s / 20000)))
            bench_fail("no memory");
    }
    json_auto_t *j = json_pack("{s:{s:s, s:s%}}", "item", "kind", "assistant", "text",
                               buf_str(&text), text.len);
    return json_dumps(j, JSON_COMPACT);
}

static void commit(struct bench *b, bool is_item)
{
    uint32_t ids[TOKENS];
    char name[32];
    AUTO_FREE char *json = make_item(b);
    struct error e;
    for (uint32_t i = 0; i < TOKENS; i++)
        ids[i] = (uint32_t)next(b) % 129280;
    snprintf(name, sizeof name, "i%llu", (unsigned long long)b->n_items++);
    const struct tape_segment seg = {.seg = {b->n_tokens, TOKENS, SEGMENT_INPUT, PREFILL_CED}};
    const struct tape_event ev = {.position = TAPE_END,
                                  .type = "item",
                                  .item = is_item ? name : NULL,
                                  .kind = "assistant",
                                  .json = json};
    const struct tape_commit c = {.session = b->id,
                                  .position = b->n_tokens,
                                  .ids = ids,
                                  .n_ids = TOKENS,
                                  .segments = &seg,
                                  .n_segments = 1,
                                  .events = &ev,
                                  .n_events = 1};
    if (tape_commit(b->st, &c, NULL, &e))
        bench_fail("%s", e.msg);
    b->n_tokens += TOKENS;
}

static double round_of(struct bench *b, bool is_item)
{
    uint64_t t0 = clock_mono_ns(clock_real());
    for (int64_t i = 0; i < b->o.commits; i++)
        commit(b, is_item);
    return (double)b->o.commits / ((double)(clock_mono_ns(clock_real()) - t0) / 1e9);
}

static int by_value(const void *x, const void *y)
{
    const double *a = x, *b = y;
    return (*a > *b) - (*a < *b);
}

static double median(double *v, int64_t n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static void open_store(struct bench *b)
{
    char db[300], packs[300], state[300];
    struct error e;
    snprintf(db, sizeof db, "%.250s/agentd.db", b->o.dir);
    snprintf(packs, sizeof packs, "%.250s/packs", b->o.dir);
    snprintf(state, sizeof state, "%.250s/state", b->o.dir);
    const struct store_options so = {.db_path = db, .packs_dir = packs, .state_dir = state};
    const struct session_new s = {.name = "bench", .cwd = "/", .config = "{}"};
    if (store_open(&b->st, &so, &e) || session_new(b->st, &s, b->id, &e))
        bench_fail("%s", e.msg);
}

int main(int argc, char **argv)
{
    struct bench b = {.o = {.dir = ".", .commits = 200, .rounds = 5, .words = 200}};
    double with[MAX_ROUNDS], without[MAX_ROUNDS], share[MAX_ROUNDS];
    struct options seen;
    struct error e;
    if (options_parse(&command, argc, (const char *const *)argv, &b.o, &seen, &e))
        bench_fail("%s", e.msg);
    open_store(&b);
    round_of(&b, true); /* the files grow to their size */
    for (int64_t i = 0; i < b.o.rounds; i++) {
        without[i] = round_of(&b, false);
        with[i] = round_of(&b, true);
        share[i] = 1 - with[i] / without[i]; /* of the time of a commit */
    }
    store_close(b.st);
    printf("{\"words\": %lld, \"commits_per_s\": %.1f, \"without_index\": %.1f, "
           "\"index_share_of_commit\": %.3f}\n",
           (long long)b.o.words, median(with, b.o.rounds), median(without, b.o.rounds),
           median(share, b.o.rounds));
    return 0;
}
