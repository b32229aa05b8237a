/* RULER against digests of what the original wrote (make_ruler_digests.py). */
#include "tests/support/test.h"

#include "base/encode.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/json.h"
#include "evals/ruler.h"

#define DIGESTS "tests/evals/ruler_digests.txt"
#define SMALL "tests/evals/tokenizer_small"
#define N_BYTE_IDS 257 /* of a tokenizer before its merges: one added token, 256 bytes */
#define BOUNDED 300000 /* tokens of a line that is checked without AGENTD_SLOW */

/* ---- word lists, as make_ruler_digests.py makes them --------------------------------------
 */

static char folder[] = "/tmp/agentd-ruler-XXXXXX";

static void made_word(uint32_t i, uint32_t n, char *out)
{
    static const char *const letters[] = {"bcdfghjklmnprstvwz", "aeiou"};
    uint32_t x = i;
    for (uint32_t k = 0; k < n; k++) {
        x = x * 1664525 + 1013904223;
        out[k] = letters[k % 2][(x >> 16) % strlen(letters[k % 2])];
    }
    out[n] = 0;
}

static FILE *make(const char *name)
{
    char path[FS_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    return f;
}

static void make_list(const char *name, uint32_t salt, uint32_t n)
{
    FILE *f = make(name);
    for (uint32_t i = 0; i < n; i++) {
        char word[16], before[16] = "";
        made_word(1000 * salt + i, 4 + i % 5, word);
        if (i % 40 == 7)
            made_word(1000 * salt + i - 1, 4 + (i - 1) % 5, before);
        fprintf(f, "%s%s%s%s%s%s", before, *before ? "-" : "", word,
                i % 50 == 9 ? "\xc3\xb1o" : "", i % 60 == 11 ? " " : "",
                i % 70 == 13 ? "\r\n" : "\n");
    }
    fclose(f);
}

static int make_lists(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    make_list("adjectivelist.txt", 0, 150);
    make_list("nounlist.txt", 1, 700);
    make_list("verblist.txt", 2, 200);
    FILE *f = make("english_words.json");
    for (uint32_t i = 0; i < 60000; i++) {
        char word[16];
        made_word(77777 + i, 3 + i % 9, word);
        fprintf(f, "%s\"%u\": \"%s\"", i ? ", " : "{", i, word);
    }
    fprintf(f, "}");
    fclose(f);
    return 0;
}

static int drop_lists(void **state)
{
    (void)state;
    static const char *const names[] = {"adjectivelist.txt", "nounlist.txt", "verblist.txt",
                                        "english_words.json"};
    char path[FS_PATH_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

/* ---- tokenizers ---------------------------------------------------------------------------
 */

/* tokenizer_small with other merges: FILE has one a line, in the order of their ids. */
static json_t *with_merges(const char *file)
{
    char path[FS_PATH_BYTES], line[256], joined[256];
    snprintf(path, sizeof path, "%s/tokenizer.json", SMALL);
    json_t *j = json_load_file(path, 0, NULL);
    json_t *model = json_object_get(j, "model"), *merges = json_array(), *id;
    json_t *vocab = json_object_get(model, "vocab");
    const char *token;
    void *next;
    assert_non_null(vocab);
    json_object_foreach_safe(vocab, next, token, id) {
        if (json_integer_value(id) >= N_BYTE_IDS)
            json_object_del(vocab, token);
    }
    assert_int_equal(json_object_size(vocab), N_BYTE_IDS);
    FILE *f = fopen(file, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        char *second = strchr(line, ' ');
        assert_non_null(second);
        *second++ = 0;
        second[strcspn(second, "\n")] = 0;
        snprintf(joined, sizeof joined, "%s%s", line, second);
        json_object_set_new(vocab, joined, json_integer((json_int_t)json_object_size(vocab)));
        json_array_append_new(merges, json_pack("[s, s]", line, second));
    }
    fclose(f);
    json_object_set_new(model, "merges", merges);
    return j;
}

/* By its name in DIGESTS. */
static struct tokenizer *open_tokenizer(const char *name)
{
    struct tokenizer *t = NULL;
    struct error e = {0};
    char merges[FS_PATH_BYTES];
    snprintf(merges, sizeof merges, "tests/evals/ruler_%s_merges.txt", name);
    if (access(merges, F_OK)) {
        const bool small = !strcmp(name, "small");
        assert_ok(tokenizer_open(&t, small ? SMALL : GOLDEN "e_encoding", &e), &e);
        return t;
    }
    AUTO(buf) struct buf text = BUF_INIT(4u << 20);
    json_auto_t *j = with_merges(merges);
    assert_ok(json_write(j, 0, &text, &e), &e);
    assert_ok(tokenizer_parse(&t, text.data, text.len, &e), &e);
    return t;
}

/* ---- digests ------------------------------------------------------------------------------
 */

struct sink {
    struct hash hash;
    size_t n_bytes, n_lines;
};

static enum err add_line(void *user, const struct ruler_sample *s, struct error *e)
{
    struct sink *k = user;
    AUTO(buf) struct buf line = BUF_INIT(64u << 20);
    enum err rc = ruler_line(s, &line, e);
    if (rc)
        return rc;
    hash_add(&k->hash, line.data, line.len);
    k->n_bytes += line.len;
    k->n_lines++;
    return OK;
}

/* One line of the file. Returns whether it was checked. */
static bool check(const char *line, const char *words_dir)
{
    char tokenizer[32], words[32], task[32], want[80], hex[HEX_CHARS(HASH_BYTES)];
    unsigned n_tokens, n_samples;
    size_t n_bytes;
    assert_int_equal(sscanf(line, "%31s %31s %31s %u %u %zu %79s", tokenizer, words, task,
                            &n_tokens, &n_samples, &n_bytes, want),
                     7);
    /* vt and fwe read no list. */
    const bool made = !strcmp(words, "made") || !strcmp(task, "vt") || !strcmp(task, "fwe");
    if (!made && !words_dir)
        return false;
    if ((uint64_t)n_tokens * n_samples > BOUNDED && !getenv("AGENTD_SLOW"))
        return false;
    struct tokenizer *t = open_tokenizer(tokenizer);
    struct error e = {0};
    char paths[4][FS_PATH_BYTES];
    static const char *const names[] = {"nounlist.txt", "adjectivelist.txt", "verblist.txt",
                                        "english_words.json"};
    for (int i = 0; i < 4; i++)
        snprintf(paths[i], sizeof paths[i], "%s/%s", made || i == 3 ? folder : words_dir,
                 names[i]);
    struct ruler_options o = {.task = ruler_task_of(task),
                              .n_tokens = n_tokens,
                              .n_samples = n_samples,
                              .seed = 42,
                              .tokenizer = t,
                              .nouns = paths[0],
                              .adjectives = paths[1],
                              .verbs = paths[2],
                              .english_words = paths[3]};
    struct sink k = {.n_bytes = 0};
    hash_init(&k.hash, NULL, HASH_BYTES);
    enum err rc = ruler_generate(&o, add_line, &k, &e);
    if (rc)
        fail_msg("%s: %s", line, e.msg);
    uint8_t digest[HASH_BYTES];
    hash_final(&k.hash, digest);
    hex_encode(digest, sizeof digest, hex);
    if (k.n_lines != n_samples || k.n_bytes != n_bytes || strcmp(hex, want))
        fail_msg("%s: have %zu lines, %zu bytes, %s", line, k.n_lines, k.n_bytes, hex);
    tokenizer_free(t);
    return true;
}

static void check_all(const char *words, const char *words_dir)
{
    FILE *f = fopen(DIGESTS, "r");
    assert_non_null(f);
    char line[256];
    int n = 0;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (*line != '#' && *line && strstr(line, words))
            n += check(line, words_dir);
    }
    fclose(f);
    assert_true(n > 5);
}

static void equals_the_original(void **state)
{
    (void)state;
    check_all(" made ", NULL);
}

/* With the package's lists, where they are: AGENTD_WONDERWORDS=.../wonderwords/assets. Without,
 * the tasks that read none. */
static void equals_the_original_on_its_words(void **state)
{
    (void)state;
    check_all(" wonderwords ", getenv("AGENTD_WONDERWORDS"));
}

/* ---- errors -------------------------------------------------------------------------------
 */

static enum err refuse(void *user, const struct ruler_sample *s, struct error *e)
{
    (void)user;
    return err_set(e, ERR_CANCELLED, "enough at %llu", (unsigned long long)s->ordinal);
}

static void what_cannot_be_made(void **state)
{
    (void)state;
    struct tokenizer *t = NULL;
    struct error e = {0};
    assert_ok(tokenizer_open(&t, GOLDEN "e_encoding", &e), &e);
    struct ruler_options o = {
        .task = RULER_VT, .n_tokens = 4096, .n_samples = 1, .seed = 42, .tokenizer = t};
    /* The example alone is longer than the 500 tokens it may have: the original never ends. */
    assert_int_equal(ruler_generate(&o, refuse, NULL, &e), ERR_LIMIT);
    assert_non_null(strstr(e.msg, "vt: no sample fits"));
    o.task = RULER_NIAH_SINGLE_1;
    assert_int_equal(ruler_generate(&o, refuse, NULL, &e), ERR_INVAL);
    assert_non_null(strstr(e.msg, "nouns and adjectives"));
    o.nouns = o.adjectives = "/nonexistent/list";
    assert_int_equal(ruler_generate(&o, refuse, NULL, &e), ERR_NOTFOUND);
    o.task = RULER_FWE;
    assert_int_equal(ruler_generate(&o, refuse, NULL, &e), ERR_CANCELLED);
    o.n_tokens = 100;
    assert_int_equal(ruler_generate(&o, refuse, NULL, &e), ERR_INVAL);
    tokenizer_free(t);
}

static void a_word_list_too_small(void **state)
{
    (void)state;
    char paths[3][FS_PATH_BYTES];
    static const char *const names[] = {"nounlist.txt", "adjectivelist.txt", "verblist.txt"};
    struct tokenizer *t = NULL;
    struct error e = {0};
    assert_ok(tokenizer_open(&t, GOLDEN "e_encoding", &e), &e);
    for (int i = 0; i < 3; i++)
        snprintf(paths[i], sizeof paths[i], "%s/%s", folder, names[i]);
    const struct ruler_options o = {.task = RULER_CWE,
                                    .n_tokens = 4096,
                                    .n_samples = 1,
                                    .tokenizer = t,
                                    .nouns = paths[0],
                                    .adjectives = paths[1],
                                    .verbs = paths[2]};
    assert_int_equal(ruler_generate(&o, refuse, NULL, &e), ERR_INVAL);
    assert_non_null(strstr(e.msg, "english_words.json"));
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_original),
        cmocka_unit_test(equals_the_original_on_its_words),
        cmocka_unit_test(what_cannot_be_made),
        cmocka_unit_test(a_word_list_too_small),
    };
    return !!cmocka_run_group_tests(tests, make_lists, drop_lists);
}
