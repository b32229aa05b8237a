#include "engine/script_file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "base/fs.h"
#include "base/json.h"
#include "engine/ids.h"

#define MAX_MS 3600000
#define MAX_STEP_IDS (1u << 20)

static enum err check_fields(const json_t *line, struct error *e)
{
    static const char *const known[] = {"text",     "ids",      "prefill_ms",
                                        "token_ms", "stall_ms", "crash"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)line, key, value) {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(key, known[i]))
            i++;
        if (i == sizeof known / sizeof *known)
            return err_set(e, ERR_FORMAT, "unknown field \"%.40s\"", key);
    }
    if (!json_object_get(line, "text") == !json_object_get(line, "ids"))
        return err_set(e, ERR_FORMAT, "want one of \"text\" and \"ids\"");
    return OK;
}

static enum err read_ms(const json_t *line, const char *field, uint32_t *out, struct error *e)
{
    int64_t ms = 0;
    enum err rc = json_opt_int(line, field, 0, MAX_MS, &ms, e);
    *out = (uint32_t)ms;
    return rc;
}

static enum err read_listed_ids(const json_t *list, uint32_t n_vocab, struct ids *out,
                                struct error *e)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= n_vocab)
            return err_set(e, ERR_FORMAT, "\"ids\"[%zu]: want an integer 0..%u", i,
                           n_vocab - 1);
        enum err rc = ids_add(out, (uint32_t)id, e);
        if (rc)
            return rc;
    }
    return OK;
}

/* Cuts behind the first EOS, or adds one. */
static enum err end_with_eos(struct ids *l, uint32_t eos, struct error *e)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i] == eos) {
            l->n = i + 1;
            return OK;
        }
    return ids_add(l, eos, e);
}

static enum err read_ids(const json_t *line, const struct tokenizer *t, uint32_t eos,
                         struct ids *out, struct error *e)
{
    const char *text = NULL;
    size_t n = 0;
    json_t *list = NULL;
    enum err rc = json_opt_str(line, "text", &text, &n, e);
    if (!rc)
        rc = json_opt_arr(line, "ids", &list, e);
    if (!rc && text)
        rc = tokenizer_encode_special(t, text, n, out, e);
    if (!rc && list)
        rc = read_listed_ids(list, tokenizer_size(t), out, e);
    return rc ? rc : end_with_eos(out, eos, e);
}

static enum err read_step(const json_t *line, const struct tokenizer *t, uint32_t eos,
                          struct script_step *out, struct error *e)
{
    static const char *const crashes[] = {"never", "before", "after", NULL};
    AUTO(ids) struct ids ids = IDS_INIT(MAX_STEP_IDS);
    int crash = SCRIPT_CRASH_NEVER;
    enum err rc = check_fields(line, e);
    if (!rc)
        rc = read_ms(line, "prefill_ms", &out->prefill_ms, e);
    if (!rc)
        rc = read_ms(line, "token_ms", &out->token_ms, e);
    if (!rc)
        rc = read_ms(line, "stall_ms", &out->stall_ms, e);
    if (!rc)
        rc = json_opt_enum(line, "crash", crashes, &crash, e);
    if (!rc)
        rc = read_ids(line, t, eos, &ids, e);
    if (rc)
        return rc;
    out->crash = (enum script_crash)crash;
    out->n = ids.n;
    out->ids = TAKE(ids.v);
    return OK;
}

static enum err add_line(struct script *s, const char *line, size_t n,
                         const struct tokenizer *t, uint32_t eos, struct error *e)
{
    const struct json_limits limits = {
        .max_bytes = SCRIPT_MAX_BYTES, .max_depth = 4, .allow_nul = true};
    json_auto_t *j = NULL;
    enum err rc = json_parse(line, n, &limits, &j, e);
    if (rc)
        return rc;
    if (!json_is_object(j))
        return err_set(e, ERR_FORMAT, "want an object");
    struct script_step step = {0};
    rc = read_step(j, t, eos, &step, e);
    if (rc)
        return rc;
    struct script_step *steps = realloc(s->steps, (s->n + 1) * sizeof *steps);
    if (!steps) {
        free(step.ids);
        return err_set(e, ERR_NOMEM, "%zu lines", s->n + 1);
    }
    s->steps = steps;
    s->steps[s->n++] = step;
    return OK;
}

static enum err add_lines(struct script *s, FILE *f, const char *path,
                          const struct tokenizer *t, uint32_t eos, struct error *e)
{
    AUTO(buf) struct buf line = BUF_INIT(SCRIPT_MAX_BYTES);
    size_t total = 0;
    for (size_t number = 1;; number++) {
        enum err rc = fs_read_line(f, &line, e);
        if (!rc && !line.len)
            return OK;
        total += line.len;
        if (rc == ERR_LIMIT || total > SCRIPT_MAX_BYTES)
            return err_set(e, ERR_LIMIT, "%s: more than %u bytes", path, SCRIPT_MAX_BYTES);
        if (!rc && strspn(buf_str(&line), " \t\r\n") != line.len)
            rc = add_line(s, buf_str(&line), line.len, t, eos, e);
        if (rc)
            return err_wrap(e, rc, "%s line %zu", path, number);
    }
}

enum err script_load(struct script *out, const char *path, const struct tokenizer *t,
                     uint32_t eos, struct error *e)
{
    *out = (struct script){0};
    AUTO_FILE FILE *f = fopen(path, "re");
    if (!f)
        return err_sys(e, errno, "script %s", path);
    return add_lines(out, f, path, t, eos, e);
}

void script_fini(struct script *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->steps[i].ids);
    free(s->steps);
    *s = (struct script){0};
}
