#include "engine/model.h"

#include <stdlib.h>
#include <string.h>

#include "engine/ahead.h"
#include "engine/engram_cache.h"
#include "engine/engram_slots.h"
#include "engine/experts.h"
#include "engine/fingerprint.h"
#include "engine/forward.h"
#include "engine/gpu.h"
#include "engine/kv_gather.h"
#include "engine/sampler.h"
#include "engine/token_map.h"
#include "kernels/cuda.h"

/* 2,048 tokens give an expert of the released model 32 rows, for which it is expanded once. */
#define DEFAULT_CHUNK 2048
#define MAX_CHUNK (1u << 16)

static void model_free(struct engine *engine)
{
    struct model *m = model_of(engine);
    if (!m)
        return;
    while (m->seqs)
        model_seq_free(&m->seqs->seq);
    work_free(m);
    graphs_fini(&m->graphs);
    experts_free(m->experts);
    engram_slots_free(m->engram_slots);
    engram_cache_free(m->engram_cache);
    free(m->engram_next);
    if (m->memory.k)
        kv_memory_fini(&m->memory, &m->shape);
    kv_gather_free(m->gather);
    kv_pages_free(m->kv_pages);
    tier_files_close(m->files);
    weights_fini(&m->weights);
    sampler_free(m->sampler);
    if (m->k.free) {
        m->k.free(&m->k, m->rope_plain);
        m->k.free(&m->k, m->rope_yarn);
    }
    kernels_fini(&m->k);
    pool_free(m->pool);
    safetensors_free(m->st);
    tokenizer_free(m->tokenizer);
    free(m->token_map);
    free(m->pending_view);
    free(m->name);
    free(m);
}

static void model_interrupt(struct engine *m)
{
    atomic_store(&model_of(m)->interrupted, true);
}

static struct kv_pages_options kv_options(const struct model *m, uint64_t budget,
                                          const char *dir)
{
    return (struct kv_pages_options){.shape = &m->shape,
                                     .top_k = m->config.index_topk,
                                     .least_tokens = 1 + m->draft_tokens,
                                     .chunk_tokens = m->chunk_tokens,
                                     .budget_bytes = budget,
                                     .dir = dir};
}

static size_t model_tiers(const struct engine *engine, struct engine_tier *out)
{
    const struct model *m = (const struct model *)(const void *)engine;
    const struct config *c = &m->config;
    size_t n = 0;
    out[n++] = m->experts ? tier_counters(experts_tier(m->experts))
                          : (struct engine_tier){.name = "experts",
                                                 .minimum_bytes = experts_slot_bytes(c)};
    if (c->n_engram)
        out[n++] = m->engram_cache
                       ? tier_counters(engram_cache_tier(m->engram_cache))
                       : (struct engine_tier){.name = "engram",
                                              .minimum_bytes = engram_cache_min_bytes(c)};
    if (c->n_engram && !m->k.host_memory)
        out[n++] = m->engram_slots
                       ? tier_counters(engram_slots_tier(m->engram_slots))
                       : (struct engine_tier){.name = "engram-device",
                                              .minimum_bytes = engram_slots_min_bytes(c)};
    struct kv_pages_options o = kv_options(m, 0, NULL);
    if (m->shape.n_sources)
        out[n++] = m->kv_pages ? tier_counters(kv_pages_tier(m->kv_pages))
                               : (struct engine_tier){.name = "kv",
                                                      .minimum_bytes = kv_pages_min_bytes(&o)};
    return n;
}

static void model_graphs(const struct engine *engine, struct engine_graphs *out)
{
    const struct model *m = (const struct model *)(const void *)engine;
    graphs_counters(m, out);
}

