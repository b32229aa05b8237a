#include "evals/ruler.h"

#include <string.h>

#include "engine/unicode.h"
#include "evals/ruler_internal.h"

/* The original tries for ever; samples of a size differ in length by chance only, so that one
 * which is too long this often never fits. */
#define MAX_TRIES 10000

const char *const ruler_task_names[RULER_N_TASKS] = {
    "niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe",
};

enum ruler_task ruler_task_of(const char *name)
{
    enum ruler_task t = 0;
    while (t < RULER_N_TASKS && strcmp(name, ruler_task_names[t]) != 0)
        t++;
    return t;
}

/* ---- size ------------------------------------------------------------------------------- */

enum err ruler_count(struct ruler *r, const void *text, size_t n, uint64_t *out,
                     struct error *e)
{
    r->ids.n = 0;
    enum err rc = tokenizer_encode(r->o->tokenizer, text, n, &r->ids, e);
    if (!rc)
        *out = r->ids.n;
    return rc;
}

enum err ruler_estimate(struct ruler *r, struct ruler_fit *fit, struct error *e)
{
    uint64_t n = 0;
    enum err rc = fit->draw(r, fit->task, fit->step, e);
    if (!rc)
        rc = ruler_count(r, r->text.data, r->text.len, &n, e);
    if (rc)
        return rc;
    double per_unit = (double)n / fit->step;
    uint32_t upper = (uint32_t)((double)fit->n_tokens / per_unit * 3);
    fit->upper = upper > 2 * fit->step ? upper : 2 * fit->step;
    return OK;
}

enum err ruler_search(struct ruler *r, const struct ruler_fit *fit, uint32_t *size,
                      struct error *e)
{
    uint32_t low = fit->step, high = fit->upper, best = fit->step;
    while (low <= high) {
        uint32_t mid = (low + high) / 2;
        uint64_t n = 0;
        enum err rc = fit->draw(r, fit->task, mid, e);
        if (!rc)
            rc = ruler_count(r, r->text.data, r->text.len, &n, e);
        if (rc)
            return rc;
        if (n + fit->overhead <= fit->n_tokens) {
            best = mid;
            low = mid + 1;
        } else {
            high = mid - 1;
        }
    }
    *size = best;
    return OK;
}

enum err ruler_draw_fitting(struct ruler *r, const struct ruler_fit *fit, uint32_t size,
                            uint64_t *length, struct error *e)
{
    uint64_t n = 0;
    for (int i = 0; i < MAX_TRIES; i++) {
        enum err rc = fit->draw(r, fit->task, size, e);
        if (!rc) {
            if ((rc = ruler_count(r, r->text.data, r->text.len, &n, e)))
                return rc;
            if (n + fit->overhead <= fit->n_tokens) {
                *length = n + fit->overhead;
                return OK;
            }
        } else if (rc != ERR_CONFLICT) {
            return rc;
        }
        if (size > fit->step)
            size -= fit->step;
    }
    return err_set(e, ERR_LIMIT,
                   "%s: no sample fits %llu tokens (the shortest one tried has %llu)",
                   ruler_task_names[r->o->task], (unsigned long long)fit->n_tokens,
                   (unsigned long long)(n + fit->overhead));
}

/* ---- samples ---------------------------------------------------------------------------- */

enum err ruler_emit(struct ruler *r, struct ruler_sample *s, const char *prefix_mark,
                    struct error *e)
{
    const char *text = buf_str(&r->text), *cut = NULL;
    size_t n_mark = strlen(prefix_mark);
    for (size_t at = r->text.len - n_mark + 1; at-- && !cut;)
        cut = memcmp(text + at, prefix_mark, n_mark) ? NULL : text + at;
    if (!cut)
        return err_set(e, ERR_FORMAT, "%s: the prompt has no answer prefix",
                       ruler_task_names[r->o->task]);
    s->input = text;
    s->n_input = (size_t)(cut - text);
    s->answer_prefix = cut;
    s->n_answer_prefix = r->text.len - s->n_input;
    s->outputs = &r->outputs;
    return r->fn(r->user, s, e);
}

