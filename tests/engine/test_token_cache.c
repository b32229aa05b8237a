/* engine/token_cache: a cut changes no id, whatever stands around it; ids are the same with a
 * cache, without one and in pieces; equal text is found again wherever it stands; the budget
 * holds, equal hashes are told apart, threads share it. */
#include "tests/support/test.h"

#include <pthread.h>

#include "base/fault.h"
#include "engine/pretokenizer.h"
#include "engine/tokenizer.h"

#define DIR GOLDEN "e_encoding"
#define SMALL TOKEN_CACHE_MIN_BYTES

static struct tokenizer *open_tokenizer(size_t cache_bytes)
{
    struct tokenizer *t = NULL;
    struct error e = {0};
    assert_ok(tokenizer_open(&t, DIR, &e), &e);
    assert_ok(tokenizer_set_cache(t, cache_bytes, &e), &e);
    return t;
}

static uint64_t next_random(uint64_t *s)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return *s >> 33;
}

/* What the splits, the cuts and the vocabulary care about. */
static const char *const parts[] = {
    "\n",         "\r",       "\n\n",         "\r\n",     " ",         "\t",
    "    ",       "a",        "the ",         "x1",       "123",       ".",
    ";\n",        "{\n",      "'s",           "\xc2\xa0", "é",         "你",
    "ア",         "①",        "\xff",         "\xe4\xbd", "e\xcc\x81", "\v",
    "<｜User｜>", "</think>", "\xe2\x80\xa8", "\x01"};
#define N_PARTS (sizeof parts / sizeof parts[0])

/* ---- where a text may be cut --------------------------------------------------------------
 */

/* Ends of all pieces, as bits; text has at most 64 bytes. */
static uint64_t ends(const uint8_t *text, size_t n)
{
    struct pretokenizer p = pretokenizer_start(text, n);
    const uint8_t *piece;
    uint64_t bits = 0;
    for (size_t len; (len = pretokenizer_next(&p, &piece));)
        bits |= 1ull << ((size_t)(piece - text) + len - 1);
    return bits;
}

/* Every text of four parts (AGENTD_SLOW: five): pieces of the halves are those of the whole. */
static void test_a_cut_changes_no_piece(void **state)
{
    (void)state;
    size_t pick[5] = {0}, n_cuts = 0, n_parts = getenv("AGENTD_SLOW") ? 5 : 4, i = 0;
    while (i < n_parts) {
        uint8_t text[64];
        size_t n = 0;
        for (i = 0; i < n_parts; i++) {
            memcpy(text + n, parts[pick[i]], strlen(parts[pick[i]]));
            n += strlen(parts[pick[i]]);
        }
        uint64_t whole = n <= 64 ? ends(text, n) : 0;
        for (size_t at = 1; at < n && n <= 64; at++) {
            if (text[at - 1] != '\n' || !token_cache_may_cut(text + at, text + n))
                continue;
            if (whole != (ends(text, at) | ends(text + at, n - at) << at))
                fail_msg("cut at %zu of \"%.*s\"", at, (int)n, (const char *)text);
            n_cuts++;
        }
        for (i = 0; i < n_parts && ++pick[i] == N_PARTS; i++)
            pick[i] = 0;
    }
    if (n_cuts < 100000)
        fail_msg("only %zu cuts", n_cuts);
}

/* ---- the same ids -------------------------------------------------------------------------
 */

/* Some thousand bytes: lines out of a few, so that they come again, and parts by chance. */
static size_t make_text(uint64_t *seed, char *out, size_t cap)
{
    size_t n = 0, want = next_random(seed) % cap;
    while (n + 128 < want) {
        uint64_t line = next_random(seed) % 8 ? next_random(seed) % 300 : next_random(seed);
        size_t n_parts = line % 17;
        for (size_t i = 0; i < n_parts; i++) {
            const char *p = parts[next_random(&line) % N_PARTS];
            memcpy(out + n, p, strlen(p));
            n += strlen(p);
        }
        out[n++] = '\n';
    }
    return n;
}

static void assert_same(const struct ids *a, const struct ids *b, int round, const char *what)
{
    if (a->n != b->n || (a->n && memcmp(a->v, b->v, a->n * sizeof(*a->v)) != 0))
        fail_msg("round %d: %s, %zu ids, want %zu", round, what, b->n, a->n);
}

