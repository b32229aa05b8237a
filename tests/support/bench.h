/* A daemon for a bench: as tests/support/daemon.h, for programs that are no cmocka test.
 * Everything that goes wrong ends the program with exit code 2 and a message. */
#ifndef TESTS_SUPPORT_BENCH_H
#define TESTS_SUPPORT_BENCH_H

#include <jansson.h>
#include <stdint.h>

#include "agentd/client.h"
#include "base/spawn.h"
#include "engine/engine.h"

struct bench_daemon {
    char dir[64], socket[100], store[100], work[100], log[100], script[128];
    const char *model; /* NULL: the scripted engine */
    struct spawn process;
};

_Noreturn void bench_fail(const char *form, ...) __attribute__((format(printf, 1, 2)));

/* Its own folder under $TMPDIR or /tmp. model: a checkpoint; NULL: `script` is a scripted
 * engine's text. */
void bench_start(struct bench_daemon *d, const char *model, const char *script);
/* SIGTERM, waits; bench_restart() starts it on the same folder again. */
void bench_halt(struct bench_daemon *d);
void bench_restart(struct bench_daemon *d);
/* SIGTERM, waits, removes the folder. */
void bench_stop(struct bench_daemon *d);
pid_t bench_pid(const struct bench_daemon *d);

struct client *bench_connect(const struct bench_daemon *d, client_notify_fn *notify,
                             void *user);
/* The result; takes params. */
json_t *bench_call(struct client *c, const char *method, json_t *params);
/* session/new in the workspace with these parameters more (taken; NULL: none). */
void bench_session(const struct bench_daemon *d, struct client *c, json_t *more, char id[27]);
/* session/wait until idle with this reason. */
json_t *bench_wait(struct client *c, const char *id, const char *reason);

/* Steps until no sequence has work; an END_FAILED ends the program. */
void bench_run(struct engine *m);

/* Removes a folder with all that is in it. */
void bench_remove(const char *dir);
/* Syncs what is below a folder and takes it out of the page cache, but for SQLite's -shm files,
 * which are memory that is shared. The bytes of it; that 1 % and more stay cached is a failure:
 * the bench would measure nothing. */
uint64_t bench_drop_cache(const char *dir);

/* CLOCK_REALTIME, as `date +%s%N` prints it. */
uint64_t bench_now_ns(void);

#endif
