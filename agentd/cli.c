#include "agentd/cli.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "agentd/cli_text.h"
#include "base/auto.h"
#include "base/clock.h"

#define OPT(field) offsetof(struct cli_options, field)

const struct option cli_option_table[CLI_N_OPTIONS] = {
    {"json", 0, OPTION_FLAG, OPT(json), .help = "result as one JSON object"},
    {"jsonl", 0, OPTION_FLAG, OPT(jsonl), .help = "events, or rows, as JSON lines"},
    {"quiet", 'q', OPTION_FLAG, OPT(quiet), .help = "no progress and no notices"},
    {"verbose", 'v', OPTION_COUNT, OPT(verbose), .help = "more on stderr"},
    {"no-color", 0, OPTION_FLAG, OPT(no_color), .help = "no colours (also: NO_COLOR)"},
    {"socket", 0, OPTION_STRING, OPT(socket), "PATH",
     .help = "socket of the daemon (also: AGENTD_SOCKET)"},
    {"timeout", 0, OPTION_FLOAT, OPT(timeout_s), "SECONDS", .min = 0, .max = 100000000,
     .help = "give up waiting after this time: exit code 124"},
};

/* ---- options -------------------------------------------------------------------- */

int cli_parse(const struct command *c, int argc, char **argv, void *values, struct options *out)
{
    struct error e;
    enum err rc = options_parse(c, argc, (const char *const *)argv, values, out, &e);
    if (rc)
        return cli_usage(c, "%s", e.msg);
    if (!out->help)
        return CLI_GO_ON;
    options_usage(c, "agentctl", stdout);
    return EXIT_DONE;
}

int cli_usage(const struct command *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "agentctl %s: ", c->name);
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, " (see agentctl %s --help)\n", c->name);
    va_end(ap);
    return EXIT_USAGE;
}

/* ---- context -------------------------------------------------------------------- */

static int64_t now_ms(void)
{
    return (int64_t)(clock_mono_ns(clock_real()) / 1000000u);
}

static enum err catch_signals(struct cli *x, struct error *e)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    x->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return x->signals < 0 ? err_sys(e, errno, "signalfd") : OK;
}

int cli_open(struct cli *x, const struct command *c, const struct cli_options *o,
             client_notify_fn *notify, void *user)
{
    struct error e;
    *x = (struct cli){.verb = c->name, .o = o, .signals = -1, .deadline_ms = INT64_MAX};
    if (o->timeout_s > 0)
        x->deadline_ms = now_ms() + (int64_t)(o->timeout_s * 1000);
    enum err rc = catch_signals(x, &e);
    struct client_options options = {.socket_path = o->socket,
                                     .name = "agentctl",
                                     .notify = notify,
                                     .user = user,
                                     .timeout_ms = cli_time_left(x),
                                     .wake_fd = x->signals};
    if (!rc)
        rc = client_open(&x->client, &options, &e);
    if (!rc)
        return CLI_GO_ON;
    int code = cli_fail(x, rc, &e);
    cli_close(x);
    return code;
}

void cli_close(struct cli *x)
{
    client_free(x->client);
    if (x->signals > 0)
        close(x->signals);
    x->client = NULL;
    x->signals = -1;
}

int cli_time_left(const struct cli *x)
{
    if (x->deadline_ms == INT64_MAX)
        return -1;
    int64_t left = x->deadline_ms - now_ms();
    return left < 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left;
}

enum err cli_call(struct cli *x, const char *method, json_t *take_params, json_t **result,
                  struct error *e)
{
    uint64_t id;
    enum err rc = client_start(x->client, method, take_params, &id, e);
    if (rc)
        return rc;
    rc = client_await(x->client, id, cli_time_left(x), result, e);
    client_forget(x->client, id);
    return rc;
}

int cli_fail(const struct cli *x, enum err rc, const struct error *e)
{
    const struct client_failure *f = x->client ? client_failure(x->client) : NULL;
    bool refused = f && f->code;
    fprintf(stderr, "agentctl %s: ", x->verb);
    cli_text_print(stderr, e->msg);
    if (refused && f->hint[0]) {
        fputs(" (", stderr);
        cli_text_print(stderr, f->hint);
        fputs(")", stderr);
    }
    fputs("\n", stderr);
    if (refused && f->retryable && (f->code == -32001 || f->retry_after_ms >= 0))
        return EXIT_AGAIN;
    return verb_exit_code(rc);
}

