#include "evals/suite.h"

#include <errno.h>
#include <string.h>

#include "base/encode.h"
#include "base/fs.h"
#include "engine/pyjson.h"

#define MAX_TOKENIZER_BYTES ((size_t)64 << 20)

const char *const suite_metric_names[SUITE_N_METRICS] = {
    "all_match", "any_match", "set_f1",       "ratio",     "choice",     "first_int",
    "word",      "last_int",  "first_number", "numbers",   "upper_word", "code_option",
    "option",    "f1_words",  "f1_chars",     "rouge_lsum"};

/* ---- writing ---------------------------------------------------------------------------- */

enum err suite_tokenizer_digest(const char *model, uint8_t out[HASH_BYTES], struct error *e)
{
    char path[FS_PATH_BYTES];
    AUTO(buf) struct buf file = BUF_INIT(MAX_TOKENIZER_BYTES);
    enum err rc = fs_path(path, sizeof path, e, "%s/tokenizer.json", model);
    if (!rc)
        rc = fs_read_file(path, &file, e);
    if (!rc)
        hash_bytes(NULL, file.data, file.len, out);
    return rc;
}

static enum err begin(struct suite_file *f, const char *dir, const char *name, struct error *e)
{
    char path[FS_PATH_BYTES];
    enum err rc = fs_path(path, sizeof path, e, "%s/%s", dir, name);
    if (rc)
        return rc;
    hash_init(&f->hash, NULL, HASH_BYTES);
    f->f = fopen(path, "we");
    return f->f ? OK : err_sys(e, errno, "%s", path);
}

enum err suite_writer_open(struct suite_writer *w, const char *dir, const char *suite,
                           uint32_t version, uint64_t seed, const uint8_t tokenizer[HASH_BYTES],
                           struct error *e)
{
    char path[FS_PATH_BYTES];
    *w = (struct suite_writer){.suite = suite,
                               .version = version,
                               .seed = seed,
                               .dir = strdup(dir),
                               .line = BUF_INIT(SUITE_MAX_LINE_BYTES)};
    memcpy(w->tokenizer, tokenizer, HASH_BYTES);
    if (!w->dir)
        return err_set(e, ERR_NOMEM, "no memory for a path");
    enum err rc = fs_mkdir_p(dir, e);
    if (!rc)
        rc = fs_path(path, sizeof path, e, "%s/suite.json", dir);
    if (!rc && !access(path, F_OK))
        rc = err_set(e, ERR_CONFLICT, "%s: a finished suite is there", dir);
    if (!rc)
        rc = begin(&w->contexts, dir, "contexts.jsonl", e);
    return rc ? rc : begin(&w->samples, dir, "samples.jsonl", e);
}

static enum err end_line(struct suite_writer *w, struct suite_file *f, struct error *e)
{
    enum err rc = buf_add_str(&w->line, "}\n", e);
    if (rc)
        return rc;
    hash_add(&f->hash, w->line.data, w->line.len);
    f->n++;
    if (fwrite(w->line.data, 1, w->line.len, f->f) != w->line.len)
        return err_sys(e, errno, "%s: write", w->dir);
    return OK;
}

static enum err add_field(struct buf *out, const char *name, const void *text, size_t n,
                          struct error *e)
{
    enum err rc = buf_printf(out, e, "%s\"%s\": ", out->len ? ", " : "{", name);
    return rc ? rc : pyjson_string(text, n, out, e);
}

enum err suite_add_context(struct suite_writer *w, const char *id, uint64_t n_tokens,
                           const void *text, size_t n, struct error *e)
{
    buf_clear(&w->line);
    enum err rc = add_field(&w->line, "id", id, strlen(id), e);
    if (!rc)
        rc = buf_printf(&w->line, e, ", \"n_tokens\": %llu", (unsigned long long)n_tokens);
    if (!rc)
        rc = add_field(&w->line, "text", text, n, e);
    return rc ? rc : end_line(w, &w->contexts, e);
}