static void encode_in_steps(const struct tokenizer *t, const char *text, size_t n,
                            uint64_t *seed, struct ids *out)
{
    size_t from = 0, to = 0, used;
    struct error e = {0};
    while (to < n) {
        to += 1 + next_random(seed) % 700;
        to = to < n ? to : n;
        assert_ok(tokenizer_encode_open(t, text + from, to - from, out, &used, &e), &e);
        from += used;
    }
    assert_ok(tokenizer_encode(t, text + from, n - from, out, &e), &e);
}

static void test_same_ids(void **state)
{
    (void)state;
    struct tokenizer *none = open_tokenizer(0), *small = open_tokenizer(SMALL),
                     *large = open_tokenizer(TOKEN_CACHE_BYTES);
    uint64_t seed = 11;
    static char text[8000];
    for (int round = 0; round < 600; round++) {
        size_t n = make_text(&seed, text, sizeof(text));
        struct error e = {0};
        AUTO(ids)
        struct ids want = IDS_INIT(1 << 16), a = IDS_INIT(1 << 16), b = IDS_INIT(1 << 16),
                   steps = IDS_INIT(1 << 16), special = IDS_INIT(1 << 16),
                   both = IDS_INIT(1 << 16);
        assert_ok(tokenizer_encode(none, text, n, &want, &e), &e);
        assert_ok(tokenizer_encode(small, text, n, &a, &e), &e);
        assert_same(&want, &a, round, "small");
        assert_ok(tokenizer_encode(large, text, n, &b, &e), &e);
        assert_same(&want, &b, round, "large");
        encode_in_steps(large, text, n, &seed, &steps);
        assert_same(&want, &steps, round, "in steps");
        assert_ok(tokenizer_encode_special(none, text, n, &special, &e), &e);
        assert_ok(tokenizer_encode_special(small, text, n, &both, &e), &e);
        assert_same(&special, &both, round, "special");
        assert_true(tokenizer_cache_use(small).used_bytes <= SMALL);
    }
    struct token_cache_use use = tokenizer_cache_use(small);
    if (use.n_evicted < 1000 || use.hit_bytes < 20000)
        fail_msg("%llu evicted, %llu bytes found", (unsigned long long)use.n_evicted,
                 (unsigned long long)use.hit_bytes);
    use = tokenizer_cache_use(large);
    if (use.hit_bytes < 300000)
        fail_msg("%llu bytes found, %llu not", (unsigned long long)use.hit_bytes,
                 (unsigned long long)use.missed_bytes);
    assert_int_equal(tokenizer_cache_use(none).budget_bytes, 0);
    tokenizer_free(none);
    tokenizer_free(small);
    tokenizer_free(large);
}

/* A chunk that no budget holds, of one line and of many. */
static void test_giant_texts(void **state)
{
    (void)state;
    struct tokenizer *none = open_tokenizer(0), *small = open_tokenizer(SMALL);
    size_t n = 1 << 20;
    AUTO_FREE char *text = malloc(n);
    assert_non_null(text);
    static const char *const units[] = {"the ", "\n\n", "ab\n\xc2\xa0", "ab\n"};
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        size_t len = strlen(units[u]);
        struct error e = {0};
        AUTO(ids) struct ids want = IDS_INIT(n), have = IDS_INIT(n);
        for (size_t i = 0; i + len <= n; i += len)
            memcpy(text + i, units[u], len);
        assert_ok(tokenizer_encode(none, text, n / len * len, &want, &e), &e);
        for (int i = 0; i < 2; i++) {
            have.n = 0;
            assert_ok(tokenizer_encode(small, text, n / len * len, &have, &e), &e);
            assert_same(&want, &have, (int)u, "giant");
        }
        assert_true(tokenizer_cache_use(small).used_bytes <= SMALL);
    }
    tokenizer_free(none);
    tokenizer_free(small);
}

