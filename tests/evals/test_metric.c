/* The scorers against the Python that they follow, on 10,000 generated texts each: the texts
 * are drawn here exactly as make_metric_scores.py draws them. */
#include "tests/support/test.h"

#include "base/encode.h"
#include "base/hash.h"
#include "evals/difflib.h"
#include "evals/metric.h"
#include "evals/pyrandom.h"
#include "evals/pytext.h"
#include "tests/evals/metric_scores.inc"
/* behind struct scores */
#include "tests/evals/infinitebench_scores.inc"

#define N 10000
#define COUNT(v) (sizeof(v) / sizeof *(v))

/* ---- drawing texts ------------------------------------------------------------------------
 */

static const char *const pools[] = {
    "aAbBcC",
    "aAbB \n\t,.:'",
    "\u03a3\u03c3\u03c2\u0391\u03b1 '",
    "\u0130Ii\u0131\u00df\u1e9e\u00e9\u00c9e\u0301",
    "\u01c4\u01c5\u01c6\u2160\u24b6\u00aa\u02b0",
    "\U00010400\U00010428\U0001d400\u4e2d\u1c90",
    "\u00a0\u2003\xc2\x85\x1c\u3000 x",
    "0123456789",
};
static const uint32_t all[] = {0, 1, 2, 3, 4, 5, 6, 7};

static uint32_t below(struct pyrandom *r, size_t n)
{
    return pyrandom_below(r, (uint32_t)n);
}

static void add(struct buf *out, const void *s, size_t n)
{
    struct error e = {0};
    assert_ok(buf_add(out, s, n, &e), &e);
}

static void add_chars(struct buf *out, const uint32_t *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t s[4];
        uint32_t c = v[i];
        if (c < 0x80) {
            s[0] = (uint8_t)c;
            add(out, s, 1);
        } else if (c < 0x800) {
            s[0] = (uint8_t)(0xc0 | c >> 6);
            s[1] = (uint8_t)(0x80 | (c & 0x3f));
            add(out, s, 2);
        } else if (c < 0x10000) {
            s[0] = (uint8_t)(0xe0 | c >> 12);
            s[1] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
            s[2] = (uint8_t)(0x80 | (c & 0x3f));
            add(out, s, 3);
        } else {
            s[0] = (uint8_t)(0xf0 | c >> 18);
            s[1] = (uint8_t)(0x80 | (c >> 12 & 0x3f));
            s[2] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
            s[3] = (uint8_t)(0x80 | (c & 0x3f));
            add(out, s, 4);
        }
    }
}

static void add_text(struct pyrandom *r, struct buf *out, const uint32_t *from, size_t n_from,
                     uint32_t max_len)
{
    struct error e = {0};
    for (uint32_t n = below(r, max_len + 1); n-- > 0;) {
        AUTO(pytext) struct pytext pool = {NULL, 0};
        const char *chars = pools[from[below(r, n_from)]];
        assert_ok(pytext_decode(chars, strlen(chars), &pool, &e), &e);
        add_chars(out, &pool.v[below(r, pool.n)], 1);
    }
}

static void replace(struct buf *b, char old, char new)
{
    for (size_t i = 0; i < b->len; i++)
        if (b->data[i] == (uint8_t)old)
            b->data[i] = (uint8_t) new;
}

struct drawn {
    struct buf pred;
    struct wordlist refs;
};

static void draw_match(struct pyrandom *r, struct drawn *d)
{
    AUTO(buf) struct buf ref = BUF_INIT(1 << 16);
    struct error e = {0};
    for (uint32_t n = 1 + below(r, 4); n-- > 0;) {
        buf_clear(&ref);
        add_text(r, &ref, all, COUNT(all), 4);
        replace(&ref, '\n', 'a');
        if (!ref.len)
            add(&ref, "b", 1);
        assert_ok(wordlist_add(&d->refs, ref.data, ref.len, &e), &e);
    }
    add_text(r, &d->pred, all, COUNT(all), 30);
    for (uint32_t i = 0; i < d->refs.n; i++) {
        size_t n;
        const char *word = wordlist_at(&d->refs, i, &n);
        if (!below(r, 2))
            continue;
        if (below(r, 2))
            assert_ok(pytext_lower(word, n, &d->pred, &e), &e);
        else
            add(&d->pred, word, n);
        add_text(r, &d->pred, all, COUNT(all), 5);
    }
}

