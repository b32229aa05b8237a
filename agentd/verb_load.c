/* agentd load: what a checkpoint holds by kind and tier, what does not fit its config, and
 * whether it can run here. Only headers are read. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agentd/verb_text.h"
#include "agentd/verbs.h"
#include "engine/gpu.h"
#include "engine/inventory.h"

struct load_options {
    const char *model, *cuda_library;
    int64_t device;
    int backend;
    bool json;
};

enum { LOAD_CPU, LOAD_CUDA };
static const char *const backends[] = {"cpu", "cuda", NULL};

static const struct option table[] = {
    {"model", 'm', OPTION_STRING, offsetof(struct load_options, model), "DIR",
     .help = "model folder", .required = true},
    {"backend", 0, OPTION_ENUM, offsetof(struct load_options, backend), "NAME",
     .choices = backends, .help = "where it would compute; cuda: what goes where, and why"},
    {"device", 0, OPTION_INT, offsetof(struct load_options, device), "N", .max = 1023,
     .help = "as for serve"},
    {"cuda-library", 0, OPTION_STRING, offsetof(struct load_options, cuda_library), "FILE",
     .help = "as for serve"},
    {"json", 0, OPTION_FLAG, offsetof(struct load_options, json), .help = "as JSON"},
};

const struct command verb_load_command = {
    "load",
    "",
    "what a checkpoint holds, and whether it can run here",
    OPTION_TABLE(table),
    OPTION_TABLE_EMPTY,
    0,
    0};

/* What the report is made from. */
struct report {
    const struct load_options *o;
    struct inventory v;
    uint64_t memory; /* available, of the backend */
    struct gpu gpu;  /* with backend cuda */
    struct placement placement[PLACEMENT_MAX];
    size_t n_placement;
    enum err verdict; /* OK: it runs here */
    struct error why;
};

static uint64_t n_problems(const struct inventory *v)
{
    uint64_t n = 0;
    for (int k = 0; k < N_PROBLEM_KINDS; k++)
        n += v->n_problems[k];
    return n;
}

/* ---- text ---------------------------------------------------------------------------------
 */

#define BILLION(n) ((double)(n) / 1e9)

static enum err add_kinds(const struct inventory *v, struct buf *out, struct error *e)
{
    enum err rc = buf_printf(out, e, "%-14s %-8s %8s %16s %17s\n", "kind", "tier", "tensors",
                             "parameters", "bytes");
    for (int k = 0; k < N_TENSOR_KINDS && !rc; k++) {
        const struct inventory_sum *s = &v->sum[k];
        enum tensor_kind kind = (enum tensor_kind)k;
        if (s->n_tensors)
            rc = buf_printf(out, e, "%-14s %-8s %8" PRIu64 " %16" PRIu64 " %17" PRIu64 "\n",
                            tensor_kind_name(kind), tensor_kind_tier(kind), s->n_tensors,
                            s->n_params, s->n_bytes);
    }
    return rc;
}

static enum err add_sums(const struct report *r, struct buf *out, struct error *e)
{
    const struct inventory *v = &r->v;
    enum err rc =
        buf_printf(out, e,
                   "\nbackbone  %.2fB parameters, active %.2fB in decode, %.2fB in prefill\n"
                   "engram    %.2fB parameters\ndraft     %.2fB parameters\n",
                   BILLION(inventory_backbone(v)), BILLION(v->n_active_decode),
                   BILLION(v->n_active_prefill), BILLION(v->sum[KIND_ENGRAM].n_params),
                   BILLION(inventory_drafts(v)));
    if (!rc && v->sum[KIND_VISION].n_tensors)
        rc = buf_printf(out, e,
                        "vision    %.2fB parameters, skipped: images are not supported\n",
                        BILLION(v->sum[KIND_VISION].n_params));
    if (!rc)
        rc = buf_printf(out, e,
                        "shards    %zu, %.1f GB, of which %.1f GB are on disk\n"
                        "memory    %.1f GB for the resident weights, %.1f GB available\n",
                        v->n_shards, BILLION(v->n_file_bytes), BILLION(v->n_disk_bytes),
                        BILLION(v->n_resident_bytes), BILLION(r->memory));
    for (size_t i = 0; i < v->n_tiers && !rc; i++)
        rc = buf_printf(out, e, "%s %-15s from %.3f MB, all of it %.1f GB\n",
                        i ? "         " : "budgets  ", v->tiers[i].option,
                        BILLION(v->tiers[i].min_bytes) * 1e3, BILLION(v->tiers[i].all_bytes));
    return rc;
}

/* The device, and what goes where. */
static enum err add_device(const struct report *r, struct buf *out, struct error *e)
{
    const struct gpu *g = &r->gpu;
    if (!r->n_placement)
        return OK;
    enum err rc = buf_printf(
        out, e, "device    %" PRId64 ", %s (%s), %s, %.1f of %.1f GB free\n", r->o->device,
        g->name, g->numerics, g->driver, BILLION(g->free_bytes), BILLION(g->total_bytes));
    for (size_t i = 0; i < r->n_placement && !rc; i++) {
        const struct placement *p = &r->placement[i];
        rc = buf_printf(out, e, "          %-18s %-7s %9.3f of %9.3f GB: %s\n", p->what,
                        p->where, BILLION(p->n_bytes), BILLION(p->of_bytes), p->why);
    }
    const char *why;
    bool graphs = placement_graphs(r->placement, r->n_placement, &why);
    if (!rc)
        rc = buf_printf(out, e, "decode    %s: %s\n",
                        graphs && g->records ? "as CUDA graphs" : "call by call", why);
    return rc;
}

