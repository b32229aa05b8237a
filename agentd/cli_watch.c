#include "agentd/cli_watch.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "agentd/cli_text.h"
#include "base/clock.h"

#define STREAM_MAX (16u << 20)
/* Where nobody looks at a terminal: one line of progress in so much time. */
#define PLAIN_STATUS_MS 10000
#define TTY_STATUS_MS 1000
#define RESULT_LINES 4
#define RESULT_BYTES 400
#define ARGUMENT_BYTES 200

static int64_t now_ms(void)
{
    return (int64_t)(clock_mono_ns(clock_real()) / 1000000u);
}

void watch_init(struct watch *w, const struct cli_options *o)
{
    bool plain = !o->json && !o->jsonl;
    *w = (struct watch){.o = o,
                        .stream = plain && !o->quiet && isatty(STDOUT_FILENO),
                        .status_tty = !o->quiet && isatty(STDERR_FILENO),
                        .status_ms = now_ms(),
                        .phase_ms = now_ms(),
                        .calls = json_object()};
    buf_init(&w->streamed, STREAM_MAX);
}

void watch_fini(struct watch *w)
{
    watch_clear_status(w);
    buf_fini(&w->streamed);
    json_decref(w->calls);
    w->calls = NULL;
}

/* ---- status line ---------------------------------------------------------------- */

void watch_clear_status(struct watch *w)
{
    if (w->status_shown)
        fputs("\r\x1b[K", stderr);
    w->status_shown = false;
}

static void show_status(struct watch *w, const char *line)
{
    if (w->o->quiet || w->o->jsonl || w->print_items)
        return;
    int64_t now = now_ms();
    if (!w->status_tty && now - w->status_ms < PLAIN_STATUS_MS)
        return;
    if (w->status_tty && w->mid_line)
        return; /* the answer is being written on this line */
    w->status_ms = now;
    watch_clear_status(w);
    fprintf(stderr, w->status_tty ? "%s" : "%s\n", line);
    w->status_shown = w->status_tty;
}

static void on_progress(struct watch *w, const json_t *params)
{
    AUTO(buf) struct buf line = BUF_INIT(1024);
    struct error e;
    if (cli_int(params, "total") == 0)
        return; /* a sign of life: tick() says more */
    w->heard_ms = now_ms();
    if (!cli_progress_line(params, &line, &e))
        show_status(w, buf_str(&line));
}

/* Nothing was heard for a while: say what state the session is in, and since when. */
static void tick(struct watch *w)
{
    char line[96], t[CLI_FIGURE_BYTES];
    int64_t now = now_ms(), newest = w->heard_ms > w->status_ms ? w->heard_ms : w->status_ms;
    if (!w->phase[0] || now - newest < TTY_STATUS_MS)
        return;
    snprintf(line, sizeof line, "%s · %s", w->phase,
             cli_duration((double)(now - w->phase_ms), t));
    show_status(w, line);
}

void watch_state(struct watch *w, const json_t *object)
{
    const char *state = cli_str(object, "state");
    if (!strcmp(state, w->phase))
        return;
    snprintf(w->phase, sizeof w->phase, "%.20s", state);
    for (char *p = w->phase; *p; p++)
        if (*p < ' ' || *p > '~')
            *p = '?';
    w->phase_ms = now_ms();
}

/* ---- items ---------------------------------------------------------------------- */

static void end_stream(struct watch *w)
{
    if (w->mid_line)
        fputs("\n", stdout);
    w->mid_line = false;
}

static bool is_colored(const struct watch *w, FILE *f)
{
    const char *no = getenv("NO_COLOR");
    return !w->o->no_color && !(no && *no) && isatty(fileno(f));
}

static void print_call(const struct watch *w, FILE *f, const json_t *item)
{
    const json_t *arguments = json_object_get(item, "arguments");
    AUTO_FREE char *text = json_is_string(arguments)
                               ? strdup(json_string_value(arguments))
                               : json_dumps(arguments, JSON_COMPACT | JSON_ENCODE_ANY);
    size_t cap = w->print_items || w->o->verbose ? SIZE_MAX : ARGUMENT_BYTES;
    const char *status = cli_str(item, "status");
    fputs(is_colored(w, f) ? "\x1b[36m→\x1b[0m " : "→ ", f);
    cli_text_print(f, cli_str(item, "name"));
    if (*status && strcmp(status, "started")) {
        fputs(" [", f);
        cli_text_print(f, status);
        fputs("]", f);
    }
    fputs(" ", f);
    cli_text_print_head(f, text ? text : "", cap == SIZE_MAX ? SIZE_MAX : 1, cap, "    ");
}