static void draw_set(struct pyrandom *r, struct drawn *d)
{
    static const char *const marks[] = {"Final Answer: [", "Final Answer:[", "Final Answer:  [",
                                        "Final answer: [", "["};
    static const char *const ends[] = {"]", "]\n", "] ", "", "].", "]]"};
    static const uint32_t digits[] = {7}, spaced[] = {6, 7}, other[] = {0, 7}, lines[] = {1};
    AUTO(buf) struct buf items = BUF_INIT(1 << 16);
    AUTO(buf) struct buf ref = BUF_INIT(1 << 16);
    struct error e = {0};
    for (uint32_t n = 1 + below(r, 5); n-- > 0;) {
        buf_clear(&ref);
        add_text(r, &ref, digits, 1, 2);
        if (!ref.len)
            add(&ref, "0", 1);
        assert_ok(wordlist_add(&d->refs, ref.data, ref.len, &e), &e);
    }
    for (uint32_t n = below(r, 7), i = 0; i < n; i++) {
        if (i)
            add(&items, ",", 1);
        add_text(r, &items, spaced, 2, 1);
        if (below(r, 3)) {
            size_t n_word;
            const char *word = wordlist_at(&d->refs, below(r, d->refs.n), &n_word);
            add(&items, word, n_word);
        } else {
            add_text(r, &items, other, 2, 2);
        }
    }
    add_text(r, &d->pred, lines, 1, 8);
    const char *mark = marks[below(r, 2) ? below(r, 5) : 0];
    add(&d->pred, mark, strlen(mark));
    add(&d->pred, buf_str(&items), items.len);
    const char *end = ends[below(r, 6)];
    add(&d->pred, end, strlen(end));
}

static void draw_ratio(struct pyrandom *r, struct drawn *d)
{
    struct error e = {0};
    const uint32_t small[] = {below(r, COUNT(all))};
    AUTO(buf) struct buf text = BUF_INIT(1 << 16);
    add(&text, "0123456789", 10);
    bool wide = below(r, 2);
    add_text(r, &text, wide ? all : small, wide ? COUNT(all) : 1, 260);
    replace(&text, '\n', ' ');
    assert_ok(wordlist_add(&d->refs, text.data, text.len, &e), &e);
    for (uint32_t k = below(r, 6); k-- > 0;) {
        AUTO(pytext) struct pytext v = {NULL, 0};
        assert_ok(pytext_decode(buf_str(&text), text.len, &v, &e), &e);
        size_t at = below(r, v.n + 1);
        uint32_t kind = below(r, 3);
        size_t n = 1 + below(r, 12), behind = kind && at + n < v.n ? at + n : kind ? v.n : at;
        buf_clear(&text);
        add_chars(&text, v.v, at);
        AUTO(buf) struct buf new = BUF_INIT(1 << 16);
        wide = below(r, 2);
        add_text(r, &new, wide ? all : small, wide ? COUNT(all) : 1, 12);
        if (kind != 1)
            add(&text, buf_str(&new), new.len);
        add_chars(&text, v.v + behind, v.n - behind);
    }
    add(&d->pred, buf_str(&text), text.len);
}

/* ---- comparing ----------------------------------------------------------------------------
 */

static void draw_pieces(struct pyrandom *r, struct drawn *d, const char *const *refs,
                        uint32_t n_refs, const char *const *pieces, uint32_t n_pieces)
{
    struct error e = {0};
    for (const char *ref = refs[below(r, n_refs)]; *ref; ref += *ref == '|') {
        const size_t n = strcspn(ref, "|"); /* between the answers of one sample */
        assert_ok(wordlist_add(&d->refs, ref, n, &e), &e);
        ref += n;
    }
    for (uint32_t n = below(r, 9); n-- > 0;) {
        const char *piece = pieces[below(r, n_pieces)];
        add(&d->pred, piece, strlen(piece));
    }
}

