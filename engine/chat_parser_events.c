#include <string.h>

#include "engine/chat_parser_state.h"
#include "engine/unicode.h"

enum err chat_send(struct chat_parser *p, enum chat_event_kind kind, uint32_t call,
                   const void *bytes, size_t n, struct error *e)
{
    if (!p->options.on_event)
        return OK;
    struct chat_event ev = {kind, call, bytes, n};
    return p->options.on_event(p->options.user, &ev, e);
}

/* Bytes at the end of the answer that a stop string may go on. */
static size_t held_for_stop(const struct chat_parser *p)
{
    const struct buf *b = &p->text;
    size_t most = 0;
    for (uint32_t i = 0; i < p->options.n_stop; i++) {
        const char *stop = p->options.stop[i];
        size_t n = strlen(stop) - 1, unsent = b->len - p->text_sent;
        for (n = n < unsent ? n : unsent; n > most; n--)
            if (!memcmp(b->data + b->len - n, stop, n))
                most = n;
    }
    return most;
}

void chat_look_for_stop(struct chat_parser *p)
{
    size_t longest = 0;
    for (uint32_t i = 0; i < p->options.n_stop; i++) {
        const char *stop = p->options.stop[i];
        size_t n = strlen(stop);
        if (n <= longest || n > p->text.len ||
            memcmp(p->text.data + p->text.len - n, stop, n) != 0)
            continue;
        longest = n;
        p->stopped = stop;
    }
    if (!p->stopped)
        return;
    p->text.len -= longest;
    p->text.data[p->text.len] = '\0';
    p->state = STOPPED;
}

/* Sends what a text buffer holds beyond *sent; whole characters only, unless all is asked for.
 */
static enum err send_text(struct chat_parser *p, enum chat_event_kind kind, const struct buf *b,
                          size_t *sent, bool all, struct error *e)
{
    const uint8_t *news = (const uint8_t *)buf_str(b) + *sent;
    size_t n = b->len - *sent;
    if (!all && kind == CHAT_TEXT)
        n -= held_for_stop(p);
    if (!all)
        n -= utf8_open_tail(news, n);
    *sent += n;
    return n ? chat_send(p, kind, 0, news, n, e) : OK;
}

enum err chat_send_texts(struct chat_parser *p, bool all, struct error *e)
{
    bool all_thinking = all || p->state != IN_THINKING;
    enum err rc = send_text(p, CHAT_THINKING, &p->thinking, &p->thinking_sent, all_thinking, e);
    /* A tag may turn out to be a stray one, and the answer, with what a stop string needs of
     * it, goes on behind it. */
    bool may_go_on = p->state == IN_ANSWER || (p->state == IN_TAG && p->options.n_stop);
    bool all_text = all || !may_go_on;
    return rc ? rc : send_text(p, CHAT_TEXT, &p->text, &p->text_sent, all_text, e);
}

enum err chat_send_args(struct chat_parser *p, struct error *e)
{
    const struct call *call = chat_calls_last(&p->calls);
    if (!call || p->args_of != p->calls.n || call->arguments.len == p->args_sent)
        return OK;
    size_t from = p->args_sent;
    p->args_sent = call->arguments.len;
    return chat_send(p, CHAT_CALL_ARGS, p->calls.n - 1, call->arguments.data + from,
                     call->arguments.len - from, e);
}
