/* A real daemon on a folder of its own, with the scripted engine: started, killed, started
 * again.
 *
 *     struct daemon_fixture d;
 *     daemon_make(&d, script_lines);
 *     daemon_start(&d, NULL);
 *     struct client *c = daemon_connect(&d, NULL, NULL);
 *     json_t *r = daemon_call(c, "session/new", json_pack(...));
 *     daemon_kill(&d); daemon_start(&d, "crash:turn.committed:3"); ...
 *     daemon_remove(&d);
 *
 * Everything that goes wrong here fails the test, with the daemon's log. */
#ifndef TESTS_SUPPORT_DAEMON_H
#define TESTS_SUPPORT_DAEMON_H

#include <stdbool.h>
#include <sys/types.h>

#include "agentd/client.h"
#include "tests/support/tempdir.h"

struct store;

struct daemon_fixture {
    char dir[TEMPDIR_BYTES];
    char socket[128], store[128], script[160], log[128], work[128];
    const char *model;    /* a checkpoint in the place of the script; NULL: the script */
    const char *extra[8]; /* more options of `serve`; NULL ends */
    pid_t pid;            /* 0: not running */
};

/* Folder, script file (JSONL text), an empty workspace `work`. */
void daemon_make(struct daemon_fixture *d, const char *script);
/* Starts and waits until it answers. fault: AGENTD_FAULT, or NULL. */
void daemon_start(struct daemon_fixture *d, const char *fault);
/* SIGKILL, and reaps. */
void daemon_kill(struct daemon_fixture *d);
/* SIGTERM; the exit code. */
int daemon_stop(struct daemon_fixture *d);
/* Waits until it has died by itself (a crash fault), at most 20 s; the wait status. */
int daemon_wait_death(struct daemon_fixture *d);
/* Kills what runs and removes the folder. */
void daemon_remove(struct daemon_fixture *d);

/* The log so far, to stderr. */
void daemon_show_log(const struct daemon_fixture *d);

struct client *daemon_connect(const struct daemon_fixture *d, client_notify_fn *notify,
                              void *user);
/* The result; an error answer fails the test. Takes params. */
json_t *daemon_call(struct client *c, const char *method, json_t *params);
/* The code of the expected error; 0 if there was none. */
int daemon_refused(struct client *c, const char *method, json_t *params);

/* A new session in the workspace with the given extra parameters ("{...}", NULL: none); its id
 * (27 bytes). */
void daemon_session(const struct daemon_fixture *d, struct client *c, const char *extra,
                    char id[27]);
void daemon_prompt(struct client *c, const char *id, const char *text);
/* session/wait until idle: the whole answer. */
json_t *daemon_wait(struct client *c, const char *id);
/* Until no state commit is under way, at most 10 s. */
void daemon_wait_saved(struct client *c);
/* All durable events of the session so far: an array of params, in order. */
json_t *daemon_events(const struct daemon_fixture *d, const char *id);
/* session/verify says that a cold computation is equal; how many segments had no digest to
 * compare with. */
json_int_t daemon_verify(struct client *c, const char *id);
/* Lines of a file in the workspace; 0 when there is none. */
int daemon_lines(const struct daemon_fixture *d, const char *name);
/* The store of a daemon that has ended, for store_close(). */
struct store *daemon_open_store(const struct daemon_fixture *d);

void nap(long ms);

/* A member of an answer: "" or 0 when it is not there. */
static inline const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static inline json_int_t int_of(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

#endif
