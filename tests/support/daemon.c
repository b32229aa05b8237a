#include "tests/support/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sessions/store.h"
#include "tests/support/test.h"

#define PATIENCE_MS 20000

void nap(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

void daemon_show_log(const struct daemon_fixture *d)
{
    char line[512];
    FILE *f = fopen(d->log, "re");
    while (f && fgets(line, sizeof line, f))
        fprintf(stderr, "    %s", line);
    if (f)
        fclose(f);
}

void daemon_make(struct daemon_fixture *d, const char *script)
{
    *d = (struct daemon_fixture){0};
    tempdir_make(d->dir);
    snprintf(d->socket, sizeof d->socket, "%s/run/sock", d->dir);
    snprintf(d->store, sizeof d->store, "%s/store", d->dir);
    snprintf(d->log, sizeof d->log, "%s/log", d->dir);
    snprintf(d->work, sizeof d->work, "%s/work", d->dir);
    snprintf(d->script, sizeof d->script, "script:%s/script", d->dir);
    assert_int_equal(mkdir(d->work, 0700), 0);
    FILE *f = fopen(d->script + strlen("script:"), "we");
    assert_non_null(f);
    assert_true(fputs(script, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void child(const struct daemon_fixture *d, const char *fault)
{
    const char *build = getenv("AGENTD_BUILD");
    char binary[256];
    const char *argv[24] = {"agentd",
                            "serve",
                            d->model ? "--model" : "--engine",
                            d->model ? d->model : d->script,
                            "--socket",
                            d->socket,
                            "--store",
                            d->store,
                            "--buffered",
                            "--block-tokens",
                            "64"};
    int n = 11, fd = open(d->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    for (int i = 0; d->extra[i]; i++)
        argv[n++] = d->extra[i];
    snprintf(binary, sizeof binary, "%s/agentd", build ? build : "build");
    dup2(fd, 1);
    dup2(fd, 2);
    if (fault)
        setenv("AGENTD_FAULT", fault, 1);
    else
        unsetenv("AGENTD_FAULT");
    execv(binary, (char *const *)(void *)argv);
    _exit(127);
}

static bool has_died(struct daemon_fixture *d, int *status)
{
    pid_t pid = waitpid(d->pid, status, WNOHANG);
    if (pid == d->pid)
        d->pid = 0;
    return pid != 0;
}

void daemon_start(struct daemon_fixture *d, const char *fault)
{
    int status;

    assert_int_equal(d->pid, 0);
    d->pid = fork();
    assert_true(d->pid >= 0);
    if (d->pid == 0)
        child(d, fault);
    const struct client_options o = {.socket_path = d->socket, .timeout_ms = 2000};
    for (int ms = 0; ms < PATIENCE_MS; ms += 5) {
        struct client *c = NULL;
        if (client_open(&c, &o, NULL) == OK) {
            client_free(c);
            return;
        }
        /* A crash fault may strike while it recovers: the caller sees it in daemon_wait_death.
         */
        if (fault && kill(d->pid, 0) == 0) {
            siginfo_t info = {0};
            waitid(P_PID, (id_t)d->pid, &info, WEXITED | WNOHANG | WNOWAIT);
            if (info.si_pid)
                return;
        } else if (has_died(d, &status)) {
            daemon_show_log(d);
            fail_msg("the daemon ended with status %d", status);
        }
        nap(5);
    }
    daemon_show_log(d);
    fail_msg("the daemon does not answer");
}

void daemon_kill(struct daemon_fixture *d)
{
    int status;

    assert_true(d->pid > 0);
    kill(d->pid, SIGKILL);
    waitpid(d->pid, &status, 0);
    d->pid = 0;
}

int daemon_wait_death(struct daemon_fixture *d)
{
    int status = 0;

    for (int ms = 0; ms < PATIENCE_MS; ms += 5) {
        if (has_died(d, &status))
            return status;
        nap(5);
    }
    daemon_show_log(d);
    fail_msg("the daemon lives on");
    return 0;
}

int daemon_stop(struct daemon_fixture *d)
{
    kill(d->pid, SIGTERM);
    int status = daemon_wait_death(d);
    if (!WIFEXITED(status)) {
        daemon_show_log(d);
        fail_msg("the daemon ended with status %d", status);
    }
    return WEXITSTATUS(status);
}

void daemon_remove(struct daemon_fixture *d)
{
    if (d->pid > 0)
        daemon_kill(d);
    tempdir_remove(d->dir);
}

/* ---- calls ------------------------------------------------------------------------ */

struct client *daemon_connect(const struct daemon_fixture *d, client_notify_fn *notify,
                              void *user)
{
    const struct client_options o = {
        .socket_path = d->socket, .notify = notify, .user = user, .timeout_ms = PATIENCE_MS};
    struct client *c = NULL;
    struct error e;

    assert_ok(client_open(&c, &o, &e), &e);
    return c;
}

json_t *daemon_call(struct client *c, const char *method, json_t *params)
{
    json_t *result = NULL;
    struct error e;
    enum err rc = client_call(c, method, params, &result, &e);

    if (rc)
        fail_msg("%s: %s", method, e.msg);
    return result;
}

int daemon_refused(struct client *c, const char *method, json_t *params)
{
    json_t *result = NULL;
    struct error e;
    enum err rc = client_call(c, method, params, &result, &e);

    json_decref(result);
    return rc ? client_failure(c)->code : 0;
}

void daemon_session(const struct daemon_fixture *d, struct client *c, const char *extra,
                    char id[27])
{
    json_t *params = extra ? json_loads(extra, 0, NULL) : json_object();

    assert_non_null(params);
    json_object_set_new(params, "cwd", json_string(d->work));
    json_t *r = daemon_call(c, "session/new", params);
    snprintf(id, 27, "%s", json_string_value(json_object_get(r, "id")));
    json_decref(r);
}

void daemon_prompt(struct client *c, const char *id, const char *text)
{
    json_decref(daemon_call(
        c, "session/prompt",
        json_pack("{s:s, s:[{s:s, s:s}]}", "id", id, "content", "type", "text", "text", text)));
}

json_t *daemon_wait(struct client *c, const char *id)
{
    return daemon_call(c, "session/wait",
                       json_pack("{s:s, s:i}", "id", id, "timeoutMs", PATIENCE_MS - 1000));
}

void daemon_wait_saved(struct client *c)
{
    for (int i = 0; i < 2000; i++) {
        json_auto_t *s = daemon_call(c, "daemon/status", NULL);
        if (int_of(s, "stateCommits") == 0)
            return;
        nap(5);
    }
    fail_msg("state is never saved");
}

/* ---- what there is, of a session and on disk -------------------------------------- */

/* Events, and a null where they go over into what is live. */
static void keep_event(void *user, const char *method, const json_t *params)
{
    json_t *list = user;
    if (!strcmp(method, "session/event"))
        json_array_append_new(list, json_deep_copy(params));
    else if (!strcmp(method, "session/live"))
        json_array_append_new(list, json_null());
}

json_t *daemon_events(const struct daemon_fixture *d, const char *id)
{
    json_t *list = json_array();
    struct client *c = daemon_connect(d, keep_event, list);
    json_decref(
        daemon_call(c, "session/attach", json_pack("{s:s, s:i}", "id", id, "fromSeq", 0)));
    while (!json_array_size(list) ||
           !json_is_null(json_array_get(list, json_array_size(list) - 1)))
        assert_int_equal(client_poll(c, 5000, NULL), OK);
    json_array_remove(list, json_array_size(list) - 1);
    client_free(c);
    return list;
}

json_int_t daemon_verify(struct client *c, const char *id)
{
    json_auto_t *v = daemon_call(c, "session/verify", json_pack("{s:s}", "id", id));
    if (!json_is_true(json_object_get(v, "equal")))
        fail_msg("verify: %s", json_dumps(v, 0));
    return int_of(v, "segmentsWithoutDigest");
}

int daemon_lines(const struct daemon_fixture *d, const char *name)
{
    char path[256], line[64];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s", d->work, name);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        n++;
    if (f)
        fclose(f);
    return n;
}

struct store *daemon_open_store(const struct daemon_fixture *d)
{
    char db[200], packs[200], state[200];
    struct store *st = NULL;
    struct error e;
    enum err rc = ERR_BUSY;
    snprintf(db, sizeof db, "%s/agentd.db", d->store);
    snprintf(packs, sizeof packs, "%s/packs", d->store);
    snprintf(state, sizeof state, "%s/state", d->store);
    const struct store_options o = {.db_path = db,
                                    .packs_dir = packs,
                                    .state_dir = state,
                                    .block_tokens = 64,
                                    .no_direct_io = true};
    /* A child of the dead daemon that is not at its exec yet holds the lock a moment longer. */
    for (int i = 0; i < 1000 && rc == ERR_BUSY; i++) {
        if (i)
            nap(2);
        rc = store_open(&st, &o, &e);
    }
    assert_ok(rc, &e);
    return st;
}