static const struct engine_ops MODEL_OPS = {
    .free = model_free,
    .tiers = model_tiers,
    .graphs = model_graphs,
    .seq_new = model_seq_new,
    .seq_free = model_seq_free,
    .seq_position = model_seq_position,
    .seq_input = model_seq_input,
    .seq_generate = model_seq_generate,
    .seq_ahead = model_seq_ahead,
    .seq_ahead_drop = model_seq_ahead_drop,
    .seq_ahead_tokens = model_seq_ahead_tokens,
    .seq_cancel = model_seq_cancel,
    .seq_digest = model_seq_digest,
    .seq_segment_open = model_seq_segment_open,
    .has_work = model_has_work,
    .step = model_step,
    .interrupt = model_interrupt,
    .seq_export_rows = model_seq_export_rows,
    .seq_export_tip = model_seq_export_tip,
    .seq_import_begin = model_seq_import_begin,
    .seq_import_fetch = model_seq_import_fetch,
    .seq_import_tip = model_seq_import_tip,
    .seq_rebuild = model_seq_rebuild,
};

/* ---- opening, step by step ----------------------------------------------------------------
 */

static enum err open_backend(struct model *m, const struct engine_options *o, struct error *e)
{
    const char *backend = o->backend ? o->backend : "cpu";
    enum err rc = pool_new(o->n_threads, &m->pool, e);
    if (rc)
        return rc;
    if (o->open_kernels)
        return o->open_kernels(&m->k, m->pool, e);
    if (!strcmp(backend, "ref"))
        return kernels_ref(&m->k, m->pool, e);
    if (!strcmp(backend, "cpu"))
        return kernels_cpu(&m->k, o->isa, m->pool, e);
    if (!strcmp(backend, "cuda"))
        return kernels_cuda(&m->k, o->cuda_library, o->device, e);
    return err_set(e, ERR_INVAL, "backend %.40s, want cpu, ref or cuda", backend);
}

static void choose_precision(struct model *m, enum precision p)
{
    m->precision = p;
    switch (p) {
    case PRECISION_FAST:
        m->rounding = (struct rounding){K_BF16, K_BF16, K_EXACT, true};
        break;
    case PRECISION_FP32KVQ:
        m->rounding = (struct rounding){K_EXACT, K_EXACT, K_EXACT, true};
        break;
    case PRECISION_MATH:
        m->rounding = (struct rounding){K_EXACT, K_EXACT, K_EXACT, false};
        break;
    case PRECISION_OFFICIAL:
        m->rounding = (struct rounding){K_BF16, K_FP8_32, K_BF16, true};
        break;
    }
}

/* The fixed arrays inside the kernels, which a config may not exceed. */
static enum err check_caps(const struct config *c, struct error *e)
{
    if (c->hc > K_MAX_HC)
        return err_set(e, ERR_UNSUPPORTED, "hc_mult is %u, at most %d", c->hc, K_MAX_HC);
    if (c->n_active > K_MAX_TOP_K)
        return err_set(e, ERR_UNSUPPORTED, "num_experts_per_tok is %u, at most %d", c->n_active,
                       K_MAX_TOP_K);
    if (c->n_experts > K_MAX_EXPERTS)
        return err_set(e, ERR_UNSUPPORTED, "n_routed_experts is %u, at most %d", c->n_experts,
                       K_MAX_EXPERTS);
    if (c->draft_active > K_MAX_TOP_K)
        return err_set(e, ERR_UNSUPPORTED, "dspark_num_experts_per_tok is %u, at most %d",
                       c->draft_active, K_MAX_TOP_K);
    return OK;
}

static enum err open_text(struct model *m, const char *dir, struct error *e)
{
    const struct config *c = &m->config;
    enum err rc = tokenizer_open(&m->tokenizer, dir, e);
    if (rc)
        return rc;
    if (tokenizer_size(m->tokenizer) > c->vocab_size)
        return err_set(e, ERR_FORMAT, "tokenizer.json has %u ids, vocab_size is %u",
                       tokenizer_size(m->tokenizer), c->vocab_size);
    if (!c->n_engram)
        return OK;
    if (!(m->token_map = malloc(c->vocab_size * sizeof(*m->token_map))))
        return err_set(e, ERR_NOMEM, "token map");
    rc = token_map_build(m->tokenizer, m->token_map, c->vocab_size, c->engram_compressed, e);
    return rc ? rc : engram_init(&m->engram, c, m->token_map[c->engram_pad], e);
}

