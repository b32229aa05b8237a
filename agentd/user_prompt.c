#include "agentd/user_prompt.h"

#include <stdlib.h>
#include <string.h>

#include "agentd/daemon.h"
#include "agentd/rpc.h"
#include "base/auto.h"
#include "base/json.h"
#include "engine/tokenizer.h"

#define MAX_FORCED_RUNS 4096
#define MAX_FORCED_IDS ((size_t)4 << 20)

/* ---- forced runs ------------------------------------------------------------------ */

static enum err read_ids(const json_t *list, uint32_t vocab, struct ids *out, struct error *e)
{
    const json_t *v;
    size_t i;
    enum err rc = OK;

    json_array_foreach(list, i, v) {
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= (json_int_t)vocab)
            return err_set(e, ERR_INVAL, "ids[%zu]: want an id below %u", i, vocab);
        if ((rc = ids_add(out, (uint32_t)id, e)))
            return rc;
    }
    return rc;
}

static enum err read_forced_run(const struct daemon *d, const json_t *entry, struct ids *out,
                                struct error *e)
{
    const char *text = NULL;
    size_t len = 0;
    json_t *list = NULL;
    enum err rc;

    if (!json_is_object(entry))
        return err_set(e, ERR_INVAL, "want {ids} or {text}");
    if ((rc = json_opt_str(entry, "text", &text, &len, e)) ||
        (rc = json_opt_arr(entry, "ids", &list, e)))
        return rc;
    if ((text != NULL) == (list != NULL))
        return err_set(e, ERR_INVAL, "want either ids or text");
    rc = list ? read_ids(list, d->model->vocab_size, out, e)
              : tokenizer_encode_special(d->model->tokenizer, text, len, out, e);
    for (size_t i = 0; !rc && i + 1 < out->n; i++)
        if (out->v[i] == d->chat.eos)
            return err_set(e, ERR_INVAL, "EOS inside a run");
    if (!rc && (out->n == 0 || out->v[out->n - 1] != d->chat.eos))
        rc = ids_add(out, d->chat.eos, e);
    return rc;
}

void forced_runs_fini(struct forced_runs *f)
{
    for (size_t i = 0; i < f->n; i++)
        ids_fini(&f->runs[i]);
    free(f->runs);
    *f = (struct forced_runs){0};
}

enum err forced_runs_read(const struct daemon *d, const json_t *list, struct forced_runs *out,
                          struct error *e)
{
    size_t n = json_array_size(list), total = 0;

    if (n > MAX_FORCED_RUNS)
        return err_set(e, ERR_INVAL, "\"forced\": %zu runs, at most %d", n, MAX_FORCED_RUNS);
    if (n == 0)
        return OK;
    out->runs = calloc(n, sizeof(*out->runs));
    if (!out->runs)
        return err_set(e, ERR_NOMEM, "forced runs");
    out->n = n;
    for (size_t i = 0; i < n; i++) {
        out->runs[i].max = MAX_FORCED_IDS - total;
        enum err rc = read_forced_run(d, json_array_get(list, i), &out->runs[i], e);
        if (rc)
            return err_wrap(e, rc, "\"forced\"[%zu]", i);
        total += out->runs[i].n;
    }
    return OK;
}

json_t *forced_runs_json(const struct forced_runs *f)
{
    json_t *list = json_array();

    for (size_t i = 0; i < f->n; i++) {
        json_t *ids = json_array();
        for (size_t k = 0; k < f->runs[i].n; k++)
            json_array_append_new(ids, json_integer(f->runs[i].v[k]));
        json_array_append_new(list, json_pack("{s:o}", "ids", ids));
    }
    return list;
}

/* ---- parameters ------------------------------------------------------------------- */

/* Text parts are joined by a blank line. */
enum err user_prompt_read_text(const json_t *params, struct buf *out, struct error *e)
{
    json_t *list = NULL, *part;
    enum err rc = json_need_arr(params, "content", &list, e);
    size_t i;

    if (rc)
        return rc;
    json_array_foreach(list, i, part) {
        const char *type = NULL, *text = NULL;
        size_t len = 0;
        if (!json_is_object(part))
            return err_set(e, ERR_FORMAT, "\"content\"[%zu]: want an object", i);
        if ((rc = json_need_str(part, "type", &type, NULL, e)))
            return err_wrap(e, rc, "\"content\"[%zu]", i);
        if (strcmp(type, "text") != 0)
            return err_set(e, ERR_INVAL,
                           "\"content\"[%zu]: type \"%.32s\" is not taken, only "
                           "text",
                           i, type);
        if ((rc = json_need_str(part, "text", &text, &len, e)))
            return err_wrap(e, rc, "\"content\"[%zu]", i);
        if ((i > 0 && (rc = buf_add_str(out, "\n\n", e))) || (rc = buf_add(out, text, len, e)))
            return rc;
    }
    return out->len ? OK : err_set(e, ERR_INVAL, "\"content\": is empty");
}

enum err user_prompt_read_message(const json_t *params, const char **out, struct error *e)
{
    const char *message = NULL;
    size_t n = 0;
    enum err rc = json_opt_str(params, "clientMessageId", &message, &n, e);

    if (rc || !message)
        return rc;
    if (n == 0 || n > USER_PROMPT_MAX_MESSAGE)
        return err_set(e, ERR_INVAL, "\"clientMessageId\": want 1 to %d bytes",
                       USER_PROMPT_MAX_MESSAGE);
    *out = message;
    return OK;
}

enum err user_prompt_read(const struct daemon *d, const json_t *params, struct user_prompt *out,
                          struct error *e)
{
    const char *message = NULL;
    json_t *forced = NULL;
    enum err rc;

    buf_init(&out->text, RPC_MAX_LINE);
    if ((rc = user_prompt_read_text(params, &out->text, e)) ||
        (rc = user_prompt_read_message(params, &message, e)) ||
        (rc = json_opt_arr(params, "forced", &forced, e)) ||
        (rc = forced_runs_read(d, forced, &out->forced, e)))
        return rc;
    if (!message)
        return OK;
    out->client_message = strdup(message);
    return out->client_message ? OK : err_set(e, ERR_NOMEM, "prompt");
}

void user_prompt_fini(struct user_prompt *p)
{
    buf_fini(&p->text);
    free(p->client_message);
    p->client_message = NULL;
    forced_runs_fini(&p->forced);
}
