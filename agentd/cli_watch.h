/* Following a session on the terminal: what happens in it as lines and a status line on stderr,
 * the answer on stdout, Ctrl-C, and how the turn's end becomes an exit code.
 *
 *     struct watch w;
 *     watch_init(&w, &options);
 *     code = cli_open(&x, command, &options, watch_notify, &w);
 *     w.cli = &x; ... session/attach, session/prompt ...
 *     code = watch_turn(&w, id, name);
 *     watch_fini(&w);
 *
 * With --jsonl every notification of the session is a line {"method", "params"} on stdout, and
 * the session/wait object is the last one. With --json the session/wait object is all there is.
 */
#ifndef AGENTD_CLI_WATCH_H
#define AGENTD_CLI_WATCH_H

#include "agentd/cli.h"
#include "base/buf.h"

struct watch {
    struct cli *cli;
    const struct cli_options *o;
    char turn[64];   /* wait for this turn, and cancel it; "": whatever the session does */
    bool stream;     /* stdout is a terminal: show the answer while it is made */
    bool status_tty; /* stderr is a terminal: one status line */
    bool status_shown;
    int64_t heard_ms;    /* when session/progress came last */
    int64_t status_ms;   /* when a status was last shown, monotonic */
    char phase[32];      /* public state of the session */
    int64_t phase_ms;    /* since when */
    bool mid_line;       /* stdout stands behind streamed text */
    char item[64];       /* the item that was streamed last */
    struct buf streamed; /* its text so far */
    json_t *calls;       /* ids of the tool calls that were shown */
    bool print_items;    /* items go to stdout, whole: logs */
    bool follow;         /* logs -f: go on behind the end of a turn */
    bool caught_up;      /* session/live was received */
    uint64_t only_seq;   /* print nothing but this event; 0: all */
    uint64_t last_seq;   /* newest event seen */
    bool found;          /* only_seq was seen */
};

void watch_init(struct watch *w, const struct cli_options *o);
void watch_fini(struct watch *w);
/* A client_notify_fn; user is the watch. */
void watch_notify(void *user, const char *method, const json_t *params);

/* Takes over the state of an answer of session/attach or session/get. */
void watch_state(struct watch *w, const json_t *object);

/* Removes the status line, so that something else can be printed. */
void watch_clear_status(struct watch *w);

/* Waits until the turn of a session has ended, and prints the answer. The first Ctrl-C cancels
 * the turn, the second leaves; asks about approvals on a terminal. Returns the exit code. */
int watch_turn(struct watch *w, const char *id, const char *name);
/* Hands out notifications until `session/live` (or for ever, with w->follow). */
NODISCARD enum err watch_events(struct watch *w, struct error *e);

/* The exit code that a session/wait object stands for; never 0 without an answer. */
int watch_exit_code(const json_t *waited);

#endif
