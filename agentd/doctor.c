#include "agentd/doctor.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "agentd/client.h"
#include "agentd/events.h"
#include "agentd/verbs.h"
#include "engine/cpu.h"
#include "engine/gpu.h"
#include "engine/inventory.h"
#include "sessions/sqlite_info.h"
#include "tools/tools.h"

#define GB 1e9
#define MIN_FILES 1024 /* descriptors: connections, packs, shards, pipes of tools */
#define SOCKET_PATIENCE_MS 3000

void doctor_line(struct doctor *d, enum doctor_status status, const char *name, json_t *figures,
                 const char *fmt, ...)
{
    static const char *const words[] = {"ok", "warn", "fail"};
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_t *line = json_pack("{s:s, s:s, s:o}", "name", name, "status", words[status], "text",
                             events_text(text, strlen(text)));
    if (figures)
        json_object_update_missing(line, figures);
    json_decref(figures);
    json_array_append_new(d->lines, line);
    d->n[status]++;
}

/* ---- libraries --------------------------------------------------------------------------- */

void doctor_libraries(struct doctor *d)
{
    struct sqlite_info s;
    sqlite_info(&s);
    json_t *options = json_array();
    for (size_t i = 0; sqlite_option(i); i++)
        json_array_append_new(options, json_string(sqlite_option(i)));
    json_t *figures = json_pack("{s:s, s:s, s:o}", "version", s.version, "source", s.source_id,
                                "options", options);
    if (s.missing)
        doctor_line(d, DOCTOR_FAIL, "sqlite", figures, "%s lacks %s: no store can be opened",
                    s.version, s.missing);
    else
        doctor_line(d, DOCTOR_OK, "sqlite", figures, "%s, with full-text search%s", s.version,
                    s.wal_race ? "; one connection only, which its WAL race cannot meet" : "");
}

/* ---- machine ----------------------------------------------------------------------------- */

static void look_at_cpu(struct doctor *d)
{
    const char *numerics = NULL;
    struct error e;
    if (cpu_numerics(&numerics, &e)) {
        doctor_line(d, DOCTOR_FAIL, "cpu", NULL, "%s", e.msg);
        return;
    }
    bool slow = strstr(numerics, "portable") != NULL;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    doctor_line(d, slow ? DOCTOR_WARN : DOCTOR_OK, "cpu",
                json_pack("{s:s, s:I}", "numerics", numerics, "cores", (json_int_t)cores),
                "%s on %ld cores%s", numerics, cores,
                slow ? ": no vector instructions that agentd knows, many times slower" : "");
}

static void look_at_files(struct doctor *d)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r))
        return;
    doctor_line(d, r.rlim_cur < MIN_FILES ? DOCTOR_WARN : DOCTOR_OK, "files",
                json_pack("{s:I}", "limit", (json_int_t)r.rlim_cur),
                "%llu open files allowed%s", (unsigned long long)r.rlim_cur,
                r.rlim_cur < MIN_FILES ? ": few for many sessions (ulimit -n)" : "");
}

void doctor_machine(struct doctor *d)
{
    struct utsname u;
    uint64_t memory = inventory_memory();
    if (!uname(&u))
        doctor_line(d, DOCTOR_OK, "system", json_pack("{s:s}", "version", AGENTD_VERSION),
                    "agentd %s on %s %s, %s", AGENTD_VERSION, u.sysname, u.release, u.machine);
    look_at_cpu(d);
    if (memory)
        doctor_line(d, DOCTOR_OK, "memory", json_pack("{s:I}", "bytes", (json_int_t)memory),
                    "%.1f GB available", (double)memory / GB);
    else
        doctor_line(d, DOCTOR_WARN, "memory", NULL, "how much is available is not known");
    look_at_files(d);
}

/* What there is none of is no fault, unless it was asked for. */
void doctor_gpu(struct doctor *d, const struct doctor_places *p)
{
    struct gpu g;
    struct error e;
    if (gpu_describe(p->cuda_library, p->device, &g, &e)) {
        doctor_line(d, p->wants_gpu ? DOCTOR_FAIL : DOCTOR_OK, "gpu",
                    json_pack("{s:b}", "available", 0), "%s%s",
                    p->wants_gpu ? "" : "not used: ", e.msg);
        return;
    }
    doctor_line(d, DOCTOR_OK, "gpu",
                json_pack("{s:b, s:s, s:s, s:s, s:I, s:I, s:b}", "available", 1, "device",
                          g.name, "driver", g.driver, "numerics", g.numerics, "freeBytes",
                          (json_int_t)g.free_bytes, "totalBytes", (json_int_t)g.total_bytes,
                          "graphs", (int)g.records),
                "device %d, %s (%s), %s, %.1f of %.1f GB free, %s", p->device, g.name,
                g.numerics, g.driver, (double)g.free_bytes / GB, (double)g.total_bytes / GB,
                g.records ? "CUDA graphs" : "no CUDA graphs");
}