/* A file behind another beginning, and with one line changed, is found but for a few lines. */
static void test_found_wherever_it_stands(void **state)
{
    (void)state;
    struct tokenizer *t = open_tokenizer(TOKEN_CACHE_BYTES);
    struct error e = {0};
    AUTO(buf) struct buf text = BUF_INIT(1 << 20);
    AUTO(ids) struct ids out = IDS_INIT(1 << 20);
    uint32_t x = 1;
    for (int i = 0; i < 1000; i++, x = x * 1664525 + 1013904223)
        assert_ok(buf_printf(&text, &e, "    %s = call(%u, %d);\n", i % 3 ? "value" : "it",
                             x >> 20, i),
                  &e);
    assert_ok(tokenizer_encode(t, text.data, text.len, &out, &e), &e);
    assert_int_equal(tokenizer_cache_use(t).hit_bytes, 0);
    AUTO(buf) struct buf again = BUF_INIT(1 << 20);
    assert_ok(buf_add_str(&again, "import.c, lines 1 to 1000:\n\n", &e), &e);
    assert_ok(buf_add(&again, text.data, text.len, &e), &e);
    again.data[again.len / 2] = '#';
    assert_ok(tokenizer_encode(t, again.data, again.len, &out, &e), &e);
    uint64_t hit = tokenizer_cache_use(t).hit_bytes;
    if (hit < text.len * 95 / 100 || hit >= text.len)
        fail_msg("%llu of %zu bytes were found", (unsigned long long)hit, text.len);
    tokenizer_free(t);
}

/* ---- the table ----------------------------------------------------------------------------
 */

static void put_number(struct token_cache *c, uint64_t hash, uint32_t number)
{
    char text[32];
    struct error e = {0};
    size_t n = (size_t)snprintf(text, sizeof(text), "text number %08u", number);
    assert_ok(token_cache_put(c, hash, (const uint8_t *)text, n, &number, 1, &e), &e);
}

static bool has_number(struct token_cache *c, uint64_t hash, uint32_t number)
{
    char text[32];
    struct error e = {0};
    bool found;
    AUTO(ids) struct ids out = IDS_INIT(4);
    size_t n = (size_t)snprintf(text, sizeof(text), "text number %08u", number);
    assert_ok(token_cache_find(c, hash, (const uint8_t *)text, n, &out, &found, &e), &e);
    assert_int_equal(out.n, found);
    if (found)
        assert_int_equal(out.v[0], number);
    return found;
}

static void test_equal_hashes(void **state)
{
    (void)state;
    struct token_cache *c = NULL;
    struct error e = {0};
    assert_ok(token_cache_new(&c, SMALL, &e), &e);
    put_number(c, 5, 1);
    assert_true(has_number(c, 5, 1));
    assert_false(has_number(c, 5, 2)); /* as long, and the same hash */
    put_number(c, 5, 2);
    assert_true(has_number(c, 5, 1));
    assert_true(has_number(c, 5, 2));
    for (uint32_t i = 3; i < 1000; i++) { /* more than a hash has places for */
        put_number(c, 5, i);
        assert_true(has_number(c, 5, i));
    }
    size_t left = 0;
    for (uint32_t i = 1; i < 1000; i++)
        left += has_number(c, 5, i);
    assert_true(left > 1 && left <= 8);
    size_t used = token_cache_use(c).used_bytes;
    put_number(c, 5, 999); /* it is there */
    assert_int_equal(token_cache_use(c).used_bytes, used);
    token_cache_free(c);
}

static void test_budget_and_eviction(void **state)
{
    (void)state;
    struct token_cache *c = NULL;
    struct error e = {0};
    assert_int_equal(token_cache_new(&c, SMALL - 1, &e), ERR_LIMIT);
    assert_null(c);
    assert_ok(token_cache_new(&c, SMALL, &e), &e);
    put_number(c, 1, 1);
    for (uint32_t i = 2; i < 20000; i++) {
        put_number(c, i * 0x9e3779b97f4a7c15ull, i);
        assert_true(token_cache_use(c).used_bytes <= SMALL);
        if (!has_number(c, 1, 1)) /* asked for all the time */
            fail_msg("the hot one was evicted by number %u", i);
    }
    assert_false(has_number(c, 2 * 0x9e3779b97f4a7c15ull, 2));
    assert_true(has_number(c, 19999 * 0x9e3779b97f4a7c15ull, 19999));
    uint8_t large[SMALL / 8] = {0}; /* with what is kept about it more than its share */
    uint32_t id = 7;
    bool found;
    AUTO(ids) struct ids out = IDS_INIT(4);
    assert_ok(token_cache_put(c, 3, large, sizeof(large), &id, 1, &e), &e);
    assert_ok(token_cache_find(c, 3, large, sizeof(large), &out, &found, &e), &e);
    assert_false(found);
    token_cache_free(c);
}