static enum err make_rope(struct model *m, bool yarn, float **out, struct error *e)
{
    const struct config *c = &m->config;
    struct k_rope_config r = {.rope_dim = c->rope_dim,
                              .base = yarn ? c->compress_theta : c->rope_theta,
                              .yarn = yarn,
                              .factor = c->yarn_factor,
                              .beta_fast = c->yarn_beta_fast,
                              .beta_slow = c->yarn_beta_slow,
                              .original_max_position = c->yarn_original};
    size_t n = c->rope_dim / 2 * sizeof(float);
    AUTO_FREE float *host = malloc(n);
    if (!host || !(*out = m->k.alloc(&m->k, n)))
        return err_set(e, ERR_NOMEM, "rotary frequencies");
    k_rope_inv_freq(&r, host);
    m->k.copy_in(&m->k, *out, host, n);
    return OK;
}

static enum err describe(struct model *m, const char *dir, const struct engine_options *o,
                         struct error *e)
{
    const struct config *c = &m->config;
    struct state_layout *l = &m->layout;
    kv_shape_init(&m->shape, c, m->precision);
    *l = (struct state_layout){.n_planes = m->shape.n_planes,
                               .replay_tokens = (uint32_t)resume_depth(c),
                               .window = c->window};
    memcpy(l->planes, m->shape.planes, sizeof(l->planes));
    snprintf(l->numerics, sizeof(l->numerics), "%s", m->k.numerics);
    l->tip_bytes = tip_bytes(m);

    size_t end = strlen(dir);
    while (end > 1 && dir[end - 1] == '/')
        end--;
    const char *slash = memrchr(dir, '/', end);
    size_t start = slash && end > 1 ? (size_t)(slash - dir) + 1 : 0;
    if (!(m->name = strndup(dir + start, end - start)))
        return err_set(e, ERR_NOMEM, "model name");
    m->engine.info = (struct engine_info){.name = m->name,
                                          .layout = l,
                                          .tokenizer = m->tokenizer,
                                          .vocab_size = c->vocab_size,
                                          .max_tokens = c->max_tokens,
                                          .storable = m->precision != PRECISION_MATH,
                                          .n_unused_tensors = m->weights.n_skipped};
    const struct weight_digests_options w = {.dir = dir,
                                             .cache_dir = o->digest_dir,
                                             .verify = o->verify_weights,
                                             .n_threads = pool_threads(m->pool),
                                             .watch = o->watch,
                                             .clock = clock_real()};
    return o->no_weight_digest ? OK : fingerprint_model(m, &w, l->fingerprint, e);
}

/* Bytes that what is resident may take: of the machine, or of the device. 0: not known. */
static uint64_t free_memory(const struct model *m)
{
    struct k_device d = {0};
    struct kernels k = m->k; /* describe() changes nothing */
    if (m->k.host_memory)
        return inventory_memory();
    return k.describe(&k, &d, NULL) ? 0 : d.free_bytes;
}

/* Everything that headers can tell is refused before anything large is read. */
static enum err check_checkpoint(const struct model *m, struct error *e)
{
    struct inventory v;
    enum err rc = weights_survey(&v, &m->config, m->st, e);
    if (rc)
        return rc;
    if (!(rc = inventory_check(&v, e)))
        rc = inventory_fits(&v, free_memory(m), e);
    if (rc && !m->k.host_memory)
        (void)err_wrap(e, rc, "%s", m->k.numerics);
    inventory_fini(&v);
    return rc;
}

