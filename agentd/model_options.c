#include "agentd/model_options.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *const model_backends[] = {"cpu", "ref", "cuda", NULL};
const char *const model_precisions[] = {"fast", "fp32kvq", "math", "official", NULL};

static const enum precision precisions[] = {PRECISION_FAST, PRECISION_FP32KVQ, PRECISION_MATH,
                                            PRECISION_OFFICIAL};

enum err model_open(const struct model_options *o, struct engine **out, struct error *e)
{
    static const char script[] = "script:";
    const struct engine_options eo = {
        .precision = precisions[o->precision],
        .backend = model_backends[o->backend],
        .isa = o->isa,
        .cuda_library = o->cuda_library,
        .device = (int)o->device,
        .n_threads = (uint32_t)o->threads,
        .chunk_tokens = (uint32_t)o->chunk,
        .draft_tokens = (uint32_t)o->draft,
        .draft_confidence = o->draft_confidence,
        .expert_ram = o->expert_ram,
        .engram_ram = o->engram_ram,
        .engram_device = o->engram_device,
        .kv_resident = o->kv_resident,
        .spill_dir = o->spill_dir,
        .digest_dir = o->digest_cache,
        .verify_weights = o->verify_weights,
        .watch = o->watch,
        .digests = true,
    };

    if (o->engine) {
        if (strncmp(o->engine, script, sizeof(script) - 1) != 0)
            return err_set(e, ERR_INVAL, "--engine %s: want script:FILE", o->engine);
        return engine_open_script(out, o->engine + sizeof(script) - 1, o->model, e);
    }
    if (!o->model)
        return err_set(e, ERR_INVAL, "no model: give -m DIR, or --engine script:FILE");
    return engine_open_model(out, o->model, &eo, e);
}

void model_args(const struct model_options *o, struct model_args *out)
{
    size_t n = 0;
    const char **v = out->argv;

    snprintf(out->device, sizeof(out->device), "%" PRId64, o->device);
    snprintf(out->threads, sizeof(out->threads), "%" PRId64, o->threads);
    snprintf(out->chunk, sizeof(out->chunk), "%" PRId64, o->chunk);
    snprintf(out->draft, sizeof(out->draft), "%" PRId64, o->draft);
    snprintf(out->draft_confidence, sizeof(out->draft_confidence), "%.6g", o->draft_confidence);
    snprintf(out->expert_ram, sizeof(out->expert_ram), "%" PRIu64, o->expert_ram);
    snprintf(out->engram_ram, sizeof(out->engram_ram), "%" PRIu64, o->engram_ram);
    snprintf(out->engram_device, sizeof(out->engram_device), "%" PRIu64, o->engram_device);
    snprintf(out->kv_resident, sizeof(out->kv_resident), "%" PRIu64, o->kv_resident);
    if (o->model) {
        v[n++] = "--model";
        v[n++] = o->model;
    }
    if (o->engine) {
        v[n++] = "--engine";
        v[n++] = o->engine;
    }
    if (o->digest_cache) {
        v[n++] = "--digest-cache";
        v[n++] = o->digest_cache;
    }
    v[n++] = "--backend";
    v[n++] = model_backends[o->backend];
    v[n++] = "--precision";
    v[n++] = model_precisions[o->precision];
    if (o->isa) {
        v[n++] = "--isa";
        v[n++] = o->isa;
    }
    if (o->cuda_library) {
        v[n++] = "--cuda-library";
        v[n++] = o->cuda_library;
    }
    v[n++] = "--device";
    v[n++] = out->device;
    v[n++] = "--threads";
    v[n++] = out->threads;
    v[n++] = "--chunk";
    v[n++] = out->chunk;
    v[n++] = "--draft";
    v[n++] = out->draft;
    v[n++] = "--draft-confidence";
    v[n++] = out->draft_confidence;
    v[n++] = "--expert-ram";
    v[n++] = out->expert_ram;
    v[n++] = "--engram-ram";
    v[n++] = out->engram_ram;
    v[n++] = "--engram-device";
    v[n++] = out->engram_device;
    v[n++] = "--kv-resident";
    v[n++] = out->kv_resident;
    v[n] = NULL;
}