static void draw_choice(struct pyrandom *r, struct drawn *d)
{
    static const char *const refs[] = {"A", "B", "C", "D"};
    static const char *const pieces[] = {"The correct answer is (",
                                         "The correct answer is ",
                                         "the correct answer is (",
                                         "*",
                                         "A",
                                         "B",
                                         "C",
                                         "E",
                                         ")",
                                         "**",
                                         "\n",
                                         " ",
                                         "(D)",
                                         "The correct answer is (A)",
                                         "x"};
    draw_pieces(r, d, refs, COUNT(refs), pieces, COUNT(pieces));
}

static void draw_ints(struct pyrandom *r, struct drawn *d)
{
    static const char *const refs[] = {"12", "7", "127", "001"};
    static const char *const pieces[] = {"12", "7",  " ",   "a",        "-",
                                         ".",  "\n", "001", "\xd9\xa3", "0"};
    draw_pieces(r, d, refs, COUNT(refs), pieces, COUNT(pieces));
}

static void draw_words(struct pyrandom *r, struct drawn *d)
{
    static const char *const refs[] = {"abc-1", "xyz", "\xc3\xa9", "abc-1xyz"};
    static const char *const pieces[] = {
        "abc-1", "\"",           ":", " ", "\n", "{", "xyz",      ".",    "\xc2\xa0",
        ",",     "\xe2\x80\x83", "}", "'", "!",  "?", "\xc3\xa9", "\x1c", "("};
    draw_pieces(r, d, refs, COUNT(refs), pieces, COUNT(pieces));
}

static void draw_last_int(struct pyrandom *r, struct drawn *d)
{
    static const char *const refs[] = {"12", "-5", "7", "10", "3"};
    static const char *const pieces[] = {
        "12", "-5", "7",  "+7", "1_0", "_",        " ",  "\n",       ".",
        "`",  "'",  "\"", ":",  "a",   "\xd9\xa3", "00", "\xc2\xa0", "The answer is "};
    draw_pieces(r, d, refs, COUNT(refs), pieces, COUNT(pieces));
}

static void draw_first_number(struct pyrandom *r, struct drawn *d)
{
    static const char *const refs[] = {"12", "3.5", "12.5", "3", "0", "5.0"};
    static const char *const pieces[] = {"12",       "3.5", ".",  "5", " ",    "a",
                                         "\xd9\xa3", "0",   "\n", "-", "12.50"};
    draw_pieces(r, d, refs, COUNT(refs), pieces, COUNT(pieces));
}

static void draw_numbers(struct pyrandom *r, struct drawn *d)
{
    static const char *const refs[] = {"1|2|3", "12|1", "2"};
    static const char *const pieces[] = {"1", "2", "12", " ",        ",", "[",
                                         "]", "-", "\n", "\xd9\xa3", "x", "03"};
    draw_pieces(r, d, refs, COUNT(refs), pieces, COUNT(pieces));
}

static void draw_upper_word(struct pyrandom *r, struct drawn *d)
{
    static const char *const refs[] = {"MARCUS", "SS", "MASS", "FIX", "S"};
    static const char *const pieces[] = {
        "marcus", "MARCUS", "Marcus",   " ",        "\n",           ".", ",",        "!",
        "{",      "ma",     "\xc3\x9f", "\xc5\xbf", "\xef\xac\x81", "x", "\xc2\xa0", ":"};
    draw_pieces(r, d, refs, COUNT(refs), pieces, COUNT(pieces));
}

static void draw_code_option(struct pyrandom *r, struct drawn *d)
{
    static const char *const refs[] = {"foo|A", "foo_bar|B", "A|C"};
    static const char *const pieces[] = {
        "A.",       "B:",      "A",          "B",   " ",       "\n",
        "Option",   "option",  "answer is:", "is:", "answer:", "correct option is:",
        "foo",      "foo_bar", "-",          "*",   "`",       "x",
        "\xc3\xa9", "The "};
    draw_pieces(r, d, refs, COUNT(refs), pieces, COUNT(pieces));
}

static void draw_option(struct pyrandom *r, struct drawn *d)
{
    static const char *const refs[] = {"Ann|A", "x y|B", "Bob|D"};
    static const char *const pieces[] = {
        "A",         "B",  "C", "D",          "AB",       "Ann",
        " ",         "\n", ".", "answer is:", "answer:",  "answer is",
        "option is", "x",  ",", "The ",       "\xc3\xa9", "'"};
    draw_pieces(r, d, refs, COUNT(refs), pieces, COUNT(pieces));
}

