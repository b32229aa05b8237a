#include "engine/inventory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "base/fs.h"
#include "engine/weights.h"

static const struct {
    const char *name, *tier;
} KINDS[N_TENSOR_KINDS] = {
    [KIND_DENSE] = {"dense", "memory"},
    [KIND_EXPERT] = {"experts", "mapped"},
    [KIND_ENGRAM] = {"engram", "mapped"},
    [KIND_DRAFT] = {"draft", "memory"},
    [KIND_DRAFT_EXPERT] = {"draft-experts", "mapped"},
    [KIND_VISION] = {"vision", "skipped"},
};

const char *tensor_kind_name(enum tensor_kind k)
{
    return KINDS[k].name;
}

const char *tensor_kind_tier(enum tensor_kind k)
{
    return KINDS[k].tier;
}

const char *problem_kind_name(enum problem_kind k)
{
    static const char *const NAMES[N_PROBLEM_KINDS] = {"missing", "unexpected", "mismatch"};
    return NAMES[k];
}

enum err inventory_take(struct inventory *v, const char *dir, struct error *e)
{
    struct config c;
    struct safetensors *st = NULL;
    enum err rc = config_load(&c, dir, e);
    if (rc || (rc = safetensors_open_dir(&st, dir, e)))
        return rc;
    rc = weights_survey(v, &c, st, e);
    safetensors_free(st);
    return rc;
}

void inventory_fini(struct inventory *v)
{
    for (size_t i = 0; i < v->n_kept; i++)
        free(v->problems[i].text);
    *v = (struct inventory){0};
}

uint64_t inventory_backbone(const struct inventory *v)
{
    return v->sum[KIND_DENSE].n_params + v->sum[KIND_EXPERT].n_params;
}

uint64_t inventory_drafts(const struct inventory *v)
{
    return v->sum[KIND_DRAFT].n_params + v->sum[KIND_DRAFT_EXPERT].n_params;
}

void inventory_add_problem(struct inventory *v, enum problem_kind kind, const char *text)
{
    v->n_problems[kind]++;
    if (v->n_kept == INVENTORY_MAX_PROBLEMS)
        return;
    char *copy = strdup(text);
    if (copy)
        v->problems[v->n_kept++] = (struct inventory_problem){kind, copy};
}

enum err inventory_check(const struct inventory *v, struct error *e)
{
    uint64_t n = 0;
    for (int k = 0; k < N_PROBLEM_KINDS; k++)
        n += v->n_problems[k];
    if (!n)
        return OK;
    if (!v->n_kept)
        return err_set(e, ERR_NOMEM, "%" PRIu64 " tensors do not fit the config", n);
    const struct inventory_problem *first = &v->problems[0];
    enum err rc = first->kind == PROBLEM_MISSING ? ERR_NOTFOUND : ERR_FORMAT;
    if (n == 1)
        return err_set(e, rc, "%s", first->text);
    return err_set(e, rc, "%s (and %" PRIu64 " more: agentd load -m lists them)", first->text,
                   n - 1);
}

#define HOLES_MATTER_BYTES (UINT64_C(1) << 30)
#define GB(bytes) ((double)(bytes) / 1e9)

enum err inventory_fits(const struct inventory *v, uint64_t memory, struct error *e)
{
    bool no_memory = memory && memory < v->n_resident_bytes;
    /* A download that stopped may leave files of full size, with holes. Half, because a file
     * system may compress; some report no blocks at all, or late, which is seen in small files.
     */
    bool no_disk = v->n_disk_bytes && v->n_disk_bytes < v->n_file_bytes / 2 &&
                   v->n_file_bytes - v->n_disk_bytes > HOLES_MATTER_BYTES;
    if (!no_memory && !no_disk)
        return OK;
    return err_set(
        e, ERR_LIMIT,
        "cannot run here: needs %.1f GB of memory for the resident weights (available: "
        "%.1f GB) and %.1f GB of weights on disk (there: %.1f GB%s)",
        GB(v->n_resident_bytes), GB(memory), GB(v->n_file_bytes), GB(v->n_disk_bytes),
        no_disk ? ", the files have holes" : "");
}

/* The number behind `key` in a small text file of the kernel's; 0: not there. */
static uint64_t read_number(const char *path, const char *key, uint64_t unit)
{
    AUTO_FILE FILE *f = fopen(path, "re");
    char line[256];
    while (f && fgets(line, sizeof(line), f)) {
        char *end = NULL;
        if (strncmp(line, key, strlen(key)) != 0)
            continue;
        uint64_t n = strtoull(line + strlen(key), &end, 10);
        return end == line + strlen(key) ? 0 : n * unit;
    }
    return 0;
}

/* What a control group still allows: UINT64_MAX where it sets no limit. It is charged for pages
 * of files as well, mapped weights above all, but gives those back when they are needed. */
static uint64_t group_memory(const char *group)
{
    char path[FS_PATH_BYTES];
    if (fs_path(path, sizeof(path), NULL, "%s/memory.max", group))
        return UINT64_MAX;
    uint64_t limit = read_number(path, "", 1);
    if (!limit || fs_path(path, sizeof(path), NULL, "%s/memory.current", group))
        return UINT64_MAX;
    uint64_t used = read_number(path, "", 1), files = 0;
    if (!fs_path(path, sizeof(path), NULL, "%s/memory.stat", group))
        files = read_number(path, "active_file ", 1) + read_number(path, "inactive_file ", 1);
    used -= files < used ? files : used;
    return limit > used ? limit - used : 1; /* 0 would be: not known */
}

uint64_t inventory_memory_of(const char *meminfo, const char *group)
{
    uint64_t machine = read_number(meminfo, "MemAvailable:", 1024), least = group_memory(group);
    if (machine && machine < least)
        least = machine;
    return least == UINT64_MAX ? 0 : least;
}

uint64_t inventory_memory(void)
{
    return inventory_memory_of("/proc/meminfo", "/sys/fs/cgroup");
}
