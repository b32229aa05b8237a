/* RULER, needle tasks. Texts: NVIDIA/RULER, Apache-2.0 (see ruler.h). */
#include <string.h>

#include "engine/unicode.h"
#include "evals/ruler_internal.h"

#define STEP 25
#define STEP_SHORT 5 /* below 4,096 tokens */
#define N_GENERATE 128
#define PREFIX_MARK " The speci"

static const char noise[] =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. "
    "There and back again.";

enum part { WORD, NUMBER, UUID };

struct niah {
    struct word_pairs words; /* key words, if keys are words */
    struct buf key, value;   /* of the needle asked for */
    struct buf line;
    enum part key_part, value_part;
    bool is_noise; /* the haystack is the noise sentence, not other needles */
};

static void niah_fini(struct niah *t)
{
    word_pairs_fini(&t->words);
    buf_fini(&t->key);
    buf_fini(&t->value);
    buf_fini(&t->line);
}

static enum err add_uuid(struct pyrandom *py, struct buf *out, struct error *e)
{
    uint64_t v[2];
    pyrandom_u128(py, v);
    uint64_t low = (v[0] & ~(UINT64_C(3) << 62)) | UINT64_C(1) << 63; /* variant */
    uint64_t high = (v[1] & ~UINT64_C(0xf000)) | 0x4000;              /* version 4 */
    return buf_printf(
        out, e, "%08llx-%04llx-%04llx-%04llx-%012llx", (unsigned long long)(high >> 32),
        (unsigned long long)(high >> 16 & 0xffff), (unsigned long long)(high & 0xffff),
        (unsigned long long)(low >> 48), (unsigned long long)(low & 0xffffffffffff));
}

static enum err add_part(struct ruler *r, struct niah *t, enum part part, struct buf *out,
                         struct error *e)
{
    switch (part) {
    case WORD:
        return word_pairs_add(&t->words, pyrandom_below(&r->py, (uint32_t)t->words.n), out, e);
    case NUMBER:
        return buf_printf(out, e, "%u", 1000000 + pyrandom_below(&r->py, 9000000));
    case UUID:
        break;
    }
    return add_uuid(&r->py, out, e);
}

static const char *plural(const struct niah *t)
{
    return t->value_part == NUMBER ? "numbers" : "uuids";
}

/* Writes a needle to t->line. */
static enum err make_needle(struct niah *t, const struct buf *key, const struct buf *value,
                            struct error *e)
{
    buf_clear(&t->line);
    return buf_printf(&t->line, e, "One of the special magic %s for %s is: %s.", plural(t),
                      buf_str(key), buf_str(value));
}

static enum err draw_haystack(struct ruler *r, struct niah *t, uint32_t size, struct error *e)
{
    AUTO(buf) struct buf key = BUF_INIT(WORDLIST_MAX_BYTES);
    AUTO(buf) struct buf value = BUF_INIT(64);
    enum err rc = OK;
    wordlist_clear(&r->lines);
    for (uint32_t i = 0; i < size && !rc; i++) {
        if (t->is_noise) {
            rc = wordlist_add(&r->lines, noise, sizeof noise - 1, e);
            continue;
        }
        buf_clear(&key);
        buf_clear(&value);
        rc = add_part(r, t, t->key_part, &key, e);
        if (!rc)
            rc = add_part(r, t, t->value_part, &value, e);
        if (!rc)
            rc = make_needle(t, &key, &value, e);
        if (!rc)
            rc = wordlist_add(&r->lines, buf_str(&t->line), t->line.len, e);
    }
    return rc;
}

/* Puts the prompt together: the needle stands in front of haystack line `at`. */
static enum err write_prompt(struct ruler *r, struct niah *t, uint32_t at, struct error *e)
{
    const char *kind = t->value_part == NUMBER ? "number" : "uuid", *key = buf_str(&t->key);
    const struct buf *hay = &r->lines.text;
    size_t cut = r->lines.starts[at];
    enum err rc = make_needle(t, &t->key, &t->value, e);
    buf_clear(&r->text);
    if (!rc)
        rc = buf_printf(&r->text, e,
                        "A special magic %s is hidden within the following text. Make sure to "
                        "memorize it. I will quiz you about the %s afterwards.\n",
                        kind, kind);
    if (!rc)
        rc = buf_add(&r->text, hay->data, cut, e);
    if (!rc)
        rc = buf_printf(&r->text, e, "%s\n", buf_str(&t->line));
    if (!rc)
        rc = buf_add(&r->text, hay->data + cut, hay->len - cut, e);
    if (!rc)
        rc = buf_printf(&r->text, e,
                        "What is the special magic %s for %s mentioned in the provided text? "
                        "The special magic %s for %s mentioned in the provided text is",
                        kind, key, kind, key);
    return rc;
}