static void draw_f1_words(struct pyrandom *r, struct drawn *d)
{
    static const char *const refs[] = {"the cat", "cat dog|a dog", "ant", "\xc3\xa9 cat cat"};
    static const char *const pieces[] = {
        "the", "a",   "an",       "The",          " ",        "cat", "dog",
        ".",   "-",   "\n",       "\xe2\x80\x93", "\xc3\xa9", "A",   "\xcc\x81",
        "_",   "ant", "\xc2\xa0", "x\xc2\xb2"};
    draw_pieces(r, d, refs, COUNT(refs), pieces, COUNT(pieces));
}

static void draw_f1_chars(struct pyrandom *r, struct drawn *d)
{
    static const char *const refs[] = {"\xe4\xb8\xad\xe5\x9b\xbd",
                                       "\xe4\xb8\xad\xe6\x96\x87"
                                       "a|\xe5\x9b\xbd",
                                       "ab"};
    static const char *const pieces[] = {"\xe4\xb8\xad",
                                         "\xe5\x9b\xbd",
                                         "\xef\xbc\x8c",
                                         "\xe3\x80\x82",
                                         " ",
                                         "a",
                                         "A",
                                         "b",
                                         "\xef\xbc\x81",
                                         "\n",
                                         "\xe6\x96\x87",
                                         "\xe3\x80\x80",
                                         "x",
                                         "\xc2\xb7",
                                         "\xe2\x80\xa6"};
    draw_pieces(r, d, refs, COUNT(refs), pieces, COUNT(pieces));
}

static void draw_rouge_lsum(struct pyrandom *r, struct drawn *d)
{
    static const char *const refs[] = {"the cat\nsat on the dog",
                                       "dog dog cat|it sat\n12\n\nthe dog", "the\n.\nthe the"};
    static const char *const pieces[] = {
        "the cat", "the",    " ",    "\n",  "dog", ".",        "Cat", "\xc4\xb0",
        "-",       "sat 12", "\n\n", " on", "...", "\xc3\xa9", "it",  " the dog sat"};
    draw_pieces(r, d, refs, COUNT(refs), pieces, COUNT(pieces));
}

static void check_digest(struct hash *h, const char *want)
{
    uint8_t digest[HASH_BYTES];
    char hex[HEX_CHARS(HASH_BYTES)];
    hash_final(h, digest);
    hex_encode(digest, sizeof digest, hex);
    assert_string_equal(hex, want);
}

static void check(enum suite_metric metric, uint64_t seed,
                  void (*draw)(struct pyrandom *, struct drawn *), const struct scores *want)
{
    struct pyrandom r;
    struct hash texts, scores;
    struct error e = {0};
    struct drawn d = {.pred = BUF_INIT(1 << 20), .refs = WORDLIST_INIT};
    int n_not_zero = 0;
    pyrandom_init(&r, seed);
    hash_init(&texts, NULL, HASH_BYTES);
    hash_init(&scores, NULL, HASH_BYTES);
    for (size_t i = 0; i < N; i++) {
        struct metric_result got;
        uint64_t bits;
        buf_clear(&d.pred);
        wordlist_clear(&d.refs);
        draw(&r, &d);
        hash_add(&texts, buf_str(&d.pred), d.pred.len + 1);
        for (uint32_t k = 0; k < d.refs.n; k++) {
            size_t n;
            const char *word = wordlist_at(&d.refs, k, &n);
            hash_add(&texts, word, n);
            hash_add(&texts, "", 1);
        }
        assert_ok(metric_score(metric, buf_str(&d.pred), d.pred.len, &d.refs, &got, &e), &e);
        if (i < COUNT(want->first) &&
            !(got.score >= want->first[i] && got.score <= want->first[i]))
            fail_msg("text %zu \"%s\": %a, want %a", i, buf_str(&d.pred), got.score,
                     want->first[i]);
        memcpy(&bits, &got.score, sizeof bits);
        hash_u64le(&scores, bits);
        n_not_zero += got.score > 0;
        assert_true(!got.is_unparsable || got.score <= 0);
    }
    check_digest(&texts, want->texts);
    assert_int_equal(n_not_zero, want->n_not_zero);
    check_digest(&scores, want->all);
    buf_fini(&d.pred);
    wordlist_fini(&d.refs);
}