static void print_result(const struct watch *w, FILE *f, const json_t *item)
{
    const char *status = cli_str(item, "status");
    bool whole = w->o->verbose || w->only_seq;
    fputs(is_colored(w, f) ? "\x1b[36m←\x1b[0m " : "← ", f);
    if (*status) {
        cli_text_print(f, status);
        fputs(": ", f);
    }
    cli_text_print_head(f, cli_str(item, "text"), whole ? SIZE_MAX : RESULT_LINES,
                        whole ? SIZE_MAX : RESULT_BYTES, "    ");
}

static void print_item(const struct watch *w, FILE *f, const json_t *item)
{
    const char *kind = cli_str(item, "kind");
    if (!strcmp(kind, "tool_call")) {
        print_call(w, f, item);
    } else if (!strcmp(kind, "tool_result")) {
        print_result(w, f, item);
    } else {
        cli_text_print(f, kind);
        fputs(": ", f);
        cli_text_print_head(f, cli_str(item, "text"), SIZE_MAX, SIZE_MAX, "    ");
    }
}

/* What a person who watches a turn wants to see of an item; the answer comes on stdout. */
static bool is_news(const struct watch *w, const json_t *item)
{
    const char *kind = cli_str(item, "kind");
    if (w->o->quiet)
        return false;
    return !strcmp(kind, "tool_call") || !strcmp(kind, "tool_result") ||
           !strcmp(kind, "note") || w->o->verbose;
}

/* A call comes again whenever its status changes; one line is enough, if not asked for more. */
static bool is_shown_call(struct watch *w, const json_t *item)
{
    const char *id = cli_str(item, "callId");
    if (strcmp(cli_str(item, "kind"), "tool_call") || !*id || w->o->verbose || w->only_seq)
        return false;
    bool is_shown = json_object_get(w->calls, id);
    json_object_set_new(w->calls, id, json_true());
    return is_shown;
}

static void print_error(FILE *f, const json_t *params)
{
    const json_t *error = json_object_get(params, "error");
    fputs("error: ", f);
    cli_text_print(f, cli_str(error, "message"));
    fputs("\n", f);
}

static void on_event(struct watch *w, const json_t *params)
{
    const json_t *item = json_object_get(params, "item");
    const char *type = cli_str(params, "type");
    FILE *f = w->print_items ? stdout : stderr;
    uint64_t seq = (uint64_t)cli_int(params, "seq");
    w->last_seq = seq;
    if (w->only_seq && seq != w->only_seq)
        return;
    w->found = true;
    if (!strcmp(type, "state"))
        watch_state(w, params);
    bool is_item =
        json_is_object(item) && (w->print_items || is_news(w, item)) && !is_shown_call(w, item);
    if (!is_item && strcmp(type, "error"))
        return;
    watch_clear_status(w);
    end_stream(w);
    if (w->print_items)
        fprintf(f, "@%llu ", (unsigned long long)seq);
    if (is_item)
        print_item(w, f, item);
    else
        print_error(f, params);
    fflush(f);
}

static void on_delta(struct watch *w, const json_t *params)
{
    const char *id = cli_str(params, "itemId"), *text = cli_str(params, "text");
    const char *kind = cli_str(params, "kind");
    if (!w->stream || w->print_items || strcmp(kind, "assistant"))
        return;
    if (strcmp(id, w->item)) {
        end_stream(w);
        buf_clear(&w->streamed);
        snprintf(w->item, sizeof w->item, "%.60s", id);
    }
    if ((uint64_t)cli_int(params, "offset") != w->streamed.len)
        return; /* a piece was dropped: the whole comes at the end */
    if (buf_add_str(&w->streamed, text, NULL))
        return;
    watch_clear_status(w);
    cli_text_print(stdout, text);
    fflush(stdout);
    w->mid_line = w->mid_line || *text;
}

/* --jsonl: the notification as it came. */
static void print_line(struct watch *w, const char *method, const json_t *params)
{
    if (!strcmp(method, "session/event"))
        w->last_seq = (uint64_t)cli_int(params, "seq");
    if (w->only_seq && w->last_seq != w->only_seq)
        return;
    w->found = true;
    json_auto_t *line = json_pack("{s:s, s:O?}", "method", method, "params", params);
    cli_json_print(stdout, line, false);
    fflush(stdout);
}

