/* agentd parse: model output on stdin becomes a message. */
#include "agentd/verb_text.h"
#include "agentd/verbs.h"
#include "engine/chat_parser.h"
#include "engine/chat_strict.h"

struct parse_options {
    const char *model;
    int thinking_mode;
    bool strict;
    int64_t chunk;
};

static const char *const modes[] = {"chat", "thinking", NULL};

static const struct option parse_table[] = {
    {"model", 'm', OPTION_STRING, offsetof(struct parse_options, model), "DIR",
     .help = "folder with tokenizer.json", .required = true},
    {"thinking-mode", 0, OPTION_ENUM, offsetof(struct parse_options, thinking_mode), "MODE",
     .choices = modes, .help = "how the prompt ended", .required = true},
    {"strict", 0, OPTION_FLAG, offsetof(struct parse_options, strict),
     .help = "exactly the format, or exit code 1"},
    {"chunk", 0, OPTION_INT, offsetof(struct parse_options, chunk), "N", .min = 1,
     .max = 1 << 30, .help = "feed N bytes at a time (default: all at once)"},
};

static json_t *message_of(const struct chat_parser *p)
{
    const struct buf *text = chat_parser_text(p), *thinking = chat_parser_thinking(p);
    const uint32_t *counts = chat_parser_problems(p);
    json_auto_t *calls = json_array(), *problems = json_object();
    for (uint32_t i = 0; i < chat_parser_n_calls(p); i++) {
        const struct chat_call *c = chat_parser_call(p, i);
        json_t *call = json_pack("{s:s,s:{s:s,s:s%}}", "type", "function", "function", "name",
                                 c->name, "arguments", c->arguments, c->arguments_len);
        if (c->is_complete && json_array_append_new(calls, call))
            return NULL;
        if (!c->is_complete)
            json_decref(call);
    }
    for (int i = 0; i < CHAT_N_PROBLEMS; i++)
        if (counts[i] && json_object_set_new(problems, chat_problem_name((enum chat_problem)i),
                                             json_integer(counts[i])))
            return NULL;
    return json_pack("{s:s,s:o,s:o,s:O,s:O}", "role", "assistant", "content",
                     verb_text_string(text->data, text->len), "reasoning_content",
                     verb_text_string(thinking->data, thinking->len), "tool_calls", calls,
                     "problems", problems);
}

static enum err feed(struct chat_parser *p, const struct buf *in, size_t chunk, struct error *e)
{
    enum err rc = OK;
    for (size_t i = 0; i < in->len && !rc; i += chunk)
        rc = chat_parser_feed(p, in->data + i, in->len - i < chunk ? in->len - i : chunk, false,
                              e);
    return rc ? rc : chat_parser_finish(p, e);
}

static enum err parse_lenient(const struct parse_options *o, const struct buf *in,
                              struct error *e)
{
    struct chat_parser_options po = {
        .thinking = o->thinking_mode == 1, .literal = true, .max_bytes = VERB_TEXT_MAX_BYTES};
    struct chat_parser *p;
    enum err rc = chat_parser_new(&p, &po, e);
    if (rc)
        return rc;
    rc = feed(p, in, o->chunk ? (size_t)o->chunk : SIZE_MAX / 2, e);
    json_auto_t *message = rc ? NULL : message_of(p);
    chat_parser_free(p);
    if (!rc && !message)
        return err_set(e, ERR_NOMEM, "no memory for the message");
    return rc ? rc : verb_text_write_json(message, e);
}

/* The reference's fields, and an empty problems. */
static enum err parse_strict(const struct parse_options *o, const struct buf *in,
                             struct error *e)
{
    json_auto_t *message = NULL;
    enum err rc = chat_strict_parse(buf_str(in), in->len, o->thinking_mode == 1, &message, e);
    if (rc)
        return rc;
    if (json_object_set_new(message, "problems", json_object()))
        return err_set(e, ERR_NOMEM, "no memory for the message");
    return verb_text_write_json(message, e);
}

const struct command verb_parse_command = {"parse",
                                           "",
                                           "model output on stdin to a message",
                                           OPTION_TABLE(parse_table),
                                           OPTION_TABLE_EMPTY,
                                           0,
                                           0};

int verb_parse(int argc, char **argv)
{
    struct parse_options o = {0};
    struct error e = {0};
    struct tokenizer *t = NULL;
    AUTO(buf) struct buf in = BUF_INIT(VERB_TEXT_MAX_BYTES);
    int code;
    if (verb_text_options(&verb_parse_command, argc, argv, &o, &code))
        return code;
    /* The spellings are the format's own; the model folder is opened so that a wrong one is
     * an error here as in every other verb. */
    enum err rc = tokenizer_open(&t, o.model, &e);
    tokenizer_free(t);
    if (rc)
        return verb_fail("parse", rc, &e);
    rc = verb_text_read(&in, &e);
    if (!rc)
        rc = o.strict ? parse_strict(&o, &in, &e) : parse_lenient(&o, &in, &e);
    return rc ? verb_text_fail("parse", rc, &e) : EXIT_DONE;
}