static void ruler_fini(struct ruler *r)
{
    buf_fini(&r->text);
    wordlist_fini(&r->outputs);
    wordlist_fini(&r->lines);
    ids_fini(&r->ids);
}

enum err ruler_generate(const struct ruler_options *o, ruler_fn *fn, void *user,
                        struct error *e)
{
    static enum err (*const tasks[RULER_N_TASKS])(struct ruler *, struct error *) = {
        ruler_niah, ruler_niah, ruler_niah, ruler_vt, ruler_cwe, ruler_fwe,
    };
    if ((unsigned)o->task >= RULER_N_TASKS || o->n_tokens < 512 || o->n_tokens > 1u << 22)
        return err_set(e, ERR_INVAL, "RULER: length %u, want 512..%u", o->n_tokens, 1u << 22);
    AUTO(ruler)
    struct ruler r = {.o = o,
                      .fn = fn,
                      .user = user,
                      .text = BUF_INIT(RULER_MAX_TEXT_BYTES),
                      .outputs = WORDLIST_INIT,
                      .lines = WORDLIST_INIT,
                      .ids = IDS_INIT(RULER_MAX_TOKENS)};
    pyrandom_init(&r.py, o->seed);
    nprandom_init(&r.np, o->seed);
    return tasks[o->task](&r, e);
}

/* ---- lines ------------------------------------------------------------------------------ */

/* A JSON string as json.dumps writes it by default: all but printable ASCII as \u escapes. */
static enum err add_string(struct buf *out, const char *s, size_t n, struct error *e)
{
    static const char named[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
    enum err rc = buf_add_byte(out, '"', e);
    for (size_t i = 0, plain = 0; i <= n && !rc;) {
        uint32_t cp = 0;
        unsigned len = i < n ? utf8_decode((const uint8_t *)s + i, n - i, &cp) : 1;
        if (!len)
            return err_set(e, ERR_FORMAT, "JSON string: byte %zu is not UTF-8", i);
        const char *name = i < n && cp && cp < 0x80 ? strchr(named, (int)cp) : NULL;
        if (i < n && cp >= 0x20 && cp < 0x7f && !name) {
            i++;
            continue;
        }
        rc = buf_add(out, s + plain, i - plain, e);
        if (i < n && !rc) {
            if (name)
                rc = buf_printf(out, e, "\\%c", letters[name - named]);
            else if (cp < 0x10000)
                rc = buf_printf(out, e, "\\u%04x", cp);
            else
                rc = buf_printf(out, e, "\\u%04x\\u%04x", 0xd7c0 + (cp >> 10),
                                0xdc00 + (cp & 0x3ff));
        }
        plain = i += len;
    }
    return rc ? rc : buf_add_byte(out, '"', e);
}

static enum err add_outputs(struct buf *out, const struct wordlist *outputs, struct error *e)
{
    enum err rc = buf_add_str(out, ", \"outputs\": [", e);
    for (uint32_t i = 0; i < outputs->n && !rc; i++) {
        size_t n;
        const char *word = wordlist_at(outputs, i, &n);
        if (i)
            rc = buf_add_str(out, ", ", e);
        if (!rc)
            rc = add_string(out, word, n, e);
    }
    return rc;
}

enum err ruler_line(const struct ruler_sample *s, struct buf *out, struct error *e)
{
    enum err rc = buf_printf(out, e, "{\"index\": %lld, \"input\": ", (long long)s->index);
    if (!rc)
        rc = add_string(out, s->input, s->n_input, e);
    if (!rc)
        rc = add_outputs(out, s->outputs, e);
    if (!rc)
        rc = buf_printf(
            out, e, "], \"length\": %llu, \"length_w_model_temp\": %llu, \"answer_prefix\": ",
            (unsigned long long)s->length, (unsigned long long)s->length);
    if (!rc)
        rc = add_string(out, s->answer_prefix, s->n_answer_prefix, e);
    if (!rc && s->token_position_answer >= 0)
        rc = buf_printf(out, e, ", \"token_position_answer\": %lld",
                        (long long)s->token_position_answer);
    return rc ? rc : buf_add_str(out, "}\n", e);
}