static enum err add_answers(struct buf *out, const struct wordlist *answers, struct error *e)
{
    enum err rc = buf_add_str(out, ", \"answers\": [", e);
    for (uint32_t i = 0; i < answers->n && !rc; i++) {
        size_t n;
        const char *word = wordlist_at(answers, i, &n);
        if (i)
            rc = buf_add_str(out, ", ", e);
        if (!rc)
            rc = pyjson_string(word, n, out, e);
    }
    return rc ? rc : buf_add_byte(out, ']', e);
}

enum err suite_add_sample(struct suite_writer *w, const struct suite_sample *s, struct error *e)
{
    const char *metric = suite_metric_names[s->metric];
    struct buf *out = &w->line;
    buf_clear(out);
    enum err rc = add_field(out, "id", s->id, strlen(s->id), e);
    if (!rc)
        rc = add_field(out, "context", s->context, strlen(s->context), e);
    if (!rc)
        rc = add_field(out, "question", s->question, s->n_question, e);
    if (!rc)
        rc = add_field(out, "answer_prefix", s->answer_prefix, s->n_answer_prefix, e);
    if (!rc)
        rc = add_answers(out, s->answers, e);
    if (!rc)
        rc = add_field(out, "metric", metric, strlen(metric), e);
    if (!rc)
        rc = buf_printf(out, e, ", \"max_tokens\": %u, \"depth\": ", s->max_tokens);
    if (!rc)
        rc = s->depth < 0 ? buf_add_str(out, "null", e) : buf_printf(out, e, "%.6f", s->depth);
    return rc ? rc : end_line(w, &w->samples, e);
}

static enum err end(struct suite_file *f, const char *dir, char hex[HEX_CHARS(HASH_BYTES)],
                    struct error *e)
{
    uint8_t digest[HASH_BYTES];
    hash_final(&f->hash, digest);
    hex_encode(digest, sizeof digest, hex);
    if (fflush(f->f))
        return err_sys(e, errno, "%s: write", dir);
    return fs_sync(fileno(f->f), dir, e);
}

enum err suite_writer_finish(struct suite_writer *w, struct error *e)
{
    char contexts[HEX_CHARS(HASH_BYTES)], samples[HEX_CHARS(HASH_BYTES)];
    char tokenizer[HEX_CHARS(HASH_BYTES)], path[FS_PATH_BYTES];
    enum err rc = end(&w->contexts, w->dir, contexts, e);
    if (!rc)
        rc = end(&w->samples, w->dir, samples, e);
    if (!rc)
        rc = fs_path(path, sizeof path, e, "%s/suite.json", w->dir);
    if (rc)
        return rc;
    hex_encode(w->tokenizer, HASH_BYTES, tokenizer);
    buf_clear(&w->line);
    rc = buf_printf(&w->line, e,
                    "{\"format\": %d, \"suite\": \"%s\", \"version\": %u, \"seed\": %llu, "
                    "\"tokenizer\": \"%s\", \"n_contexts\": %llu, \"n_samples\": %llu, "
                    "\"contexts\": \"%s\", \"samples\": \"%s\"}\n",
                    SUITE_FORMAT, w->suite, w->version, (unsigned long long)w->seed, tokenizer,
                    (unsigned long long)w->contexts.n, (unsigned long long)w->samples.n,
                    contexts, samples);
    return rc ? rc : fs_write_atomic(path, w->line.data, w->line.len, 0644, e);
}

void suite_writer_fini(struct suite_writer *w)
{
    if (w->contexts.f)
        fclose(w->contexts.f);
    if (w->samples.f)
        fclose(w->samples.f);
    w->contexts.f = w->samples.f = NULL;
    free(w->dir);
    w->dir = NULL;
    buf_fini(&w->line);
}

/* ---- reading ---------------------------------------------------------------------------- */

static enum err read_line(const char *line, size_t n, suite_line_fn *fn, void *user,
                          struct error *e)
{
    static const struct json_limits limits = {.max_bytes = SUITE_MAX_LINE_BYTES,
                                              .max_depth = 16};
    json_auto_t *object = NULL;
    if (strspn(line, " \t\r\n") >= n)
        return OK;
    enum err rc = json_parse(line, n, &limits, &object, e);
    if (!rc && !json_is_object(object))
        rc = err_set(e, ERR_FORMAT, "want an object");
    return rc ? rc : fn(user, object, e);
}