static void all_match_as_ruler(void **state)
{
    (void)state;
    check(SUITE_ALL_MATCH, 1, draw_match, &all_match_scores);
}

static void any_match_as_ruler(void **state)
{
    (void)state;
    check(SUITE_ANY_MATCH, 2, draw_match, &any_match_scores);
}

static void set_f1_as_python(void **state)
{
    (void)state;
    check(SUITE_SET_F1, 3, draw_set, &set_f1_scores);
}

static void ratio_as_difflib(void **state)
{
    (void)state;
    check(SUITE_RATIO, 4, draw_ratio, &ratio_scores);
}

static void choice_as_longbench(void **state)
{
    (void)state;
    check(SUITE_CHOICE, 5, draw_choice, &choice_scores);
}

static void first_int_and_word_as_infinitebench(void **state)
{
    (void)state;
    check(SUITE_FIRST_INT, 6, draw_ints, &first_int_scores);
    check(SUITE_WORD, 7, draw_words, &word_scores);
}

/* The scores are those of the original's own code: make_infinitebench_scores.py. */
static void nine_tasks_of_infinitebench(void **state)
{
    (void)state;
    check(SUITE_LAST_INT, 100, draw_last_int, &last_int_scores);
    check(SUITE_FIRST_NUMBER, 101, draw_first_number, &first_number_scores);
    check(SUITE_NUMBERS, 102, draw_numbers, &numbers_scores);
    check(SUITE_UPPER_WORD, 103, draw_upper_word, &upper_word_scores);
    check(SUITE_CODE_OPTION, 104, draw_code_option, &code_option_scores);
    check(SUITE_OPTION, 105, draw_option, &option_scores);
    check(SUITE_F1_WORDS, 106, draw_f1_words, &f1_words_scores);
    check(SUITE_F1_CHARS, 107, draw_f1_chars, &f1_chars_scores);
    check(SUITE_ROUGE_LSUM, 108, draw_rouge_lsum, &rouge_lsum_scores);
}

/* ---- lower case ---------------------------------------------------------------------------
 */

static void lower(const struct buf *s, struct buf *out)
{
    struct error e = {0};
    buf_clear(out);
    assert_ok(pytext_lower(buf_str(s), s->len, out, &e), &e);
}

/* Every character that Python 3.11 maps; blocks that were given capitals later left out. */
static void lower_of_every_character(void **state)
{
    (void)state;
    static const uint32_t later[][2] = {{0xa7cb, 0xa7cf},   {0xa7d2, 0xa7d5},
                                        {0xa7da, 0xa7df},   {0x1c89, 0x1c8a},
                                        {0x10d50, 0x10d65}, {0x16ea0, 0x16eb8}};
    AUTO(buf) struct buf c = BUF_INIT(64);
    AUTO(buf) struct buf low = BUF_INIT(64);
    struct hash h;
    hash_init(&h, NULL, HASH_BYTES);
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        bool skip = cp >= 0xd800 && cp <= 0xdfff;
        for (size_t i = 0; i < COUNT(later); i++)
            skip |= cp >= later[i][0] && cp <= later[i][1];
        if (skip)
            continue;
        buf_clear(&c);
        add_chars(&c, &cp, 1);
        lower(&c, &low);
        if (low.len == c.len && !memcmp(low.data, c.data, c.len))
            continue;
        hash_add(&h, c.data, c.len);
        hash_add(&h, low.data, low.len);
        hash_add(&h, "\n", 1);
    }
    check_digest(&h, LOWER_OF_ALL);
}

/* A sigma in front of, behind and between each character and a letter. */
static void sigma_at_the_end_of_words(void **state)
{
    (void)state;
    AUTO(buf) struct buf s = BUF_INIT(256);
    AUTO(buf) struct buf low = BUF_INIT(256);
    struct hash h;
    hash_init(&h, NULL, HASH_BYTES);
    for (uint32_t cp = 1; cp < 0x590; cp++) {
        const uint32_t text[] = {'a', 0x3a3, cp,  ' ', cp,    0x3a3, ' ', 'a',
                                 cp,  0x3a3, ' ', 'a', 0x3a3, cp,    'a'};
        buf_clear(&s);
        add_chars(&s, text, COUNT(text));
        lower(&s, &low);
        hash_add(&h, low.data, low.len);
    }
    check_digest(&h, LOWER_OF_SIGMA);
}