/* ---- sandbox ----------------------------------------------------------------------------- */

/* Layers whose absence is made up for by others, or the run would be refused. */
static bool is_missing(const char *layer, const char *text)
{
    static const char *const names[] = {"landlock", "seccomp", "cgroup", "pids_limit"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(layer, names[i]))
            return !strncmp(text, "none", 4);
    return false;
}

static enum err probe(const struct doctor_places *p, json_t **layers, struct error *e)
{
    const char *const hidden[] = {p->db, p->packs, NULL};
    const struct tools_config config = {.hidden = hidden};
    struct tools *t = NULL;
    char workspace[] = "/tmp/agentd-doctor-XXXXXX";
    enum err rc = tools_open(&config, &t, e);
    if (rc)
        return rc;
    if (!mkdtemp(workspace)) {
        tools_close(t);
        return err_set(e, ERR_IO, "no folder can be made in /tmp");
    }
    rc = tools_probe(t, TOOL_MODE_WORKSPACE_WRITE, workspace, layers, e);
    rmdir(workspace);
    tools_close(t);
    return rc;
}

void doctor_sandbox(struct doctor *d, const struct doctor_places *p)
{
    json_auto_t *layers = NULL;
    struct error e;
    const char *layer;
    json_t *v;
    char name[64];
    if (probe(p, &layers, &e)) {
        doctor_line(d, DOCTOR_FAIL, "sandbox", NULL, "tools cannot run commands: %s", e.msg);
        return;
    }
    doctor_line(d, DOCTOR_OK, "sandbox", NULL, "tools can run commands, confined as follows");
    json_object_foreach(layers, layer, v) {
        const char *text = json_is_string(v) ? json_string_value(v) : "";
        snprintf(name, sizeof name, "sandbox.%.48s", layer);
        doctor_line(d, is_missing(layer, text) ? DOCTOR_WARN : DOCTOR_OK, name, NULL, "%s",
                    text);
    }
}

/* ---- model ------------------------------------------------------------------------------- */

void doctor_model(struct doctor *d, const struct doctor_places *p)
{
    struct inventory v = {0};
    struct error e;
    if (!p->model) {
        doctor_line(d, DOCTOR_OK, "model", NULL, "none given: -m DIR looks at one");
        return;
    }
    enum err rc = inventory_take(&v, p->model, &e);
    if (!rc)
        rc = inventory_check(&v, &e);
    if (!rc)
        rc = inventory_fits(&v, inventory_memory(), &e);
    if (rc)
        doctor_line(d, DOCTOR_FAIL, "model", NULL, "%s", e.msg);
    else
        doctor_line(d, DOCTOR_OK, "model",
                    json_pack("{s:I, s:I}", "fileBytes", (json_int_t)v.n_file_bytes,
                              "residentBytes", (json_int_t)v.n_resident_bytes),
                    "%s: complete, %.1f GB in %zu shards, %.1f GB of it stay in memory",
                    p->model, (double)v.n_file_bytes / GB, v.n_shards,
                    (double)v.n_resident_bytes / GB);
    inventory_fini(&v);
}

/* ---- daemon ------------------------------------------------------------------------------ */

void doctor_socket(struct doctor *d, const struct doctor_places *p)
{
    char path[CLIENT_PATH_BYTES];
    struct client *c = NULL;
    struct error e;
    enum err rc = client_socket_path(p->socket, path, &e);
    if (rc) {
        doctor_line(d, DOCTOR_FAIL, "socket", NULL, "%s", e.msg);
        return;
    }
    const struct client_options o = {
        .socket_path = path, .name = "doctor", .timeout_ms = SOCKET_PATIENCE_MS};
    json_auto_t *status = NULL;
    if (!(rc = client_open(&c, &o, &e)))
        rc = client_call(c, "daemon/status", NULL, &status, &e);
    client_free(c);
    json_t *figures = json_pack("{s:s}", "path", path);
    if (!rc)
        doctor_line(d, DOCTOR_OK, "socket", figures, "a daemon answers at %s", path);
    else if (rc == ERR_CLOSED)
        doctor_line(d, DOCTOR_WARN, "socket", figures, "no daemon: %s", e.msg);
    else
        doctor_line(d, DOCTOR_FAIL, "socket", figures, "%s", e.msg);
}
