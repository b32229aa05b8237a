#include "engine/chat_calls.h"

#include <string.h>

#include "engine/pyjson.h"
#include "engine/unicode.h"

static const char replacement[] = "\xef\xbf\xbd";

void chat_calls_fini(struct chat_calls *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        buf_fini(&c->v[i].name);
        buf_fini(&c->v[i].arguments);
    }
    free(c->v);
    buf_fini(&c->raw);
    buf_fini(&c->keys);
}

struct call *chat_calls_last(const struct chat_calls *c)
{
    return c->n ? &c->v[c->n - 1] : NULL;
}

static void update_view(struct call *call)
{
    call->view.name = buf_str(&call->name);
    call->view.arguments = buf_str(&call->arguments);
    call->view.arguments_len = call->arguments.len;
}

/* Names go into logs, events and files: control characters and bytes that are not UTF-8 would
 * poison these. */
static enum err add_name(struct chat_calls *c, struct buf *out, const uint8_t *name, size_t n,
                         struct error *e)
{
    bool is_clean = true;
    enum err rc = OK;
    for (size_t i = 0; i < n && !rc;) {
        uint32_t cp = 0;
        unsigned len = utf8_decode(name + i, n - i, &cp);
        bool good = len && cp >= 0x20 && (cp < 0x7f || cp > 0x9f);
        rc = good ? buf_add(out, name + i, len, e) : buf_add_str(out, replacement, e);
        is_clean = is_clean && good;
        i += len ? len : 1;
    }
    if (!is_clean)
        c->problems[CHAT_BAD_NAME]++;
    return rc;
}

static enum err grow(struct chat_calls *c, struct error *e)
{
    if (c->n < c->cap)
        return OK;
    uint32_t cap = c->cap ? 2 * c->cap : 4;
    struct call *v = reallocarray(c->v, cap, sizeof *v);
    if (!v)
        return err_set(e, ERR_NOMEM, "no memory for %u tool calls", cap);
    c->v = v;
    c->cap = cap;
    return OK;
}

enum err chat_calls_begin(struct chat_calls *c, const uint8_t *name, size_t n, struct error *e)
{
    enum err rc = grow(c, e);
    if (rc)
        return rc;
    struct call *call = &c->v[c->n++];
    *call = (struct call){.name = BUF_INIT(3 * c->max_bytes + 8),
                          .arguments = BUF_INIT(8 * c->max_bytes + 64)};
    c->in_call = true;
    c->n_params = 0;
    buf_clear(&c->keys);
    if (!n) {
        c->problems[CHAT_BAD_NAME]++;
        call->is_broken = true;
    }
    rc = add_name(c, &call->name, name, n, e);
    if (!rc)
        rc = buf_add_byte(&call->arguments, '{', e);
    update_view(call);
    return rc;
}

static bool has_key(const struct chat_calls *c, const char *key)
{
    for (size_t at = 0; at < c->keys.len; at += strlen((const char *)c->keys.data + at) + 1)
        if (!strcmp((const char *)c->keys.data + at, key))
            return true;
    return false;
}

enum err chat_calls_begin_value(struct chat_calls *c, const uint8_t *name, size_t n,
                                enum chat_value_kind kind, struct error *e)
{
    struct call *call = chat_calls_last(c);
    AUTO(buf) struct buf key = BUF_INIT(3 * n + 8);
    enum err rc = add_name(c, &key, name, n, e);
    if (rc)
        return rc;
    c->in_value = true;
    c->kind = kind;
    c->n_escaped = 0;
    buf_clear(&c->raw);
    c->drops_value = has_key(c, buf_str(&key));
    if (c->drops_value) {
        c->problems[CHAT_DUPLICATE_PARAMETER]++;
        call->view.is_repaired = true;
        return OK;
    }
    if (c->n_params == CHAT_MAX_PARAMETERS) {
        c->problems[CHAT_TOO_MANY]++;
        c->drops_value = call->is_broken = true;
        return OK;
    }
    rc = buf_add(&c->keys, buf_str(&key), key.len + 1, e);
    if (!rc && c->n_params++)
        rc = buf_add_str(&call->arguments, ", ", e);
    if (!rc)
        rc = pyjson_string(buf_str(&key), key.len, &call->arguments, e);
    if (!rc)
        rc = buf_add_str(&call->arguments, kind == CHAT_VALUE_STRING ? ": \"" : ": ", e);
    return rc;
}

enum err chat_calls_add_value(struct chat_calls *c, const uint8_t *bytes, size_t n,
                              struct error *e)
{
    return c->drops_value ? OK : buf_add(&c->raw, bytes, n, e);
}

static enum err escape_up_to(struct chat_calls *c, size_t end, struct error *e)
{
    enum err rc = pyjson_escape(buf_str(&c->raw) + c->n_escaped, end - c->n_escaped,
                                &chat_calls_last(c)->arguments, e);
    c->n_escaped = end;
    return rc;
}

enum err chat_calls_flush_value(struct chat_calls *c, struct error *e)
{
    enum err rc = OK;
    if (c->in_value && !c->drops_value && c->kind == CHAT_VALUE_STRING)
        rc = escape_up_to(c, c->raw.len - utf8_open_tail(c->raw.data, c->raw.len), e);
    if (c->n)
        update_view(chat_calls_last(c));
    return rc;
}

enum err chat_calls_end_value(struct chat_calls *c, struct error *e)
{
    struct call *call = chat_calls_last(c);
    const struct buf *raw = &c->raw;
    c->in_value = false;
    if (c->drops_value)
        return OK;
    enum err rc;
    if (c->kind == CHAT_VALUE_STRING) {
        rc = escape_up_to(c, raw->len, e);
        if (!rc)
            rc = buf_add_byte(&call->arguments, '"', e);
    } else if (pyjson_valid(buf_str(raw), raw->len)) {
        return buf_add(&call->arguments, raw->data, raw->len, e);
    } else {
        rc = pyjson_string(buf_str(raw), raw->len, &call->arguments, e);
        if (c->kind == CHAT_VALUE_JSON) {
            c->problems[CHAT_BAD_JSON]++;
            call->view.is_repaired = true;
        }
    }
    if (!utf8_is_valid(raw->data, raw->len)) {
        c->problems[CHAT_BAD_UTF8]++;
        call->view.is_repaired = true;
    }
    return rc;
}

static void note_duplicate(struct chat_calls *c, const struct call *call)
{
    for (const struct call *other = c->v; other < call; other++)
        if (other->name.len == call->name.len && other->arguments.len == call->arguments.len &&
            !strcmp(buf_str(&other->name), buf_str(&call->name)) &&
            !memcmp(other->arguments.data, call->arguments.data, call->arguments.len)) {
            c->problems[CHAT_DUPLICATE_CALL]++;
            return;
        }
}

enum err chat_calls_end(struct chat_calls *c, bool was_cut, struct error *e)
{
    struct call *call = chat_calls_last(c);
    c->in_call = false;
    enum err rc = was_cut ? OK : buf_add_byte(&call->arguments, '}', e);
    call->view.is_complete = !was_cut && !call->is_broken;
    update_view(call);
    if (!was_cut)
        note_duplicate(c, call);
    return rc;
}
