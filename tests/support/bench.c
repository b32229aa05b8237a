#include "tests/support/bench.h"

#include <fcntl.h>
#include <ftw.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define START_MS 60000

_Noreturn void bench_fail(const char *form, ...)
{
    va_list args;

    va_start(args, form);
    vfprintf(stderr, form, args);
    va_end(args);
    fputc('\n', stderr);
    exit(2);
}

uint64_t bench_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* This program is build/tests/NAME, the daemon build/agentd. */
static void find_binaries(void)
{
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);

    if (n <= 0)
        bench_fail("/proc/self/exe cannot be read");
    path[n] = '\0';
    setenv("AGENTD_LIBEXEC", dirname(dirname(path)), 0);
}

static void write_script(const struct bench_daemon *d, const char *script, char *option,
                         size_t cap)
{
    snprintf(option, cap, "script:%s/script", d->dir);
    FILE *f = fopen(option + strlen("script:"), "we");
    if (!f || fputs(script, f) < 0 || fclose(f))
        bench_fail("%s: cannot be written", option);
}

static void wait_until_up(struct bench_daemon *d)
{
    const struct client_options o = {.socket_path = d->socket, .timeout_ms = 2000};

    for (int ms = 0; ms < START_MS; ms += 20) {
        struct client *c = NULL;
        if (client_open(&c, &o, NULL) == OK) {
            client_free(c);
            return;
        }
        nanosleep(&(struct timespec){0, 20000000}, NULL);
    }
    bench_fail("agentd does not answer; its log is %s", d->log);
}

void bench_start(struct bench_daemon *d, const char *model, const char *script)
{
    const char *tmp = getenv("TMPDIR");
    char store[100], option[128] = "";
    struct error e;

    *d = (struct bench_daemon){.process = SPAWN_INIT};
    find_binaries();
    snprintf(d->dir, sizeof(d->dir), "%s/agentd-bench-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(d->dir))
        bench_fail("%s: no folder can be made there", d->dir);
    snprintf(d->socket, sizeof(d->socket), "%s/run/sock", d->dir);
    snprintf(d->work, sizeof(d->work), "%s/work", d->dir);
    snprintf(d->log, sizeof(d->log), "%s/log", d->dir);
    snprintf(store, sizeof(store), "%s/store", d->dir);
    if (mkdir(d->work, 0700))
        bench_fail("%s cannot be made", d->work);
    if (!model)
        write_script(d, script, option, sizeof(option));
    int log = open(d->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const struct spawn_fd fds[] = {{log, 1}, {log, 2}};
    const struct spawn_options o = {
        .argv = (const char *const[]){"agentd", "serve", model ? "--model" : "--engine",
                                      model ? model : option, "--socket", d->socket, "--store",
                                      store, NULL},
        .fds = fds,
        .n_fds = 2,
        .die_with_parent = true};
    if (spawn_start(&o, &d->process, &e))
        bench_fail("agentd: %s", e.msg);
    close(log);
    wait_until_up(d);
}

pid_t bench_pid(const struct bench_daemon *d)
{
    return d->process.pid;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st;
    (void)type;
    (void)where;
    return remove(path);
}

void bench_remove(const char *dir)
{
    if (nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS))
        bench_fail("%s cannot be removed", dir);
}

void bench_stop(struct bench_daemon *d)
{
    struct error e;
    int status = 0;

    kill(d->process.pid, SIGTERM);
    if (spawn_wait(&d->process, 30000, &status, &e))
        bench_fail("agentd does not end: %s", e.msg);
    if (status)
        bench_fail("agentd ended with status %d; its log is %s", status, d->log);
    bench_remove(d->dir);
}

struct client *bench_connect(const struct bench_daemon *d, client_notify_fn *notify, void *user)
{
    const struct client_options o = {
        .socket_path = d->socket, .notify = notify, .user = user, .timeout_ms = 1200000};
    struct client *c = NULL;
    struct error e;

    if (client_open(&c, &o, &e))
        bench_fail("%s", e.msg);
    return c;
}

json_t *bench_call(struct client *c, const char *method, json_t *params)
{
    json_t *result = NULL;
    struct error e;

    if (client_call(c, method, params, &result, &e))
        bench_fail("%s: %s", method, e.msg);
    return result;
}

void bench_session(const struct bench_daemon *d, struct client *c, json_t *more, char id[27])
{
    json_t *params = json_pack("{s:s}", "cwd", d->work);

    if (more)
        json_object_update(params, more);
    json_decref(more);
    json_t *r = bench_call(c, "session/new", params);
    snprintf(id, 27, "%s", json_string_value(json_object_get(r, "id")));
    json_decref(r);
}

json_t *bench_wait(struct client *c, const char *id, const char *reason)
{
    json_t *r =
        bench_call(c, "session/wait", json_pack("{s:s, s:i}", "id", id, "timeoutMs", 1100000));
    const char *is = json_string_value(json_object_get(r, "reason"));

    if (!is || strcmp(is, reason) != 0)
        bench_fail("session %s is idle for reason \"%s\", not \"%s\"", id, is ? is : "",
                   reason);
    return r;
}
