/* agentd doctor: what this machine has for agentd. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agentd/cli_text.h"
#include "agentd/doctor.h"
#include "agentd/settings.h"
#include "agentd/verb_text.h"
#include "agentd/verbs.h"
#include "base/fault.h"
#include "base/options.h"

struct doctor_options {
    const char *store, *model, *socket, *cuda_library;
    int64_t device;
    uint64_t speed_bytes;
    bool json;
};

#define AT(member) offsetof(struct doctor_options, member)
static const struct option table[] = {
    {"store", 0, OPTION_STRING, AT(store), "DIR", .help = "as for serve"},
    {"model", 'm', OPTION_STRING, AT(model), "DIR", .help = "look at this model, too"},
    {"socket", 0, OPTION_STRING, AT(socket), "PATH", .help = "as for serve"},
    {"speed", 0, OPTION_BYTES, AT(speed_bytes), "BYTES", .max = INT64_C(1) << 36,
     .help = "written and read back to measure the disk; 0: not (default 128M)"},
    {"device", 0, OPTION_INT, AT(device), "N", .max = 1023, .help = "as for serve"},
    {"cuda-library", 0, OPTION_STRING, AT(cuda_library), "FILE", .help = "as for serve"},
    {"json", 0, OPTION_FLAG, AT(json), .help = "as JSON"},
};
const struct command verb_doctor_command = {
    "doctor", "", "what this machine has for agentd", OPTION_TABLE(table), OPTION_TABLE_EMPTY,
    0,        0};

/* What `serve` would be told by the environment and the files; NULL: nothing. */
static const char *setting(const struct settings *s, const char *key)
{
    char name[64];
    const char *found = NULL;
    snprintf(name, sizeof name, "AGENTD_%s", key);
    for (char *c = name; *c; c++)
        *c = (char)(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c);
    for (size_t i = 0; i < s->n; i++)
        if (!strcmp(s->list[i].section, "serve") && !strcmp(s->list[i].key, key))
            found = s->list[i].value;
    return getenv(name) ? getenv(name) : found;
}

static enum err find_places(const struct doctor_options *o, const struct settings *s,
                            struct doctor_places *p, struct error *e)
{
    const char *store = o->store ? o->store : setting(s, "store");
    p->model = o->model ? o->model : setting(s, "model");
    p->socket = o->socket ? o->socket : setting(s, "socket");
    p->speed_bytes = o->speed_bytes;
    const char *backend = setting(s, "backend"), *device = setting(s, "device");
    p->wants_gpu = backend && !strcmp(backend, "cuda");
    p->cuda_library = o->cuda_library ? o->cuda_library : setting(s, "cuda-library");
    p->device = o->device >= 0 ? (int)o->device : device ? (int)strtol(device, NULL, 10) : 0;
    enum err rc;
    if (!store) {
        if (!(rc = fs_place_path(FS_DATA, "agentd/agentd.db", p->db, sizeof p->db, e)))
            rc = fs_place_path(FS_CACHE, "agentd/packs", p->packs, sizeof p->packs, e);
        return rc;
    }
    AUTO_FREE char *real = realpath(store, NULL);
    if (store[0] != '/' && !real)
        return err_set(e, ERR_NOTFOUND, "store %s: no such folder", store);
    if (!(rc = fs_path(p->db, sizeof p->db, e, "%s/agentd.db", real ? real : store)))
        rc = fs_path(p->packs, sizeof p->packs, e, "%s/packs", real ? real : store);
    return rc;
}

static void print_lines(const struct doctor *d)
{
    const json_t *line;
    size_t i;
    json_array_foreach(d->lines, i, line) {
        printf("%-5s %-22s ", json_string_value(json_object_get(line, "status")),
               json_string_value(json_object_get(line, "name")));
        cli_text_print(stdout, json_string_value(json_object_get(line, "text")));
        fputs("\n", stdout);
    }
    printf("%u ok, %u to look at, %u failed\n", d->n[DOCTOR_OK], d->n[DOCTOR_WARN],
           d->n[DOCTOR_FAIL]);
}

static int examine(const struct doctor_places *p, bool json)
{
    struct doctor d = {.lines = json_array()};
    doctor_machine(&d);
    doctor_gpu(&d, p);
    doctor_libraries(&d);
    doctor_disk(&d, p);
    doctor_sandbox(&d, p);
    doctor_model(&d, p);
    doctor_socket(&d, p);
    if (json) {
        json_auto_t *all =
            json_pack("{s:b, s:I, s:I, s:I, s:O}", "ok", d.n[DOCTOR_FAIL] == 0, "nOk",
                      (json_int_t)d.n[DOCTOR_OK], "nWarn", (json_int_t)d.n[DOCTOR_WARN],
                      "nFail", (json_int_t)d.n[DOCTOR_FAIL], "lines", d.lines);
        cli_json_print(stdout, all, true);
    } else {
        print_lines(&d);
    }
    json_decref(d.lines);
    return d.n[DOCTOR_FAIL] ? EXIT_FAILED : EXIT_DONE;
}

int verb_doctor(int argc, char **argv)
{
    struct doctor_options o = {.device = -1, .speed_bytes = 128u << 20};
    struct doctor_places p = {0};
    struct settings s = {0};
    struct error e;
    int code;
    if (verb_text_options(&verb_doctor_command, argc, argv, &o, &code))
        return code;
    enum err rc = fault_arm_env(&e);
    if (!rc)
        rc = settings_load(&s, &e);
    if (!rc)
        rc = find_places(&o, &s, &p, &e);
    code = rc ? verb_fail("doctor", rc, &e) : examine(&p, o.json);
    settings_fini(&s);
    return code;
}