static enum err draw(struct ruler *r, void *task, uint32_t size, struct error *e)
{
    struct niah *t = task;
    uint32_t at, query;
    buf_clear(&t->key);
    buf_clear(&t->value);
    enum err rc = add_part(r, t, t->key_part, &t->key, e);
    if (!rc)
        rc = add_part(r, t, t->value_part, &t->value, e);
    if (!rc)
        rc = draw_haystack(r, t, size, e);
    if (!rc)
        rc = pyrandom_sample(&r->py, size, 1, &at, e);
    if (!rc) /* which key to ask for: there is one, but it is drawn */
        rc = pyrandom_sample(&r->py, 1, 1, &query, e);
    if (!rc)
        rc = write_prompt(r, t, at, e);
    wordlist_clear(&r->outputs);
    return rc ? rc : wordlist_add(&r->outputs, buf_str(&t->value), t->value.len, e);
}

/* Where the answer is first met, in characters and in tokens. */
static enum err find_answer(struct ruler *r, const struct niah *t, struct ruler_sample *s,
                            struct error *e)
{
    const uint8_t *text = r->text.data;
    const uint8_t *found = memmem(text, r->text.len, t->value.data, t->value.len);
    if (!found)
        return err_set(e, ERR_FORMAT, "needle task: the prompt does not hold its answer");
    uint64_t n_tokens = 0;
    enum err rc = ruler_count(r, text, (size_t)(found - text), &n_tokens, e);
    s->token_position_answer = (int64_t)n_tokens;
    s->index = 0;
    for (const uint8_t *p = text; p < found; p += utf8_length(*p))
        s->index++;
    return rc;
}

static enum err load_words(struct ruler *r, struct niah *t, struct error *e)
{
    AUTO(wordlist) struct wordlist nouns = WORDLIST_INIT;
    AUTO(wordlist) struct wordlist adjectives = WORDLIST_INIT;
    if (!r->o->nouns || !r->o->adjectives)
        return err_set(e, ERR_INVAL, "%s needs lists of nouns and adjectives",
                       ruler_task_names[r->o->task]);
    enum err rc = wordlist_load_lines(&nouns, r->o->nouns, e);
    if (!rc)
        rc = wordlist_load_lines(&adjectives, r->o->adjectives, e);
    return rc ? rc : word_pairs_init(&t->words, &adjectives, &nouns, e);
}

enum err ruler_niah(struct ruler *r, struct error *e)
{
    AUTO(niah)
    struct niah t = {
        .key = BUF_INIT(WORDLIST_MAX_BYTES),
        .value = BUF_INIT(64),
        .line = BUF_INIT(WORDLIST_MAX_BYTES),
        .key_part = r->o->task == RULER_NIAH_MULTIKEY_3 ? UUID : WORD,
        .value_part = r->o->task == RULER_NIAH_MULTIKEY_3 ? UUID : NUMBER,
        .is_noise = r->o->task == RULER_NIAH_SINGLE_1,
    };
    struct ruler_fit fit = {.draw = draw,
                            .task = &t,
                            .step = r->o->n_tokens < 4096 ? STEP_SHORT : STEP,
                            .overhead = N_GENERATE,
                            .n_tokens = r->o->n_tokens};
    uint32_t size = 0;
    enum err rc = t.key_part == WORD ? load_words(r, &t, e) : OK;
    if (!rc)
        rc = ruler_estimate(r, &fit, e);
    if (!rc)
        rc = ruler_search(r, &fit, &size, e);
    for (uint32_t i = 0; i < r->o->n_samples && !rc; i++) {
        struct ruler_sample s = {.ordinal = i, .n_tokens_to_generate = N_GENERATE};
        rc = ruler_draw_fitting(r, &fit, size, &s.length, e);
        if (!rc)
            rc = find_answer(r, &t, &s, e);
        if (!rc)
            rc = ruler_emit(r, &s, PREFIX_MARK, e);
    }
    return rc;
}