enum err suite_read_lines(const char *path, suite_line_fn *fn, void *user, struct error *e)
{
    AUTO_FILE FILE *f = fopen(path, "re");
    AUTO(buf) struct buf line = BUF_INIT(SUITE_MAX_LINE_BYTES);
    if (!f)
        return err_sys(e, errno, "%s", path);
    for (uint64_t i = 1;; i++) {
        enum err rc = fs_read_line(f, &line, e);
        if (!rc && !line.len)
            return OK;
        if (!rc)
            rc = read_line(buf_str(&line), line.len, fn, user, e);
        if (rc)
            return err_wrap(e, rc, "%s:%llu", path, (unsigned long long)i);
    }
}

static enum err hash_file(const char *path, char hex[HEX_CHARS(HASH_BYTES)], struct error *e)
{
    AUTO_FILE FILE *f = fopen(path, "re");
    uint8_t block[1 << 16], digest[HASH_BYTES];
    struct hash h;
    if (!f)
        return err_sys(e, errno, "%s", path);
    hash_init(&h, NULL, HASH_BYTES);
    for (size_t n; (n = fread(block, 1, sizeof block, f));)
        hash_add(&h, block, n);
    if (ferror(f))
        return err_sys(e, errno, "%s: read", path);
    hash_final(&h, digest);
    hex_encode(digest, sizeof digest, hex);
    return OK;
}

enum err suite_check(const char *dir, const json_t *suite, struct error *e)
{
    static const char *const names[] = {"contexts", "samples"};
    char path[FS_PATH_BYTES], hex[HEX_CHARS(HASH_BYTES)];
    for (size_t i = 0; i < 2; i++) {
        const char *want = json_string_value(json_object_get(suite, names[i]));
        if (!want) /* contexts, of a suite that was not written here: see suite_load() */
            continue;
        enum err rc = fs_path(path, sizeof path, e, "%s/%s.jsonl", dir, names[i]);
        if (!rc)
            rc = hash_file(path, hex, e);
        if (!rc && strcmp(hex, want) != 0) /* the folder last: a long one may be cut */
            rc = err_set(e, ERR_CONFLICT, "%s.jsonl: digest %s, suite.json has %.64s; in %s",
                         names[i], hex, want, dir);
        if (rc)
            return rc;
    }
    return OK;
}

enum err suite_load(const char *dir, json_t **out, struct error *e)
{
    static const struct json_limits limits = {.max_bytes = 1 << 20, .max_depth = 8};
    char path[FS_PATH_BYTES];
    AUTO(buf) struct buf file = BUF_INIT(1 << 20);
    int64_t format;
    const char *digest;
    json_auto_t *suite = NULL;
    enum err rc = fs_path(path, sizeof path, e, "%s/suite.json", dir);
    if (!rc)
        rc = fs_read_file(path, &file, e);
    if (!rc)
        rc = json_parse(buf_str(&file), file.len, &limits, &suite, e);
    if (!rc && !json_is_object(suite))
        rc = err_set(e, ERR_FORMAT, "want an object");
    if (!rc)
        rc = json_need_int(suite, "format", SUITE_FORMAT, SUITE_FORMAT, &format, e);
    if (!rc)
        rc = json_opt_str(suite, "contexts", &digest, NULL, e);
    if (!rc)
        rc = json_need_str(suite, "samples", &digest, NULL, e);
    if (rc)
        return err_wrap(e, rc, "%s/suite.json", dir);
    *out = json_incref(suite);
    return OK;
}

/* ---- generators ------------------------------------------------------------------------- */

const struct suite_kind *suite_kind_of(const char *name)
{
    for (size_t i = 0; i < suite_n_kinds; i++)
        if (!strcmp(name, suite_kinds[i].name))
            return &suite_kinds[i];
    return NULL;
}
