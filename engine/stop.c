#include "engine/stop.h"

#include <stdlib.h>

#include "engine/chat_parser.h"
#include "engine/engine.h"
#include "engine/tokenizer.h"

struct stop_watch {
    struct chat_parser *parser;
    const struct tokenizer *tokenizer;
};

enum err stop_watch_new(struct stop_watch **out, const struct sampling *s,
                        const struct tokenizer *t, struct error *e)
{
    const struct chat_parser_options o = {
        .thinking = s->thinking, .stop = s->stop, .n_stop = s->n_stop};
    if (!s->n_stop)
        return OK;
    struct stop_watch *w = calloc(1, sizeof(*w));
    if (!w)
        return err_set(e, ERR_NOMEM, "stop strings");
    enum err rc = chat_parser_new(&w->parser, &o, e);
    if (rc) {
        free(w);
        return rc;
    }
    w->tokenizer = t;
    *out = w;
    return OK;
}

void stop_watch_free(struct stop_watch *w)
{
    if (!w)
        return;
    chat_parser_free(w->parser);
    free(w);
}

enum err stop_watch_feed(struct stop_watch *w, uint32_t id, bool *stops, struct error *e)
{
    size_t n = 0;
    const uint8_t *bytes = w ? tokenizer_bytes(w->tokenizer, id, &n) : NULL;
    enum err rc = OK;
    *stops = false;
    if (bytes)
        rc = chat_parser_feed(w->parser, bytes, n, tokenizer_is_added(w->tokenizer, id), e);
    if (bytes && !rc)
        *stops = chat_parser_stopped(w->parser) != NULL;
    return rc;
}