static enum err choose_drafts(struct model *m, uint32_t n, double confidence, struct error *e)
{
    if (n && !m->config.n_drafts)
        return err_set(e, ERR_UNSUPPORTED, "%u draft tokens, the model has no draft layers", n);
    if (n > m->config.draft_block)
        return err_set(e, ERR_INVAL, "%u draft tokens, dspark_block_size is %u", n,
                       m->config.draft_block);
    if (!(confidence >= 0 && confidence <= 1))
        return err_set(e, ERR_INVAL, "a draft confidence of %g, want 0 to 1", confidence);
    m->draft_tokens = n;
    m->draft_confidence = confidence;
    return OK;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t engram_device_share(const struct model *m, const struct engine_options *o)
{
    return smaller(o->engram_device, engram_slots_all_bytes(&m->config));
}

/* What budgets take of one memory: of the machine, or of a device. */
struct shares {
    uint64_t experts, engram, kv;
};

/* The smallest that could be promised; 0: the memory is not known. */
static enum err check_shares(const struct shares *s, uint64_t memory, const char *whose,
                             struct error *e)
{
    if (!memory || (s->experts <= memory && s->engram <= memory - s->experts &&
                    s->kv <= memory - s->experts - s->engram))
        return OK;
    return err_set(e, ERR_LIMIT,
                   "budgets of %.1f GB for experts, %.1f GB for Engram rows and %.1f GB for KV "
                   "rows, %.1f GB of memory%s are available beside the other weights",
                   (double)s->experts / 1e9, (double)s->engram / 1e9, (double)s->kv / 1e9,
                   (double)memory / 1e9, whose);
}

/* What the budgets promise has to be there beside the weights that are in memory by now. With a
 * device there are two memories: it has the experts, Engram rows under their own budget there,
 * and of the KV rows those that a call reads and the newest of each sequence; the rest of that
 * budget, and Engram rows under the other one, are the host's. */
static enum err check_budgets(const struct model *m, const struct engine_options *o,
                              struct error *e)
{
    const struct config *c = &m->config;
    uint64_t kv = o->kv_resident; /* what it pays for is also what else would be in memory */
    struct shares all = {smaller(o->expert_ram, experts_all_bytes(c)),
                         smaller(o->engram_ram, engram_cache_all_bytes(c)), kv};
    if (m->k.host_memory)
        return check_shares(&all, free_memory(m), "", e);
    struct kv_shape shape;
    struct kv_pages_options k = kv_options(m, kv, NULL);
    struct shares device = {.experts = all.experts, .engram = engram_device_share(m, o)};
    kv_shape_init(&shape, c, m->precision);
    k.shape = &shape;
    if (kv && shape.n_sources)
        device.kv = smaller(kv, kv_pages_device_bytes(&k));
    all.experts = 0;
    enum err rc = check_shares(&device, free_memory(m), " of the device", e);
    return rc ? rc : check_shares(&all, inventory_memory(), " of the host", e);
}

/* Where nobody says where: not /tmp, which may be memory. */
static const char *default_spill_dir(void)
{
    const char *dir = getenv("TMPDIR");
    return dir && *dir ? dir : "/var/tmp";
}

static enum err open_kv(struct model *m, const struct engine_options *o, struct error *e)
{
    if (!o->kv_resident || !m->shape.n_sources)
        return OK;
    struct kv_pages_options k =
        kv_options(m, o->kv_resident, o->spill_dir ? o->spill_dir : default_spill_dir());
    enum err rc = kv_pages_new(&m->kv_pages, &k, &m->chunk_tokens, e);
    return rc ? rc : kv_gather_new(&m->gather, m->kv_pages, &m->shape, &m->k, e);
}

/* Where experts cannot stay mapped they have a budget, asked for or not. */
static uint64_t expert_budget(const struct model *m, const struct engine_options *o)
{
    uint64_t all = experts_all_bytes(&m->config), memory = free_memory(m);
    if (o->expert_ram || m->k.host_memory)
        return o->expert_ram;
    memory = memory ? memory : UINT64_MAX;
    return placement_experts(memory - smaller(memory, engram_device_share(m, o)), all);
}

static enum err open_tiers(struct model *m, const char *dir, const struct engine_options *o,
                           struct error *e)
{
    const struct config *c = &m->config;
    uint64_t experts = expert_budget(m, o);
    enum err rc = OK;
    if (o->engram_device && m->k.host_memory)
        return err_set(e, ERR_INVAL,
                       "memory of a device for Engram rows: backend %s computes in memory of "
                       "the host",
                       m->k.numerics);
    if ((rc = check_budgets(m, o, e)) || (!experts && !o->engram_ram && !o->engram_device))
        return rc;
    if ((rc = tier_files_open(&m->files, dir, m->st, e)))
        return rc;
    if (experts && (rc = experts_new(&m->experts, c, &m->weights, m->files, experts, e)))
        return rc;
    if (o->engram_ram && c->n_engram &&
        (rc = engram_cache_new(&m->engram_cache, c, &m->weights, m->files, o->engram_ram, e)))
        return rc;
    if (!o->engram_device || !c->n_engram) /* nothing to keep */
        return OK;
    return engram_slots_new(&m->engram_slots, c, &m->weights, m->engram_cache, o->engram_device,
                            e);
}

/* What is left for sequences: not all of it, buffers of runs and other processes grow. */
static enum err limit_memory(struct model *m, const struct engine_options *o, struct error *e)
{
    struct k_device d;
    enum err rc = m->k.describe(&m->k, &d, e);
    if (rc)
        return rc;
    m->memory.k = &m->k;
    m->memory.page_bytes = (size_t)d.grow_bytes;