void watch_notify(void *user, const char *method, const json_t *params)
{
    struct watch *w = user;
    if (!strcmp(method, "session/live"))
        w->caught_up = true;
    if (w->o->jsonl)
        print_line(w, method, params);
    else if (!strcmp(method, "session/event"))
        on_event(w, params);
    else if (!strcmp(method, "session/delta"))
        on_delta(w, params);
    else if (!strcmp(method, "session/state"))
        watch_state(w, params);
    else if (!strcmp(method, "session/progress"))
        on_progress(w, params);
}

/* ---- approvals ------------------------------------------------------------------ */

/* One letter from the terminal; 0 when interrupted or at its end. */
static char ask(struct watch *w, const json_t *approval)
{
    struct pollfd p[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                          {.fd = w->cli->signals, .events = POLLIN}};
    char line[64];
    watch_clear_status(w);
    end_stream(w);
    fputs("allow ", stderr);
    print_call(w, stderr, approval);
    if (cli_str(approval, "reason")[0]) {
        fputs("because of ", stderr);
        cli_text_print(stderr, cli_str(approval, "reason"));
        fputs("\n", stderr);
    }
    fputs("[y]es, for the [s]ession, [n]o? ", stderr);
    while (poll(p, 2, cli_time_left(w->cli)) < 0 && errno == EINTR)
        ;
    if (p[1].revents || !p[0].revents || !fgets(line, sizeof line, stdin))
        return 0;
    return line[0];
}

static enum err resolve(struct watch *w, const json_t *approval, struct error *e)
{
    char c = ask(w, approval);
    const char *outcome = c == 'y' ? "once" : c == 's' ? "session" : "reject";
    if (!c)
        return err_set(e, ERR_CANCELLED, "interrupted");
    enum err rc = cli_call(w->cli, "approval/resolve",
                           json_pack("{s:s, s:s}", "approvalId",
                                     cli_str(approval, "approvalId"), "outcome", outcome),
                           NULL, e);
    return rc == ERR_CONFLICT ? OK : rc; /* somebody else was first */
}

/* *acted: an answer was given, or nothing waits for one any more. */
static enum err act(struct watch *w, const char *id, bool *acted, struct error *e)
{
    json_auto_t *list = NULL, *session = NULL;
    const json_t *a;
    size_t i;
    bool on_terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
    *acted = false;
    enum err rc = cli_call(w->cli, "approval/list", json_object(), &list, e);
    if (rc)
        return rc;
    json_array_foreach(json_object_get(list, "approvals"), i, a) {
        if (strcmp(cli_str(a, "sessionId"), id))
            continue;
        if (!on_terminal)
            return OK;
        if ((rc = resolve(w, a, e)))
            return rc;
        *acted = true;
    }
    if (*acted)
        return OK;
    rc = cli_call(w->cli, "session/get", json_pack("{s:s}", "id", id), &session, e);
    *acted = !rc && strcmp(cli_str(session, "state"), "requires_action");
    return rc;
}

/* ---- waiting -------------------------------------------------------------------- */

int watch_exit_code(const json_t *waited)
{
    static const struct {
        const char *reason;
        int code;
    } codes[] = {
        {"length", EXIT_LIMIT}, {"cancelled", EXIT_INTERRUPTED},  {"failed", EXIT_MODEL},
        {"loop", EXIT_FAILED},  {"requires_action", EXIT_DENIED},
    };
    const char *reason = cli_str(waited, "reason");
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (!strcmp(reason, codes[i].reason))
            return codes[i].code;
    if (strcmp(reason, "end"))
        return EXIT_FAILED;
    return *cli_str(waited, "text") ? EXIT_DONE : EXIT_FAILED;
}

static void print_answer(struct watch *w, const json_t *waited)
{
    const char *text = cli_str(waited, "text");
    if (w->o->json || w->o->jsonl) {
        cli_json_print(stdout, waited, w->o->json);
        return;
    }
    bool is_shown = w->mid_line && !strcmp(buf_str(&w->streamed), text);
    end_stream(w);
    if (!is_shown && *text) {
        cli_text_print(stdout, text);
        if (text[strlen(text) - 1] != '\n')
            fputs("\n", stdout);
    }
    fflush(stdout);
}