static enum err write_text(const struct report *r, struct error *e)
{
    AUTO(buf) struct buf out = BUF_INIT(1 << 20);
    enum err rc = add_kinds(&r->v, &out, e);
    if (!rc)
        rc = add_sums(r, &out, e);
    if (!rc)
        rc = add_device(r, &out, e);
    for (size_t i = 0; i < r->v.n_kept && !rc; i++)
        rc = buf_printf(&out, e, "%s: %s\n", problem_kind_name(r->v.problems[i].kind),
                        r->v.problems[i].text);
    if (!rc && n_problems(&r->v) > r->v.n_kept)
        rc = buf_printf(&out, e, "and %" PRIu64 " more\n", n_problems(&r->v) - r->v.n_kept);
    return rc ? rc : verb_text_write(out.data, out.len, e);
}

/* ---- JSON ---------------------------------------------------------------------------------
 */

#define N(x) ((json_int_t)(x))

static json_t *kinds_json(const struct inventory *v)
{
    json_t *list = json_array();
    for (int k = 0; k < N_TENSOR_KINDS; k++)
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:I, s:I, s:I}", "kind",
                                        tensor_kind_name((enum tensor_kind)k), "tier",
                                        tensor_kind_tier((enum tensor_kind)k), "tensors",
                                        N(v->sum[k].n_tensors), "parameters",
                                        N(v->sum[k].n_params), "bytes", N(v->sum[k].n_bytes)));
    return list;
}

static json_t *problems_json(const struct inventory *v)
{
    json_t *list = json_array();
    for (size_t i = 0; i < v->n_kept; i++)
        json_array_append_new(
            list,
            json_pack("{s:s, s:o}", "kind", problem_kind_name(v->problems[i].kind), "text",
                      verb_text_string(v->problems[i].text, strlen(v->problems[i].text))));
    return list;
}

static json_t *tiers_json(const struct inventory *v)
{
    json_t *list = json_array();
    for (size_t i = 0; i < v->n_tiers; i++)
        json_array_append_new(list, json_pack("{s:s, s:I, s:I}", "option", v->tiers[i].option,
                                              "min_bytes", N(v->tiers[i].min_bytes),
                                              "all_bytes", N(v->tiers[i].all_bytes)));
    return list;
}

static json_t *device_json(const struct report *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < r->n_placement; i++) {
        const struct placement *p = &r->placement[i];
        json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:I, s:s}", "what", p->what,
                                              "where", p->where, "bytes", N(p->n_bytes),
                                              "of_bytes", N(p->of_bytes), "why", p->why));
    }
    const char *why;
    bool graphs = placement_graphs(r->placement, r->n_placement, &why);
    return json_pack("{s:I, s:s, s:s, s:s, s:I, s:I, s:o, s:b, s:s}", "number", N(r->o->device),
                     "name", r->gpu.name, "driver", r->gpu.driver, "numerics", r->gpu.numerics,
                     "free_bytes", N(r->gpu.free_bytes), "total_bytes", N(r->gpu.total_bytes),
                     "placement", list, "graphs", graphs && r->gpu.records, "graphs_why", why);
}

static enum err write_json(const struct report *r, struct error *e)
{
    const struct inventory *v = &r->v;
    json_t *j = json_pack(
        "{s:o, s:{s:I, s:I, s:I, s:I, s:I, s:I}, s:I, s:{s:I, s:I}, s:{s:I, s:I}, s:I, s:o, "
        "s:b, s:o}",
        "kinds", kinds_json(v), "parameters", "backbone", N(inventory_backbone(v)),
        "active_decode", N(v->n_active_decode), "active_prefill", N(v->n_active_prefill),
        "engram", N(v->sum[KIND_ENGRAM].n_params), "draft", N(inventory_drafts(v)), "vision",
        N(v->sum[KIND_VISION].n_params), "shards", N(v->n_shards), "needs", "memory_bytes",
        N(v->n_resident_bytes), "disk_bytes", N(v->n_file_bytes), "available", "memory_bytes",
        N(r->memory), "disk_bytes", N(v->n_disk_bytes), "n_problems", N(n_problems(v)),
        "problems", problems_json(v), "runs", r->verdict == OK, "budgets", tiers_json(v));
    if (!j)
        return err_set(e, ERR_NOMEM, "report");
    if (r->n_placement)
        json_object_set_new(j, "device", device_json(r));
    enum err rc = verb_text_write_json(j, e);
    json_decref(j);
    return rc;
}

int verb_load(int argc, char **argv)
{
    struct load_options o = {0};
    struct error e = {0};
    int code;
    if (verb_text_options(&verb_load_command, argc, argv, &o, &code))
        return code;
    struct report r = {.o = &o, .memory = inventory_memory()};
    enum err rc = inventory_take(&r.v, o.model, &e);
    if (rc)
        return verb_fail("load", rc, &e);
    if (o.backend == LOAD_CUDA) {
        if ((rc = gpu_describe(o.cuda_library, (int)o.device, &r.gpu, &e))) {
            inventory_fini(&r.v);
            return verb_fail("load", rc, &e);
        }
        r.memory = r.gpu.free_bytes;
        r.n_placement = placement_list(&r.v, r.memory, r.placement);
    }
    if (!(r.verdict = inventory_check(&r.v, &r.why)))
        r.verdict = inventory_fits(&r.v, r.memory, &r.why);
    rc = o.json ? write_json(&r, &e) : write_text(&r, &e);
    inventory_fini(&r.v);
    if (rc)
        return verb_fail("load", rc, &e);
    /* The report is the result; a checkpoint that does not fit its config is a broken model. */
    return r.verdict == OK          ? EXIT_DONE
           : r.verdict == ERR_LIMIT ? verb_fail("load", r.verdict, &r.why)
                                    : (verb_fail("load", ERR_FORMAT, &r.why), EXIT_MODEL);
}
