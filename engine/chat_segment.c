/* Input segments of a session: what is appended to the tape between two runs of the model. */
#include "engine/chat_internal.h"

void chat_segment_fini(struct chat_segment *s)
{
    prompt_fini(&s->prompt);
}

enum err chat_segment_open(struct chat_segment *s, const struct chat_setup *setup,
                           struct error *e)
{
    const struct chat_ids *ids = s->ids;
    struct prompt *p = &s->prompt;
    bool has_tools = json_array_size(setup->tools) > 0;
    enum err rc = prompt_add_id(p, ids->bos, e);
    if (!rc && (s->thinking || setup->system || has_tools))
        rc = prompt_add_id(p, ids->system, e);
    if (!rc && s->thinking)
        rc = chat_add_effort(p, setup->effort, e);
    if (!rc && setup->system)
        rc = prompt_add(p, setup->system, setup->system_len, e);
    if (!rc && has_tools)
        rc = prompt_add_str(p, "\n\n", e);
    if (!rc && has_tools)
        rc = chat_render_tools(ids, setup->tools, p, e);
    return rc;
}

enum err chat_segment_close_run(struct chat_segment *s, bool thinking_open, struct error *e)
{
    enum err rc = thinking_open ? prompt_add_id(&s->prompt, s->ids->think_end, e) : OK;
    return rc ? rc : prompt_add_id(&s->prompt, s->ids->eos, e);
}

/* Blocks of one user turn are joined by a blank line. */
static enum err begin_block(struct chat_segment *s, struct error *e)
{
    enum err rc = s->in_user ? prompt_add_str(&s->prompt, "\n\n", e)
                             : prompt_add_id(&s->prompt, s->ids->user, e);
    if (!rc)
        s->in_user = s->has_block = true;
    return rc;
}

enum err chat_segment_user(struct chat_segment *s, const void *bytes, size_t n, struct error *e)
{
    enum err rc = begin_block(s, e);
    return rc ? rc : prompt_add(&s->prompt, bytes, n, e);
}

enum err chat_segment_result_begin(struct chat_segment *s, struct error *e)
{
    enum err rc = begin_block(s, e);
    return rc ? rc : prompt_add_str(&s->prompt, "<tool_result>", e);
}

enum err chat_segment_result_end(struct chat_segment *s, struct error *e)
{
    return prompt_add_str(&s->prompt, "</tool_result>", e);
}

enum err chat_segment_tool_result(struct chat_segment *s, const void *bytes, size_t n,
                                  struct error *e)
{
    enum err rc = chat_segment_result_begin(s, e);
    if (!rc)
        rc = prompt_add(&s->prompt, bytes, n, e);
    return rc ? rc : chat_segment_result_end(s, e);
}

enum err chat_segment_note(struct chat_segment *s, const void *bytes, size_t n, struct error *e)
{
    enum err rc = prompt_add_id(&s->prompt, s->ids->system, e);
    if (!rc)
        rc = prompt_add(&s->prompt, bytes, n, e);
    s->in_user = false;
    s->has_block = s->has_block || !rc;
    return rc;
}

enum err chat_segment_finish(struct chat_segment *s, const struct tokenizer *t, struct ids *out,
                             struct error *e)
{
    if (!s->has_block)
        return err_set(e, ERR_INVAL, "an input segment needs user text, a result or a note");
    enum err rc = chat_add_generation(s->ids, &s->prompt, s->thinking, e);
    return rc ? rc : prompt_ids(&s->prompt, t, out, e);
}
