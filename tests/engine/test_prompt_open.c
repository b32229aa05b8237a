/* A text that is still arriving: the ids that are given ahead are those of the whole text, at
 * every cut, for every kind of character on either side of it. */
#include "tests/support/test.h"

#include <string.h>

#include "engine/chat.h"

struct vocabulary {
    struct tokenizer *t;
    struct chat_ids ids;
};

static int open_both(void **state)
{
    static struct vocabulary v[2];
    struct error e = {0};
    assert_ok(tokenizer_open(&v[0].t, GOLDEN "e_encoding", &e), &e);
    assert_ok(tokenizer_new_bytes(&v[1].t, &e), &e);
    for (int i = 0; i < 2; i++)
        assert_ok(chat_ids_find(&v[i].ids, v[i].t, &e), &e);
    *state = v;
    return 0;
}

static int close_both(void **state)
{
    struct vocabulary *v = *state;
    for (int i = 0; i < 2; i++)
        tokenizer_free(v[i].t);
    return 0;
}

/* xorshift64 */
static uint32_t draw(uint64_t *s, uint32_t n)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return (uint32_t)(*s >> 33) % n;
}

/* What the splits tell apart, bytes that are no UTF-8, and pieces of the framing itself. */
static const char *const PARTS[] = {
    "a",
    "the",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "1",
    "23",
    "4567",
    ".",
    "()",
    "'s",
    "é",
    "中",
    "文字",
    "かな",
    "\xf0\x9f\x98\x80",
    "\xff",
    "\xc3",
    "\xe4\xb8",
    "\x80",
    "\x01",
    "e\xcc\x81",
    "\xe2\x80\x83",
    "\xc2\xa0",
    "²",
    "</tool_result>",
    "<tool_result>",
    "_x",
    "\"}",
    "::",
};

static size_t make_text(uint64_t *s, char *out, size_t cap)
{
    size_t n = 0, parts = 1 + draw(s, 24);
    for (size_t i = 0; i < parts; i++) {
        const char *part = PARTS[draw(s, sizeof(PARTS) / sizeof(*PARTS))];
        size_t len = strlen(part);
        if (n + len > cap)
            break;
        memcpy(out + n, part, len);
        n += len;
    }
    return n;
}

static void assert_prefix(const struct ids *front, const struct ids *whole, uint64_t seed)
{
    if (front->n > whole->n ||
        (front->n && memcmp(front->v, whole->v, front->n * sizeof(*front->v))))
        fail_msg("seed %llu: %zu ids given ahead are no prefix of the %zu of the whole",
                 (unsigned long long)seed, front->n, whole->n);
}

/* Every text cut at every byte: the front's ids are a prefix; what is held back is bounded. */
static void test_every_cut(void **state)
{
    const struct vocabulary *v = *state;
    uint64_t rounds = getenv("AGENTD_SLOW") ? 40000 : 1500, given = 0, all = 0;
    for (uint64_t r = 1; r <= rounds; r++) {
        uint64_t s = r * 0x9e3779b97f4a7c15u;
        const struct tokenizer *t = v[r % 2].t;
        char text[256];
        size_t n = make_text(&s, text, sizeof(text)), used;
        struct error e = {0};
        AUTO(ids) struct ids whole = IDS_INIT(1024);
        assert_ok(tokenizer_encode(t, text, n, &whole, &e), &e);
        for (size_t cut = 0; cut <= n; cut++) {
            AUTO(ids) struct ids front = IDS_INIT(1024);
            assert_ok(tokenizer_encode_open(t, text, cut, &front, &used, &e), &e);
            assert_prefix(&front, &whole, r);
            /* The rest, tokenised on its own, completes it. */
            assert_ok(tokenizer_encode(t, text + used, n - used, &front, &e), &e);
            assert_int_equal(front.n, whole.n);
            assert_prefix(&front, &whole, r);
            given += used;
            all += cut;
        }
    }
    assert_true(given * 2 > all); /* most is not held back: the test would see nothing */
}

/* Results of one step as they come, in pieces of random size. */
static void test_results(void **state)
{
    const struct vocabulary *v = *state;
    for (uint64_t r = 1; r <= 400; r++) {
        uint64_t s = r * 0xd1342543de82ef95u;
        const struct vocabulary *x = &v[r % 2];
        AUTO(chat_segment) struct chat_segment a = CHAT_SEGMENT_INIT(&x->ids, true, 1 << 16);
        AUTO(chat_segment) struct chat_segment b = CHAT_SEGMENT_INIT(&x->ids, true, 1 << 16);
        AUTO(ids) struct ids ahead = IDS_INIT(4096);
        AUTO(ids) struct ids whole = IDS_INIT(4096);
        struct prompt_place place = {0};
        struct error e = {0};
        size_t n_results = 1 + draw(&s, 4);
        for (size_t i = 0; i < n_results; i++) {
            char text[256];
            size_t n = make_text(&s, text, sizeof(text));
            assert_ok(chat_segment_tool_result(&a, text, n, &e), &e);
            assert_ok(chat_segment_result_begin(&b, &e), &e);
            for (size_t at = 0; at < n;) {
                size_t k = 1 + draw(&s, 9);
                k = k < n - at ? k : n - at;
                assert_ok(prompt_add(&b.prompt, text + at, k, &e), &e);
                at += k;
                assert_ok(prompt_ids_open(&b.prompt, x->t, &place, &ahead, &e), &e);
            }
            assert_ok(chat_segment_result_end(&b, &e), &e);
        }
        if (r % 3 == 0)
            assert_ok(chat_segment_note(&a, "enough", 6, &e), &e);
        assert_ok(prompt_ids_open(&b.prompt, x->t, &place, &ahead, &e), &e);
        assert_ok(chat_segment_finish(&a, x->t, &whole, &e), &e);
        assert_true(ahead.n > 0);
        assert_prefix(&ahead, &whole, r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_results),
    };
    return !!cmocka_run_group_tests(tests, open_both, close_both);
}
