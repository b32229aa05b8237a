#include "tests/support/bench.h"

#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

static void write_script(struct bench_daemon *d, const char *script)
{
    snprintf(d->script, sizeof(d->script), "script:%s/script", d->dir);
    FILE *f = fopen(d->script + strlen("script:"), "we");
    if (!f || fputs(script, f) < 0 || fclose(f))
        bench_fail("%s: cannot be written", d->script);
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

void bench_restart(struct bench_daemon *d)
{
    struct error e;
    int log = open(d->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const struct spawn_fd fds[] = {{log, 1}, {log, 2}};
    const struct spawn_options o = {
        .argv = (const char *const[]){"agentd", "serve", d->model ? "--model" : "--engine",
                                      d->model ? d->model : d->script, "--socket", d->socket,
                                      "--store", d->store, NULL},
        .fds = fds,
        .n_fds = 2,
        .die_with_parent = true};

    if (spawn_start(&o, &d->process, &e))
        bench_fail("agentd: %s", e.msg);
    close(log);
    wait_until_up(d);
}

void bench_start(struct bench_daemon *d, const char *model, const char *script)
{
    const char *tmp = getenv("TMPDIR");

    *d = (struct bench_daemon){.model = model, .process = SPAWN_INIT};
    find_binaries();
    snprintf(d->dir, sizeof(d->dir), "%s/agentd-bench-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(d->dir))
        bench_fail("%s: no folder can be made there", d->dir);
    snprintf(d->socket, sizeof(d->socket), "%s/run/sock", d->dir);
    snprintf(d->work, sizeof(d->work), "%s/work", d->dir);
    snprintf(d->log, sizeof(d->log), "%s/log", d->dir);
    snprintf(d->store, sizeof(d->store), "%s/store", d->dir);
    if (mkdir(d->work, 0700))
        bench_fail("%s cannot be made", d->work);
    if (!model)
        write_script(d, script);
    bench_restart(d);
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

void bench_run(struct engine *m)
{
    struct engine_event events[64]; /* all of what sixteen sequences say in a step */
    struct error e;
    while (engine_has_work(m)) {
        size_t n = 0;
        if (engine_step(m, events, 64, &n, &e))
            bench_fail("%s", e.msg);
        for (size_t i = 0; i < n; i++)
            if (events[i].kind == ENGINE_DONE && events[i].reason == END_FAILED)
                bench_fail("%s", events[i].error.msg);
    }
}

void bench_remove(const char *dir)
{
    if (nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS))
        bench_fail("%s cannot be removed", dir);
}

/* ---- the page cache -----------------------------------------------------------------------
 */

static uint64_t cached_bytes(int fd, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (bytes + page - 1) / page;
    unsigned char *in = malloc(n);
    void *at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    uint64_t cached = 0;

    if (!in || at == MAP_FAILED || mincore(at, bytes, in))
        bench_fail("what is cached of %zu bytes cannot be told", bytes);
    for (size_t i = 0; i < n; i++)
        cached += in[i] & 1 ? page : 0;
    munmap(at, bytes);
    free(in);
    return cached;
}

static uint64_t drop_file(const char *path, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
        bench_fail("%s cannot be taken out of the page cache", path);
    uint64_t cached = cached_bytes(fd, bytes);
    close(fd);
    return cached;
}

static bool is_shared_memory(const FTSENT *f)
{
    return f->fts_namelen > 4 && !strcmp(f->fts_name + f->fts_namelen - 4, "-shm");
}

uint64_t bench_drop_cache(const char *dir)
{
    char top[PATH_MAX];
    char *const tops[] = {top, NULL};
    uint64_t bytes = 0, cached = 0;

    snprintf(top, sizeof(top), "%s", dir);
    FTS *walk = fts_open(tops, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (!walk)
        bench_fail("%s cannot be read", dir);
    for (FTSENT *f; (f = fts_read(walk));)
        if (f->fts_info == FTS_F && f->fts_statp->st_size && !is_shared_memory(f)) {
            bytes += (uint64_t)f->fts_statp->st_size;
            cached += drop_file(f->fts_path, (size_t)f->fts_statp->st_size);
        }
    fts_close(walk);
    if (cached > bytes / 100)
        bench_fail("%s: %llu of %llu bytes are still cached", dir, (unsigned long long)cached,
                   (unsigned long long)bytes);
    return bytes;
}

/* ---- the daemon's end, and its clients -----------------------------------------------------
 */

void bench_halt(struct bench_daemon *d)
{
    struct error e;
    int status = 0;

    kill(d->process.pid, SIGTERM);
    if (spawn_wait(&d->process, 30000, &status, &e))
        bench_fail("agentd does not end: %s", e.msg);
    if (status)
        bench_fail("agentd ended with status %d; its log is %s", status, d->log);
}

void bench_stop(struct bench_daemon *d)
{
    bench_halt(d);
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