void cli_note(const struct cli *x, const char *fmt, ...)
{
    if (x->o->quiet)
        return;
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputs("\n", stderr);
}

/* ---- sessions ------------------------------------------------------------------- */

const char *cli_str(const json_t *object, const char *field)
{
    const char *s = json_string_value(json_object_get(object, field));
    return s ? s : "";
}

int64_t cli_int(const json_t *object, const char *field)
{
    const json_t *v = json_object_get(object, field);
    return json_is_integer(v) ? json_integer_value(v) : (int64_t)json_number_value(v);
}

double cli_num(const json_t *object, const char *field)
{
    return json_number_value(json_object_get(object, field));
}

enum err cli_split_seq(const char *arg, char *key, size_t cap, uint64_t *seq, struct error *e)
{
    const char *at = strrchr(arg, '@');
    size_t n = at && at != arg ? (size_t)(at - arg) : strlen(arg);
    int64_t value = 0;
    if (at && at != arg && options_parse_int(at + 1, 1, INT64_MAX, &value, e))
        return err_wrap(e, ERR_INVAL, "%.60s: behind @", arg);
    if (n == 0 || n >= cap)
        return err_set(e, ERR_INVAL, "%.60s: not the name of a session", arg);
    memcpy(key, arg, n);
    key[n] = 0;
    *seq = (uint64_t)value;
    return OK;
}

/* How well a session fits what the user wrote: 2 as a whole, 1 as a prefix, 0 not. */
static int fit(const json_t *session, const char *key)
{
    const char *id = cli_str(session, "id"), *name = cli_str(session, "name");
    size_t n = strlen(key);
    if (!strcmp(name, key) || !strcasecmp(id, key))
        return 2;
    return !strncmp(name, key, n) || !strncasecmp(id, key, n);
}

/* The best fit among all; among prefixes only if there is one. */
static enum err pick(const json_t *sessions, const char *key, json_t **out, struct error *e)
{
    size_t i, n = 0;
    json_t *s, *found = NULL;
    char names[160] = "";
    json_array_foreach(sessions, i, s) {
        int f = fit(s, key);
        if (f == 2) {
            *out = s;
            return OK;
        }
        if (!f)
            continue;
        found = s;
        size_t len = strlen(names);
        if (n++ < 5)
            snprintf(names + len, sizeof names - len, "%s%.28s", len ? ", " : "",
                     cli_str(s, "name"));
    }
    if (n > 1)
        return err_set(e, ERR_NOTFOUND, "%.40s is ambiguous: %s%s", key, names,
                       n > 5 ? ", ..." : "");
    if (!found)
        return err_set(e, ERR_NOTFOUND, "no session %.60s", key);
    *out = found;
    return OK;
}

/* The list is sorted: last used first. */
static enum err pick_here(const json_t *sessions, json_t **out, struct error *e)
{
    AUTO_FREE char *cwd = getcwd(NULL, 0);
    size_t i;
    json_t *s;
    if (!cwd)
        return err_sys(e, errno, "current folder");
    json_array_foreach(sessions, i, s)
        if (!strcmp(cli_str(s, "cwd"), cwd)) {
            *out = s;
            return OK;
        }
    return err_set(e, ERR_NOTFOUND, "no session was used in %.160s", cwd);
}

enum err cli_resolve(struct cli *x, const char *key, char id[CLI_ID_CAP], json_t **session,
                     struct error *e)
{
    json_auto_t *list = NULL;
    json_t *found = NULL;
    if (!*key)
        return err_set(e, ERR_INVAL, "the name of a session is empty");
    enum err rc = cli_call(x, "session/list", json_object(), &list, e);
    if (rc)
        return rc;
    const json_t *sessions = json_object_get(list, "sessions");
    rc = strcmp(key, "@-") ? pick(sessions, key, &found, e) : pick_here(sessions, &found, e);
    if (rc)
        return rc;
    snprintf(id, CLI_ID_CAP, "%s", cli_str(found, "id"));
    if (session)
        *session = json_incref(found);
    return OK;
}
