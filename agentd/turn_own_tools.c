/* Calls that the daemon answers itself: todo, jobs, and the start of a job. Nothing here is
 * durable before the outcome is committed (turn_tools.c), and nothing of it is shown before. */
#include <string.h>

#include "agentd/session_jobs.h"
#include "agentd/turn_internal.h"
#include "tools/tools.h"

#define RESULT_BYTES ((size_t)256 << 10)

static void answer_error(struct step_call *c, const struct error *e)
{
    char text[ERR_MSG_BYTES + 32];
    int n = snprintf(text, sizeof(text), "error: %s\n", e->msg);

    turn_call_done(c, CALL_FAILED, true, text, (size_t)n);
}

static void answer(struct step_call *c, const struct buf *text)
{
    turn_call_done(c, CALL_DONE, false, buf_str(text), text->len);
}

/* ---- todo ------------------------------------------------------------------------- */

static enum err print_todo(const json_t *list, struct buf *out, struct error *e)
{
    const json_t *item;
    size_t i;
    enum err rc = json_array_size(list) ? OK : buf_add_str(out, "[the list is empty]\n", e);

    json_array_foreach(list, i, item) {
        const char *status = json_string_value(json_object_get(item, "status"));
        const json_t *text = json_object_get(item, "text");
        char mark = !strcmp(status, "done") ? 'x' : !strcmp(status, "active") ? '>' : ' ';
        if (!rc)
            rc = buf_printf(out, e, "%zu. [%c] ", i + 1, mark);
        if (!rc)
            rc = buf_add(out, json_string_value(text), json_string_length(text), e);
        if (!rc)
            rc = buf_add_byte(out, '\n', e);
    }
    return rc;
}

/* The protocol's texts hold no NUL, and the list goes into events as it is. */
static enum err check_todo(const json_t *items, struct error *e)
{
    const json_t *item;
    size_t i;

    json_array_foreach(items, i, item) {
        const json_t *text = json_object_get(item, "text");
        if (strlen(json_string_value(text)) != json_string_length(text))
            return err_set(e, ERR_INVAL, "todo: arguments.items[%zu].text: holds a NUL byte",
                           i);
    }
    return OK;
}

static void start_todo(struct step_call *c, const json_t *arguments)
{
    AUTO(buf) struct buf text = BUF_INIT(RESULT_BYTES);
    json_t *items = json_object_get(arguments, "items");
    struct error e;

    if (check_todo(items, &e)) {
        answer_error(c, &e);
        return;
    }
    if (items)
        c->extra = json_pack("{s:O}", "todo", items);
    if (print_todo(items ? items : c->turn->session->notes.todo, &text, &e))
        answer_error(c, &e);
    else
        answer(c, &text);
}

/* ---- jobs ------------------------------------------------------------------------- */

/* The id is read again from the arguments: what is asked for is there. */
static void read_job(struct step_call *c)
{
    AUTO(buf) struct buf text = BUF_INIT(2 * RESULT_BYTES);
    json_auto_t *arguments = json_loads(c->arguments, JSON_ALLOW_NUL, NULL);
    const char *id = json_string_value(json_object_get(arguments, "job"));
    struct error e;

    if (session_job_read(c->turn->session, id ? id : "", &text, &e))
        answer_error(c, &e);
    else
        answer(c, &text);
}

static void waited(void *user)
{
    struct step_call *c = user;

    c->waits_for_job = false;
    read_job(c);
}

static void start_jobs(struct step_call *c, const json_t *arguments)
{
    struct live *s = c->turn->session;
    const char *action = json_string_value(json_object_get(arguments, "action"));
    const char *id = json_string_value(json_object_get(arguments, "job"));
    json_int_t wait_ms = json_integer_value(json_object_get(arguments, "wait_ms"));
    AUTO(buf) struct buf text = BUF_INIT(RESULT_BYTES);
    bool running = false;
    struct error e;

    if (strcmp(action, "list") == 0) {
        session_jobs_list(s, &text);
        answer(c, &text);
        return;
    }
    if (!id) {
        err_set(&e, ERR_INVAL, "jobs: arguments: \"job\" is missing, %s needs one", action);
        answer_error(c, &e);
        return;
    }
    if (session_job_is_running(s, id, &running, &e)) {
        answer_error(c, &e);
        return;
    }
    bool kills = strcmp(action, "kill") == 0;
    if (running && (kills || wait_ms > 0)) {
        if (session_job_wait(s, id, kills ? 0 : (uint32_t)wait_ms, waited, c, &e)) {
            answer_error(c, &e);
            return;
        }
        c->waits_for_job = true;
        if (kills)
            session_job_kill(s, id);
        return;
    }
    read_job(c);
}

void turn_start_job(struct step_call *c, struct tool_call *call)
{
    char id[JOB_ID_CAP], text[160];
    struct error e;

    call->in_background = true;
    if (session_job_start(c->turn->session, call, c->id, id, &e)) {
        answer_error(c, &e);
        return;
    }
    int n = snprintf(text, sizeof(text),
                     "[job %s was started; {\"action\": \"read\", \"job\": \"%s\"} of the tool "
                     "jobs shows what it prints]\n",
                     id, id);
    turn_call_done(c, CALL_DONE, false, text, (size_t)n);
}

/* ---- dispatch --------------------------------------------------------------------- */

bool turn_start_own(struct step_call *c, const json_t *arguments)
{
    if (strcmp(c->name, "todo") == 0)
        start_todo(c, arguments);
    else if (strcmp(c->name, "jobs") == 0)
        start_jobs(c, arguments);
    else
        return false;
    return true;
}

bool turn_call_needs_notes(const struct step_call *c)
{
    return strcmp(c->name, "run") == 0 || strcmp(c->name, "todo") == 0;
}

void turn_stop_waiting(struct step_call *c)
{
    if (c->waits_for_job)
        session_jobs_unwait(c->turn->session, c);
    c->waits_for_job = false;
}