/* ---- kinds of answers ---------------------------------------------------------------------
 */

static struct metric_result score(enum suite_metric metric, const char *text,
                                  const char *answer)
{
    AUTO(wordlist) struct wordlist answers = WORDLIST_INIT;
    struct metric_result out;
    struct error e = {0};
    assert_ok(wordlist_add(&answers, answer, strlen(answer), &e), &e);
    assert_ok(metric_score(metric, text, strlen(text), &answers, &out, &e), &e);
    return out;
}

static void empty_and_unparsable_are_told_apart(void **state)
{
    (void)state;
    struct metric_result got = score(SUITE_ALL_MATCH, " \n\t", "x");
    assert_true(got.is_empty && !got.is_unparsable && got.score <= 0);
    got = score(SUITE_SET_F1, "The nodes are a and b.", "a");
    assert_true(!got.is_empty && got.is_unparsable && got.score <= 0);
    got = score(SUITE_SET_F1, "Final Answer: []", "a");
    assert_true(!got.is_unparsable && got.score <= 0);
    got = score(SUITE_SET_F1, "Final Answer: [a]\nwhich is all", "a");
    assert_true(got.is_unparsable);
    got = score(SUITE_SET_F1, "so\nFinal Answer: [ a ]\n\n", "a");
    assert_true(got.score >= 1);
    got = score(SUITE_RATIO, "0123456788abc", "0123456789abc");
    assert_true(got.is_unparsable && got.score <= 0);
    got = score(SUITE_RATIO, "0123456789abc", "0123456789abc");
    assert_true(got.score >= 1);
}

static void what_cannot_be_scored(void **state)
{
    (void)state;
    AUTO(wordlist) struct wordlist none = WORDLIST_INIT;
    struct metric_result out;
    struct error e = {0};
    assert_int_equal(metric_score(SUITE_ALL_MATCH, "x", 1, &none, &out, &e), ERR_INVAL);
    assert_ok(wordlist_add(&none, "x", 1, &e), &e);
    assert_ok(wordlist_add(&none, "y", 1, &e), &e);
    assert_int_equal(metric_score(SUITE_RATIO, "x", 1, &none, &out, &e), ERR_INVAL);
    assert_int_equal(metric_of("set_f1"), SUITE_SET_F1);
    assert_int_equal(metric_of("other"), SUITE_N_METRICS);
}

static void ratio_of_nothing_and_of_order(void **state)
{
    (void)state;
    double r = 0, s = 0;
    struct error e = {0};
    const uint32_t a[] = {'t', 'i', 'd', 'e'}, b[] = {'d', 'i', 'e', 't'};
    assert_ok(difflib_ratio(a, 0, b, 0, &r, &e), &e);
    assert_true(r >= 1);
    assert_ok(difflib_ratio(a, 4, b, 0, &r, &e), &e);
    assert_true(r <= 0);
    assert_ok(difflib_ratio(a, 4, b, 4, &r, &e), &e);
    assert_ok(difflib_ratio(b, 4, a, 4, &s, &e), &e);
    assert_true(r > 0.249 && r < 0.251 && s > 0.499 && s < 0.501); /* Python's documentation */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_match_as_ruler),
        cmocka_unit_test(any_match_as_ruler),
        cmocka_unit_test(set_f1_as_python),
        cmocka_unit_test(ratio_as_difflib),
        cmocka_unit_test(choice_as_longbench),
        cmocka_unit_test(first_int_and_word_as_infinitebench),
        cmocka_unit_test(nine_tasks_of_infinitebench),
        cmocka_unit_test(lower_of_every_character),
        cmocka_unit_test(sigma_at_the_end_of_words),
        cmocka_unit_test(empty_and_unparsable_are_told_apart),
        cmocka_unit_test(what_cannot_be_scored),
        cmocka_unit_test(ratio_of_nothing_and_of_order),
    };
    return !!cmocka_run_group_tests(tests, NULL, NULL);
}