    /* Of a device, sequences are given their tails; what else of the budgets is in it, but for
     * experts, is taken by now. */
    uint64_t memory = free_memory(m), budgets = 0;
    if (m->k.host_memory)
        budgets = o->kv_resident + smaller(o->engram_ram, engram_cache_all_bytes(&m->config));
    if (m->experts) /* as it was divided before there were buffers */
        budgets +=
            smaller(experts_tier(m->experts)->budget_bytes, experts_all_bytes(&m->config));
    memory = memory ? memory / 10 * 9 : UINT64_MAX;
    m->memory.limit_bytes = memory > budgets ? memory - budgets : 0;
    return OK;
}

/* Buffers of runs grow with them where memory is what the machine has. A device's is divided
 * now: a sequence that was given memory may not find that a run has none. */
static enum err reserve_work(struct model *m, struct error *e)
{
    return work_reserve(m, m->k.host_memory ? LOGIT_ROWS : model_step_rows(m), e);
}

static enum err open_all(struct model *m, const char *dir, const struct engine_options *o,
                         struct error *e)
{
    enum err rc;
    if (o->chunk_tokens > MAX_CHUNK)
        return err_set(e, ERR_LIMIT, "chunk of %u tokens, at most %u", o->chunk_tokens,
                       MAX_CHUNK);
    m->chunk_tokens = o->chunk_tokens ? o->chunk_tokens : DEFAULT_CHUNK;
    m->digests = o->digests;
    choose_precision(m, o->precision);
    if ((rc = config_load(&m->config, dir, e)) || (rc = check_caps(&m->config, e)) ||
        (rc = choose_drafts(m, o->draft_tokens, o->draft_confidence, e)) ||
        (rc = open_backend(m, o, e)) || (rc = safetensors_open_dir(&m->st, dir, e)) ||
        (rc = check_checkpoint(m, e)) ||
        (rc = weights_load(&m->weights, &m->config, m->st, &m->k, e)) ||
        (rc = open_tiers(m, dir, o, e)) || (rc = open_text(m, dir, e)) ||
        (rc = make_rope(m, false, &m->rope_plain, e)) ||
        (rc = make_rope(m, true, &m->rope_yarn, e)) || (rc = describe(m, dir, o, e)) ||
        (rc = open_kv(m, o, e)) || (rc = reserve_work(m, e)) ||
        (rc = sampler_new(&m->sampler, &m->k, m->config.vocab_size, e)) ||
        (rc = limit_memory(m, o, e)))
        return rc;
    return m->k.sync(&m->k, e);
}

enum err engine_open_model(struct engine **out, const char *dir, const struct engine_options *o,
                           struct error *e)
{
    struct model *m = calloc(1, sizeof(*m));
    if (!m)
        return err_set(e, ERR_NOMEM, "model");
    m->engine.ops = &MODEL_OPS;
    enum err rc = open_all(m, dir, o, e);
    if (rc) {
        model_free(&m->engine);
        return err_wrap(e, rc, "model %s", dir);
    }
    *out = &m->engine;
    return OK;
}