static void print_end(struct watch *w, const json_t *waited, const char *name)
{
    const char *reason = cli_str(waited, "reason");
    if (strcmp(reason, "end"))
        cli_note(w->cli, "%s: the turn ended without an answer of its own: %s", name, reason);
    else if (!*cli_str(waited, "text"))
        cli_note(w->cli, "%s: the answer is empty", name);
    if (w->o->verbose)
        cli_ledger_print(stderr, json_object_get(waited, "ledger"),
                         json_object_get(waited, "resume"));
}

static void drain_signals(struct cli *x, bool *terminate)
{
    struct signalfd_siginfo info;
    while (read(x->signals, &info, sizeof info) == (ssize_t)sizeof info)
        *terminate = *terminate || info.ssi_signo == SIGTERM;
}

static json_t *turn_params(const struct watch *w, const char *id)
{
    return json_pack("{s:s, s:s*}", "id", id, "turnId", w->turn[0] ? w->turn : NULL);
}

/* True: leave now. The first interruption asks the daemon to cancel the turn; one that comes
 * while it has not answered yet is the second. */
static bool on_interrupt(struct watch *w, const char *id, const char *name, int *count)
{
    bool terminate = false;
    struct error e;
    drain_signals(w->cli, &terminate);
    watch_clear_status(w);
    end_stream(w);
    if (!terminate && ++*count == 1) {
        cli_note(w->cli, "cancelling the turn; Ctrl-C again leaves it alone");
        enum err rc = cli_call(w->cli, "session/cancel", turn_params(w, id), NULL, &e);
        if (!rc)
            return false;
        if (rc != ERR_CANCELLED) {
            cli_note(w->cli, "cancel: %s", e.msg);
            return true;
        }
    }
    cli_note(w->cli, "detached; agentctl wait %s says how it ends", name);
    return true;
}

static int left_alone(struct watch *w, enum err rc, const struct error *e, const char *name)
{
    watch_clear_status(w);
    end_stream(w);
    if (rc != ERR_TIMEOUT)
        return cli_fail(w->cli, rc, e);
    cli_note(w->cli, "%s still works on it: agentctl wait %s", name, name);
    return EXIT_TIMEOUT;
}

static int finish(struct watch *w, const json_t *waited, const char *name, int n_interrupts)
{
    int code = watch_exit_code(waited);
    watch_clear_status(w);
    print_answer(w, waited);
    print_end(w, waited, name);
    return n_interrupts && code != EXIT_DONE ? EXIT_INTERRUPTED : code;
}

/* As long as the slice lasts, or the deadline. */
static int slice_ms(const struct watch *w)
{
    int slice = w->status_tty ? TTY_STATUS_MS : PLAIN_STATUS_MS;
    int left = cli_time_left(w->cli);
    return left >= 0 && left < slice ? left : slice;
}

int watch_turn(struct watch *w, const char *id, const char *name)
{
    int n_interrupts = 0;
    for (;;) {
        json_auto_t *waited = NULL;
        struct error e;
        uint64_t call;
        enum err rc =
            client_start(w->cli->client, "session/wait", turn_params(w, id), &call, &e);
        while (!rc) {
            rc = client_await(w->cli->client, call, slice_ms(w), &waited, &e);
            if (rc == ERR_TIMEOUT && cli_time_left(w->cli) != 0) {
                tick(w);
                rc = OK;
            } else if (rc == ERR_CANCELLED && !waited) {
                if (on_interrupt(w, id, name, &n_interrupts))
                    return EXIT_INTERRUPTED;
                rc = OK;
            } else {
                break;
            }
        }
        if (rc)
            return left_alone(w, rc, &e, name);
        if (strcmp(cli_str(waited, "state"), "requires_action"))
            return finish(w, waited, name, n_interrupts);
        bool acted;
        rc = act(w, id, &acted, &e);
        if (rc)
            return left_alone(w, rc, &e, name);
        if (!acted) {
            cli_note(w->cli, "%s waits for an approval: agentctl approvals", name);
            return finish(w, waited, name, n_interrupts);
        }
    }
}

enum err watch_events(struct watch *w, struct error *e)
{
    while (w->follow || !(w->caught_up || (w->only_seq && w->last_seq >= w->only_seq))) {
        enum err rc = client_poll(w->cli->client, cli_time_left(w->cli), e);
        if (rc)
            return rc;
    }
    return OK;
}
