/* agentctl run and send: a prompt, to a new session or to one that is there. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agentd/cli_text.h"
#include "agentd/cli_verbs.h"
#include "agentd/cli_watch.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/ulid.h"

#define MAX_INPUT (15u << 20) /* a line of the protocol is 16 MiB, escapes included */

static const char *const approve_names[] = {"ask", "never", "auto", NULL};
static const char *const thinking_names[] = {"chat", "thinking", NULL};
static const char *const mode_names[] = {"ced", "ced-report", "full", NULL};

struct run_options {
    struct cli_options cli; /* first */
    bool detach;
    const char *name, *folder, *system, *tools, *effort, *forced, *allow, *ask, *deny, *stop,
        *bias;
    int approve, thinking, mode;
    int64_t max_steps, max_tokens, seed, top_k, logprobs;
    double temperature, top_p, min_p;
};

#define OPT(field) offsetof(struct run_options, field)

static const struct option run_table[] = {
    {"detach", 'd', OPTION_FLAG, OPT(detach), .help = "print the session's name, do not wait"},
    {"name", 'n', OPTION_STRING, OPT(name), "NAME", .help = "name of the new session"},
    {"folder", 'C', OPTION_STRING, OPT(folder), "DIR", .help = "its workspace (default: here)"},
    {"approve", 0, OPTION_ENUM, OPT(approve), "HOW", .choices = approve_names,
     .help = "tools that need approval"},
    {"allow", 0, OPTION_STRING, OPT(allow), "RULES",
     .help = "calls that need no approval: 'run git log *; edit src/*', see agentd.conf(5)"},
    {"ask", 0, OPTION_STRING, OPT(ask), "RULES", .help = "calls that always need it"},
    {"deny", 0, OPTION_STRING, OPT(deny), "RULES", .help = "calls that are refused"},
    {"forced", 0, OPTION_STRING, OPT(forced), "FILE",
     .help = "recorded mode: JSON array of {ids} or {text}, one per run"},
    {"system", 0, OPTION_STRING, OPT(system), "TEXT", .help = "system message"},
    {"tools", 0, OPTION_STRING, OPT(tools), "A,B",
     .help = "tools of the daemon (default: all)"},
    {"thinking", 0, OPTION_ENUM, OPT(thinking), "MODE", .choices = thinking_names,
     .help = "of the prompt"},
    {"effort", 0, OPTION_STRING, OPT(effort), "N", .help = "low, high, max or 1..100"},
    {"max-steps", 0, OPTION_INT, OPT(max_steps), "N", .min = 1, .max = 100000,
     .help = "model steps of a turn"},
    {"max-tokens", 0, OPTION_INT, OPT(max_tokens), "N", .min = 1, .max = 1u << 31,
     .help = "generated tokens of a turn"},
    {"seed", 0, OPTION_INT, OPT(seed), "N", .min = 0, .max = INT64_MAX,
     .help = "of the sampler"},
    {"temperature", 0, OPTION_FLOAT, OPT(temperature), "T", .min = 0, .max = 100,
     .help = "0: greedy"},
    {"top-p", 0, OPTION_FLOAT, OPT(top_p), "P", .min = 0, .max = 1, .help = "nucleus"},
    {"top-k", 0, OPTION_INT, OPT(top_k), "K", .min = 0, .max = 1 << 24,
     .help = "most tokens to choose from (0: all)"},
    {"min-p", 0, OPTION_FLOAT, OPT(min_p), "P", .min = 0, .max = 1,
     .help = "least share of the best token's probability"},
    {"stop", 0, OPTION_STRING, OPT(stop), "TEXT",
     .help = "end the answer in front of it; several: a JSON array of strings"},
    {"logit-bias", 0, OPTION_STRING, OPT(bias), "ID=N,...",
     .help = "what to add to tokens' logits, -100..100"},
    {"logprobs", 0, OPTION_INT, OPT(logprobs), "N", .min = 0, .max = 20,
     .help = "record how likely each token and N others were"},
    {"mode", 0, OPTION_ENUM, OPT(mode), "MODE", .choices = mode_names, .help = "prefill"},
};

const struct command cli_run_command = {"run",
                                        "PROMPT",
                                        "start a session with a prompt (- reads it from stdin)",
                                        OPTION_TABLE(run_table),
                                        CLI_OPTION_TABLE,
                                        1,
                                        1};

struct send_options {
    struct cli_options cli; /* first */
    bool detach;
    const char *forced;
};

static const struct option send_table[] = {
    {"detach", 'd', OPTION_FLAG, offsetof(struct send_options, detach), .help = "do not wait"},
    {"forced", 0, OPTION_STRING, offsetof(struct send_options, forced), "FILE",
     .help = "recorded mode: JSON array of {ids} or {text}, one per run"},
};

