/* agentd render: a conversation on stdin becomes its prompt, as text and as ids. */
#include "agentd/verb_text.h"
#include "agentd/verbs.h"
#include "base/json.h"
#include "engine/chat.h"

struct render_options {
    const char *model;
};

static const struct option render_table[] = {
    {"model", 'm', OPTION_STRING, offsetof(struct render_options, model), "DIR",
     .help = "folder with tokenizer.json", .required = true},
};

static enum err read_request(const json_t *request, struct chat_options *o, struct error *e)
{
    static const char *const modes[] = {"chat", "thinking", NULL};
    int mode = 0;
    o->drop_thinking = true;
    enum err rc = json_opt_enum(request, "thinking_mode", modes, &mode, e);
    if (!rc)
        rc = json_opt_bool(request, "drop_thinking", &o->drop_thinking, e);
    if (!rc)
        rc = chat_effort(json_object_get(request, "reasoning_effort"), &o->effort, e);
    o->thinking = mode == 1;
    return rc;
}

static enum err write_prompt(const struct prompt *p, const struct tokenizer *t, struct error *e)
{
    AUTO(buf) struct buf text = BUF_INIT(2ull * VERB_TEXT_MAX_BYTES);
    AUTO(ids) struct ids ids = IDS_INIT(VERB_TEXT_MAX_BYTES);
    enum err rc = prompt_text(p, t, &text, e);
    if (!rc)
        rc = prompt_ids(p, t, &ids, e);
    if (rc)
        return rc;
    json_auto_t *list = json_array();
    for (size_t i = 0; i < ids.n; i++)
        if (json_array_append_new(list, json_integer(ids.v[i])))
            return err_set(e, ERR_NOMEM, "no memory for %zu ids", ids.n);
    json_auto_t *result =
        json_pack("{s:o,s:O}", "text", verb_text_string(text.data, text.len), "ids", list);
    return result ? verb_text_write_json(result, e)
                  : err_set(e, ERR_NOMEM, "no memory for the prompt");
}

static enum err render(const struct tokenizer *t, struct error *e)
{
    static const struct json_limits limits = {
        .max_bytes = 64u << 20, .max_depth = 512, .allow_nul = true};
    AUTO(buf) struct buf in = BUF_INIT(64u << 20);
    AUTO(prompt) struct prompt p = PROMPT_INIT(VERB_TEXT_MAX_BYTES);
    json_auto_t *request = NULL;
    struct chat_options o = {0};
    struct chat_ids ids;
    enum err rc = chat_ids_find(&ids, t, e);
    if (!rc)
        rc = verb_text_read(&in, e);
    if (!rc)
        rc = json_parse(buf_str(&in), in.len, &limits, &request, e);
    if (!rc)
        rc = read_request(request, &o, e);
    if (!rc)
        rc = chat_render(&ids, json_object_get(request, "messages"), &o, &p, e);
    return rc ? rc : write_prompt(&p, t, e);
}

const struct command verb_render_command = {
    "render",
    "",
    "{messages, thinking_mode, reasoning_effort, drop_thinking} on stdin to {text, ids}",
    OPTION_TABLE(render_table),
    OPTION_TABLE_EMPTY,
    0,
    0};

int verb_render(int argc, char **argv)
{
    struct render_options o = {0};
    struct error e = {0};
    struct tokenizer *t = NULL;
    int code;
    if (verb_text_options(&verb_render_command, argc, argv, &o, &code))
        return code;
    enum err rc = tokenizer_open(&t, o.model, &e);
    if (rc)
        return verb_fail("render", rc, &e);
    rc = render(t, &e);
    tokenizer_free(t);
    return rc ? verb_text_fail("render", rc, &e) : EXIT_DONE;
}
