#include "evals/server.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define START_PATIENCE_MS 60000
#define STOP_PATIENCE_MS 60000
#define NAP_MS 5

enum err server_make(struct server *s, const char *parent, struct error *e)
{
    const char *tmp = getenv("TMPDIR");
    *s = (struct server)SERVER_INIT;
    enum err rc = fs_path(s->dir, sizeof s->dir, e, "%s/agentd-evals-XXXXXX",
                          parent ? parent
                          : tmp  ? tmp
                                 : "/tmp");
    if (rc)
        return rc;
    if (!mkdtemp(s->dir)) {
        rc = err_sys(e, errno, "%s", s->dir);
        s->dir[0] = 0;
        return rc;
    }
    if (!(rc = fs_path(s->socket, sizeof s->socket, e, "%s/run/sock", s->dir)) &&
        !(rc = fs_path(s->store, sizeof s->store, e, "%s/store", s->dir)))
        rc = fs_path(s->log, sizeof s->log, e, "%s/log", s->dir);
    return rc;
}

static void last_line(const char *path, char *out, size_t cap)
{
    char line[512];
    FILE *f = fopen(path, "re");
    snprintf(out, cap, "no log");
    while (f && fgets(line, sizeof line, f))
        snprintf(out, cap, "%.*s", (int)strcspn(line, "\n"), line);
    if (f)
        fclose(f);
}

static enum err spawn_daemon(struct server *s, struct error *e)
{
    const char *argv[24] = {"agentd",
                            "serve",
                            s->model ? "--model" : "--engine",
                            s->model ? s->model : s->script,
                            "--socket",
                            s->socket,
                            "--store",
                            s->store,
                            "--buffered"};
    size_t n = 9;
    AUTO_FD int log = -1;
    for (size_t i = 0; s->extra[i]; i++)
        argv[n++] = s->extra[i];
    enum err rc = fs_open(s->log, O_WRONLY | O_CREAT | O_APPEND, 0600, &log, e);
    if (rc)
        return rc;
    const struct spawn_fd fds[] = {{log, 1}, {log, 2}};
    const struct spawn_options o = {
        .argv = argv, .fds = fds, .n_fds = 2, .die_with_parent = true};
    s->n_starts++;
    return spawn_start(&o, &s->process, e);
}

enum err server_connect(struct server *s, struct error *e)
{
    const struct client_options o = {
        .socket_path = s->socket, .name = "agentd-evals", .wake_fd = s->wake_fd};
    client_free(s->c);
    s->c = NULL;
    return client_open(&s->c, &o, e);
}

enum err server_start(struct server *s, struct error *e)
{
    const struct timespec nap = {0, NAP_MS * 1000000L};
    char line[160];
    int status;
    enum err rc = spawn_daemon(s, e);
    if (rc)
        return rc;
    for (int ms = 0; ms < START_PATIENCE_MS; ms += NAP_MS) {
        rc = server_connect(s, e);
        if (!rc || rc == ERR_CANCELLED)
            return rc;
        rc = spawn_wait(&s->process, 0, &status, e);
        if (rc != ERR_TIMEOUT) {
            last_line(s->log, line, sizeof line);
            return err_set(e, ERR_IO, "the daemon ended at its start: %s", line);
        }
        nanosleep(&nap, NULL);
    }
    return err_set(e, ERR_TIMEOUT, "the daemon does not answer");
}

static enum err end(struct server *s, int sig, int *status, struct error *e)
{
    client_free(s->c);
    s->c = NULL;
    enum err rc = spawn_signal(&s->process, sig, e);
    if (!rc)
        rc = spawn_wait(&s->process, STOP_PATIENCE_MS, status, e);
    spawn_fini(&s->process);
    return rc;
}

enum err server_stop(struct server *s, struct error *e)
{
    int status = 0;
    enum err rc = end(s, SIGTERM, &status, e);
    if (!rc && (!WIFEXITED(status) || WEXITSTATUS(status)))
        rc = err_set(e, ERR_CORRUPT, "the daemon ended with status %d", status);
    return rc;
}

enum err server_kill(struct server *s, struct error *e)
{
    int status;
    return end(s, SIGKILL, &status, e);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st;
    (void)kind;
    (void)where;
    return remove(path);
}

void server_fini(struct server *s)
{
    client_free(s->c);
    spawn_fini(&s->process);
    if (s->dir[0])
        nftw(s->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    *s = (struct server)SERVER_INIT;
}