const struct command cli_send_command = {"send",
                                         "NAME PROMPT",
                                         "next prompt to a session (- reads it from stdin)",
                                         OPTION_TABLE(send_table),
                                         CLI_OPTION_TABLE,
                                         2,
                                         2};

const struct command cli_steer_command = {
    "steer",
    "NAME TEXT",
    "say something to the turn in work (- reads it from stdin)",
    OPTION_TABLE_EMPTY,
    CLI_OPTION_TABLE,
    2,
    2};

/* ---- parameters ----------------------------------------------------------------- */

static enum err read_all(FILE *f, const char *what, struct buf *out, struct error *e)
{
    char chunk[16384];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) {
        enum err rc = buf_add(out, chunk, n, e);
        if (rc)
            return err_wrap(e, rc, "%s", what);
    }
    return ferror(f) ? err_sys(e, errno, "read %s", what) : OK;
}

/* The content list of a prompt; "-" is stdin. */
static enum err make_content(const char *arg, json_t **out, struct error *e)
{
    AUTO(buf) struct buf text = BUF_INIT(MAX_INPUT);
    bool from_stdin = !strcmp(arg, "-");
    enum err rc = from_stdin ? read_all(stdin, "stdin", &text, e) : buf_add_str(&text, arg, e);
    if (rc)
        return rc;
    if (text.len == 0)
        return err_set(e, ERR_INVAL, "the prompt is empty");
    json_t *s = json_stringn(buf_str(&text), text.len);
    if (!s)
        return err_set(e, ERR_INVAL, "the prompt is not UTF-8");
    *out = json_pack("[{s:s, s:o}]", "type", "text", "text", s);
    return *out ? OK : err_set(e, ERR_NOMEM, "prompt");
}

static enum err load_forced(const char *path, json_t **out, struct error *e)
{
    const struct json_limits limits = {.max_bytes = MAX_INPUT, .max_depth = 8};
    AUTO(buf) struct buf text = BUF_INIT(MAX_INPUT);
    AUTO_FILE FILE *f = fopen(path, "re");
    json_t *list = NULL;
    if (!f)
        return err_sys(e, errno, "%s", path);
    enum err rc = read_all(f, path, &text, e);
    if (!rc)
        rc = json_parse(buf_str(&text), text.len, &limits, &list, e);
    if (rc)
        return err_wrap(e, rc == ERR_FORMAT ? ERR_INVAL : rc, "%s", path);
    if (!json_is_array(list)) {
        json_decref(list);
        return err_set(e, ERR_INVAL, "%s: want an array with one entry per run", path);
    }
    *out = list;
    return OK;
}

static json_t *split_names(const char *list)
{
    json_t *names = json_array();
    while (*list) {
        size_t n = strcspn(list, ",");
        if (n)
            json_array_append_new(names, json_stringn(list, n));
        list += n + (list[n] == ',');
    }
    return names;
}

/* A relative folder is meant from here, not from where the daemon runs. */
static enum err workspace(const char *folder, json_t *params, struct error *e)
{
    const char *dir = folder ? folder : ".";
    AUTO_FREE char *path = realpath(dir, NULL);
    if (!path)
        return err_sys(e, errno, "workspace %s", dir);
    json_t *s = json_string(path);
    if (!s)
        return err_set(e, ERR_INVAL, "workspace %s: its path is not UTF-8", dir);
    json_object_set_new(params, "cwd", s);
    return OK;
}

static void set_string(json_t *params, const char *field, const char *value)
{
    if (value)
        json_object_set_new(params, field, json_string(value));
}

static void add_rules(json_t *list, const char *verdict, const char *rules)
{
    if (rules)
        json_array_append_new(list, json_sprintf("%s %s", verdict, rules));
}

/* One stop string, or a JSON array of them. */
static enum err set_stop(json_t *params, const char *stop, struct error *e)
{
    const struct json_limits limits = {.max_bytes = MAX_INPUT, .max_depth = 2};
    json_t *list = NULL;
    if (stop[0] == '[') {
        enum err rc = json_parse(stop, strlen(stop), &limits, &list, e);
        if (rc)
            return err_wrap(e, ERR_INVAL, "--stop");
    } else if (!(list = json_pack("[s]", stop))) {
        return err_set(e, ERR_INVAL, "--stop: not UTF-8");
    }
    json_object_set_new(params, "stop", list);
    return OK;
}