/* What was found does not fit into the list; no memory to remember. Nothing has changed. */
static void test_failures(void **state)
{
    (void)state;
    struct tokenizer *t = open_tokenizer(SMALL);
    struct error e = {0};
    static const char text[] = "a line of text that is long enough\n";
    AUTO(ids) struct ids full = IDS_INIT(5), out = IDS_INIT(100), again = IDS_INIT(100);
    uint64_t n = 1;
    for (;; n++) {
        fault_arm(FAULT_FAIL, "alloc", n);
        enum err rc = tokenizer_encode(t, text, strlen(text), &out, &e);
        if (!fault_disarm()) {
            assert_ok(rc, &e);
            break;
        }
        assert_int_equal(rc, ERR_NOMEM);
        assert_int_equal(out.n, 0);
    }
    assert_true(n > 1);
    assert_ok(tokenizer_encode(t, text, strlen(text), &again, &e), &e);
    assert_same(&out, &again, 0, "found");
    assert_true(tokenizer_cache_use(t).hit_bytes >= strlen(text));
    assert_int_equal(tokenizer_encode(t, text, strlen(text), &full, &e), ERR_LIMIT);
    assert_int_equal(full.n, 0);
    assert_int_equal(tokenizer_set_cache(t, 1, &e), ERR_LIMIT);
    assert_int_equal(tokenizer_cache_use(t).budget_bytes, SMALL);
    tokenizer_free(t);
}

/* ---- threads ------------------------------------------------------------------------------
 */

#define N_THREADS 4
#define N_TEXTS 12

struct shared {
    struct tokenizer *t;
    char text[N_TEXTS][6000];
    size_t n[N_TEXTS];
    struct ids want[N_TEXTS];
    bool wrong[N_THREADS];
};

static struct shared shared;

static void *encode_all(void *arg)
{
    bool *wrong = arg;
    uint64_t seed = (uint64_t)(wrong - shared.wrong);
    for (int i = 0; i < 200; i++) {
        size_t k = next_random(&seed) % N_TEXTS;
        AUTO(ids) struct ids have = IDS_INIT(1 << 16);
        if (tokenizer_encode(shared.t, shared.text[k], shared.n[k], &have, NULL) ||
            have.n != shared.want[k].n ||
            (have.n && memcmp(have.v, shared.want[k].v, have.n * sizeof(*have.v)) != 0))
            *wrong = true;
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    struct tokenizer *none = open_tokenizer(0);
    pthread_t id[N_THREADS];
    uint64_t seed = 3;
    struct error e = {0};
    shared.t = open_tokenizer(SMALL);
    for (size_t k = 0; k < N_TEXTS; k++) {
        shared.n[k] = make_text(&seed, shared.text[k], sizeof(shared.text[k]));
        shared.want[k] = (struct ids)IDS_INIT(1 << 16);
        assert_ok(tokenizer_encode(none, shared.text[k], shared.n[k], &shared.want[k], &e), &e);
    }
    for (size_t i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&id[i], NULL, encode_all, &shared.wrong[i]), 0);
    for (size_t i = 0; i < N_THREADS; i++) {
        pthread_join(id[i], NULL);
        assert_false(shared.wrong[i]);
    }
    assert_true(tokenizer_cache_use(shared.t).hit_bytes > 0);
    for (size_t k = 0; k < N_TEXTS; k++)
        ids_fini(&shared.want[k]);
    tokenizer_free(shared.t);
    tokenizer_free(none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_cut_changes_no_piece),
        cmocka_unit_test(test_same_ids),
        cmocka_unit_test(test_giant_texts),
        cmocka_unit_test(test_found_wherever_it_stands),
        cmocka_unit_test(test_equal_hashes),
        cmocka_unit_test(test_budget_and_eviction),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_threads),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