/* ID=N,ID=N: the daemon looks at the ids. */
static enum err set_bias(json_t *params, const char *list, struct error *e)
{
    json_t *map = json_object();
    json_object_set_new(params, "logitBias", map);
    for (const char *at = list; *at;) {
        char id[16] = "", *end = NULL;
        size_t n = strcspn(at, "=,");
        if (at[n] == '=' && n < sizeof id) {
            memcpy(id, at, n);
            double value = strtod(at + n + 1, &end);
            if (end > at + n + 1 && (*end == ',' || !*end) && isfinite(value))
                json_object_set_new(map, id, json_real(value));
        }
        if (!end || (*end && *end != ',') || !json_object_get(map, id))
            return err_set(e, ERR_INVAL, "--logit-bias: want ID=NUMBER,... at \"%.40s\"", at);
        at = *end ? end + 1 : end;
    }
    return OK;
}

static enum err sampling_params(const struct run_options *o, const struct options *seen,
                                json_t *p, struct error *e)
{
    const struct command *c = &cli_run_command;
    if (options_has(c, seen, "seed"))
        json_object_set_new(p, "seed", json_integer(o->seed));
    if (options_has(c, seen, "temperature"))
        json_object_set_new(p, "temperature", json_real(o->temperature));
    if (options_has(c, seen, "top-p"))
        json_object_set_new(p, "topP", json_real(o->top_p));
    if (options_has(c, seen, "top-k"))
        json_object_set_new(p, "topK", json_integer(o->top_k));
    if (options_has(c, seen, "min-p"))
        json_object_set_new(p, "minP", json_real(o->min_p));
    if (options_has(c, seen, "logprobs"))
        json_object_set_new(p, "topLogprobs", json_integer(o->logprobs));
    enum err rc = o->stop ? set_stop(p, o->stop, e) : OK;
    return rc || !o->bias ? rc : set_bias(p, o->bias, e);
}

/* Only what was said: the daemon's defaults are the daemon's. */
static enum err new_params(const struct run_options *o, const struct options *seen, json_t *p,
                           struct error *e)
{
    const struct command *c = &cli_run_command;
    json_t *rules = json_array();
    add_rules(rules, "allow", o->allow);
    add_rules(rules, "ask", o->ask);
    add_rules(rules, "deny", o->deny);
    if (json_array_size(rules))
        json_object_set(p, "rules", rules);
    json_decref(rules);
    set_string(p, "name", o->name);
    set_string(p, "system", o->system);
    if (o->effort && strspn(o->effort, "0123456789") == strlen(o->effort))
        json_object_set_new(p, "effort", json_integer(atoll(o->effort)));
    else
        set_string(p, "effort", o->effort);
    if (o->tools)
        json_object_set_new(p, "tools", split_names(o->tools));
    if (options_has(c, seen, "approve"))
        set_string(p, "approve", approve_names[o->approve]);
    if (options_has(c, seen, "thinking"))
        set_string(p, "thinkingMode", thinking_names[o->thinking]);
    if (options_has(c, seen, "mode"))
        set_string(p, "mode", mode_names[o->mode]);
    if (options_has(c, seen, "max-steps"))
        json_object_set_new(p, "maxSteps", json_integer(o->max_steps));
    if (options_has(c, seen, "max-tokens"))
        json_object_set_new(p, "maxTokens", json_integer(o->max_tokens));
    enum err rc = sampling_params(o, seen, p, e);
    return rc ? rc : workspace(o->folder, p, e);
}

/* ---- doing it ------------------------------------------------------------------- */

struct prompt {
    json_t *content, *forced; /* forced may be NULL */
    bool detach;
};

static void prompt_fini(struct prompt *p)
{
    json_decref(p->content);
    json_decref(p->forced);
}

static enum err make_prompt(struct prompt *p, const char *text, const char *forced, bool detach,
                            struct error *e)
{
    p->detach = detach;
    enum err rc = make_content(text, &p->content, e);
    return rc || !forced ? rc : load_forced(forced, &p->forced, e);
}

/* A daemon that gets the same prompt twice answers with the first receipt. */
static json_t *prompt_params(const struct prompt *p, const char *id)
{
    struct ulid_source ids;
    char message[ULID_CHARS + 1];
    ulid_init(&ids, clock_real());
    ulid_next(&ids, message);
    return json_pack("{s:s, s:s, s:O, s:O*}", "id", id, "clientMessageId", message, "content",
                     p->content, "forced", p->forced);
}

static void print_receipt(const struct cli_options *o, const char *id, const char *name,
                          const json_t *receipt)
{
    json_auto_t *out = json_pack("{s:s, s:s}", "id", id, "name", name);
    json_object_update(out, (json_t *)(uintptr_t)receipt);
    if (o->json || o->jsonl)
        cli_json_print(stdout, out, o->json);
    else
        printf("%s\n", name);
}

/* Attaches, so that nothing of the turn is missed, prompts, and stays to its end. */
static int prompt_session(struct watch *w, const struct prompt *p, const char *id,
                          const char *name)
{
    json_auto_t *receipt = NULL, *attached = NULL;
    struct error e;
    enum err rc = OK;
    if (!p->detach)
        rc = cli_call(w->cli, "session/attach",
                      json_pack("{s:s, s:s}", "id", id, "mode", "control"), &attached, &e);
    if (!rc)
        rc = cli_call(w->cli, "session/prompt", prompt_params(p, id), &receipt, &e);
    if (rc)
        return cli_fail(w->cli, rc, &e);
    if (cli_int(receipt, "queued") > 0)
        cli_note(w->cli, "%s is busy: the prompt is number %lld in its queue", name,
                 (long long)cli_int(receipt, "queued"));
    if (!p->detach) {
        snprintf(w->turn, sizeof w->turn, "%s", cli_str(receipt, "turnId"));
        return watch_turn(w, id, name);
    }
    print_receipt(w->o, id, name, receipt);
    return EXIT_DONE;
}

static int run_with(struct watch *w, const struct run_options *o, const struct options *seen,
                    const struct prompt *p)
{
    json_auto_t *params = json_object(), *session = NULL;
    struct error e;
    enum err rc = new_params(o, seen, params, &e);
    if (!rc)
        rc = cli_call(w->cli, "session/new", json_incref(params), &session, &e);
    if (rc)
        return cli_fail(w->cli, rc, &e);
    if (!p->detach)
        cli_note(w->cli, "session %s", cli_str(session, "name"));
    return prompt_session(w, p, cli_str(session, "id"), cli_str(session, "name"));
}

static int send_with(struct watch *w, const char *key, const struct prompt *p)
{
    json_auto_t *session = NULL;
    char id[CLI_ID_CAP];
    struct error e;
    enum err rc = cli_resolve(w->cli, key, id, &session, &e);
    if (rc)
        return cli_fail(w->cli, rc, &e);
    return prompt_session(w, p, id, cli_str(session, "name"));
}

int cli_run(int argc, char **argv)
{
    struct run_options o = {0};
    struct options seen;
    struct cli x;
    struct watch w;
    struct error e;
    int code = cli_parse(&cli_run_command, argc, argv, &o, &seen);
    if (code != CLI_GO_ON)
        return code;
    AUTO(prompt) struct prompt p = {0};
    if (make_prompt(&p, seen.args[0], o.forced, o.detach, &e))
        return cli_usage(&cli_run_command, "%s", e.msg);
    watch_init(&w, &o.cli);
    w.cli = &x;
    code = cli_open(&x, &cli_run_command, &o.cli, watch_notify, &w);
    if (code == CLI_GO_ON)
        code = run_with(&w, &o, &seen, &p);
    watch_fini(&w);
    cli_close(&x);
    return code;
}

int cli_send(int argc, char **argv)
{
    struct send_options o = {0};
    struct options seen;
    struct cli x;
    struct watch w;
    struct error e;
    int code = cli_parse(&cli_send_command, argc, argv, &o, &seen);
    if (code != CLI_GO_ON)
        return code;
    AUTO(prompt) struct prompt p = {0};
    if (make_prompt(&p, seen.args[1], o.forced, o.detach, &e))
        return cli_usage(&cli_send_command, "%s", e.msg);
    watch_init(&w, &o.cli);
    w.cli = &x;
    code = cli_open(&x, &cli_send_command, &o.cli, watch_notify, &w);
    if (code == CLI_GO_ON)
        code = send_with(&w, seen.args[0], &p);
    watch_fini(&w);
    cli_close(&x);
    return code;
}

static int steer_with(struct cli *x, const struct cli_options *o, const char *key,
                      const json_t *content)
{
    json_auto_t *session = NULL, *receipt = NULL;
    char id[CLI_ID_CAP];
    struct error e;
    enum err rc = cli_resolve(x, key, id, &session, &e);
    if (!rc)
        rc = cli_call(x, "session/steer", json_pack("{s:s, s:O}", "id", id, "content", content),
                      &receipt, &e);
    if (rc)
        return cli_fail(x, rc, &e);
    if (!json_is_true(json_object_get(receipt, "steered")))
        cli_note(x, "no turn takes it: it is a prompt of its own");
    print_receipt(o, id, cli_str(session, "name"), receipt);
    return EXIT_DONE;
}

int cli_steer(int argc, char **argv)
{
    struct cli_options o = {0};
    json_auto_t *content = NULL;
    struct options seen;
    struct cli x;
    struct error e;
    int code = cli_parse(&cli_steer_command, argc, argv, &o, &seen);
    if (code != CLI_GO_ON)
        return code;
    if (make_content(seen.args[1], &content, &e))
        return cli_usage(&cli_steer_command, "%s", e.msg);
    code = cli_open(&x, &cli_steer_command, &o, NULL, NULL);
    if (code == CLI_GO_ON)
        code = steer_with(&x, &o, seen.args[0], content);
    cli_close(&x);
    return code;
}
