#include "tests/support/full_size.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "base/fs.h"

#define N_SHARDS 48
#define CONFIG "tests/configs/flash.json"

struct shard {
    struct buf header;
    uint64_t n_data;
    size_t n;
};

struct maker {
    const struct full_size_options *o;
    struct shard shard[N_SHARDS];
    struct buf index;
    uint64_t total;
    int at; /* shard of the tensors that follow */
    char prefix[32];
    struct error *e;
    enum err failed; /* the first error; later calls do nothing */
};

static void add_one(struct maker *m, const char *name, const char *dtype, uint64_t bytes_each,
                    uint64_t a, uint64_t b)
{
    struct shard *s = &m->shard[m->at];
    char shape[48];
    if (m->failed || (m->o->leave_out && !strcmp(name, m->o->leave_out)))
        return;
    if (m->o->misshape && !strcmp(name, m->o->misshape))
        a--;
    uint64_t n = a * (b ? b : 1) * bytes_each;
    snprintf(shape, sizeof(shape), b ? "%" PRIu64 ",%" PRIu64 : "%" PRIu64, a, b);
    enum err rc = buf_printf(
        &s->header, m->e,
        "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
        s->n ? "," : "{", name, dtype, shape, s->n_data, s->n_data + n);
    if (!rc)
        rc = buf_printf(&m->index, m->e, "%s\"%s\":\"model-%05d-of-%05d.safetensors\"",
                        m->index.len ? "," : "", name, m->at + 1, N_SHARDS);
    s->n_data += n;
    s->n++;
    m->total += n;
    m->failed = rc;
}

static void add(struct maker *m, const char *dtype, uint64_t bytes_each, uint64_t a, uint64_t b,
                const char *suffix)
{
    char name[128];
    snprintf(name, sizeof(name), "%s%s", m->prefix, suffix);
    add_one(m, name, dtype, bytes_each, a, b);
}

static void bf16(struct maker *m, const char *name, uint64_t a, uint64_t b)
{
    add(m, "BF16", 2, a, b, name);
}

static void f32(struct maker *m, const char *name, uint64_t a, uint64_t b)
{
    add(m, "F32", 4, a, b, name);
}

static void fp8(struct maker *m, const char *name, uint64_t a, uint64_t b)
{
    char part[96];
    snprintf(part, sizeof(part), "%s.weight", name);
    add(m, "F8_E4M3", 1, a, b, part);
    snprintf(part, sizeof(part), "%s.scale", name);
    add(m, "F8_E8M0", 1, (a + 31) / 32, b / 32, part);
}

static void fp4(struct maker *m, const char *name, uint64_t a, uint64_t b)
{
    char part[96];
    snprintf(part, sizeof(part), "%s.weight", name);
    add(m, "I8", 1, a, b / 2, part);
    snprintf(part, sizeof(part), "%s.scale", name);
    add(m, "F8_E8M0", 1, a, b / 32, part);
}

static void block(struct maker *m, uint64_t n_experts)
{
    fp8(m, "attn.wq_a", 1280, 5120);
    bf16(m, "attn.q_norm.weight", 1280, 0);
    fp8(m, "attn.wq_b", 32768, 1280);
    fp8(m, "attn.wkv", 512, 5120);
    bf16(m, "attn.kv_norm.weight", 512, 0);
    f32(m, "attn.attn_sink", 64, 0);
    fp8(m, "attn.wo_a", 8192, 4096);
    fp8(m, "attn.wo_b", 5120, 8192);
    bf16(m, "attn_norm.weight", 5120, 0);
    bf16(m, "ffn_norm.weight", 5120, 0);
    f32(m, "hc_attn_fn", 24, 20480);
    f32(m, "hc_ffn_fn", 24, 20480);
    f32(m, "hc_attn_base", 24, 0);
    f32(m, "hc_ffn_base", 24, 0);
    f32(m, "hc_attn_scale", 3, 0);
    f32(m, "hc_ffn_scale", 3, 0);
    bf16(m, "ffn.gate.weight", n_experts, 5120);
    f32(m, "ffn.gate.bias", n_experts, 0);
    f32(m, "ffn.gate.bias_vl", n_experts, 0);
    for (uint64_t i = 0; i < n_experts; i++) {
        char name[64];
        for (int k = 1; k <= 3; k++) {
            snprintf(name, sizeof(name), "ffn.experts.%" PRIu64 ".w%d", i, k);
            fp4(m, name, k == 2 ? 5120 : 2304, k == 2 ? 2304 : 5120);
        }
    }
    fp8(m, "ffn.shared_experts.w1", 2304, 5120);
    fp8(m, "ffn.shared_experts.w2", 5120, 2304);
    fp8(m, "ffn.shared_experts.w3", 2304, 5120);
}

static void layer(struct maker *m, int l)
{
    bool kv = l == 2 || l == 8 || l == 14 || l == 20;
    bool index = kv || l == 24 || l == 28 || l == 32 || l == 36;
    uint64_t rows = l == 1 ? 384006168 : 384016682;
    m->at = l + 2;
    snprintf(m->prefix, sizeof(m->prefix), "layers.%d.", l);
    block(m, 384);
    if (kv) {
        bf16(m, "attn.compressor.wkv.weight", 512, 5120);
        bf16(m, "attn.compressor.norm.weight", 512, 0);
        if (l < 20)
            bf16(m, "attn.compressor.wgate.weight", 512, 5120);
        bf16(m, "attn.indexer.wk.weight", 128, 512);
        bf16(m, "attn.indexer.k_norm.weight", 128, 0);
    }
    if (index) {
        fp8(m, "attn.indexer.wq_b", 4096, 1280);
        bf16(m, "attn.indexer.weights_proj.weight", 32, 5120);
    }
    if (l == 1 || l == 14) {
        fp8(m, "engram.wkv", 25600, 6144);
        bf16(m, "engram.q_weight", 4, 5120);
        bf16(m, "engram.k_weight", 4, 5120);
        m->at = l == 1 ? 46 : 47;
        add(m, "F8_E4M3", 1, rows, 256, "engram.embed.weight");
        add(m, "F8_E8M0", 1, rows, 8, "engram.embed.scale");
    }
}

static void drafts(struct maker *m)
{
    for (int i = 0; i < 3; i++) {
        m->at = 43 + i;
        snprintf(m->prefix, sizeof(m->prefix), "mtp.%d.", i);
        block(m, 128);
    }
    bf16(m, "norm.weight", 5120, 0);
    bf16(m, "markov_head.embed.weight", 129280, 256);
    bf16(m, "markov_head.head.weight", 129280, 256);
    bf16(m, "confidence_head.proj.weight", 1, 5376);
    m->at = 43;
    snprintf(m->prefix, sizeof(m->prefix), "mtp.0.");
    fp8(m, "main_proj", 5120, 15360);
    bf16(m, "main_norm.weight", 5120, 0);
}

static void vision(struct maker *m)
{
    m->at = 1;
    m->prefix[0] = 0;
    bf16(m, "vision.patch_embed.proj.weight", 1024, 588);
    bf16(m, "vision.patch_embed.proj.bias", 1024, 0);
    for (int i = 0; i < 32; i++) {
        snprintf(m->prefix, sizeof(m->prefix), "vision.blocks.%d.", i);
        bf16(m, "norm1.weight", 1024, 0);
        bf16(m, "norm2.weight", 1024, 0);
        bf16(m, "attn.wqkv.weight", 3072, 1024);
        bf16(m, "attn.wqkv.bias", 3072, 0);
        bf16(m, "attn.wo.weight", 1024, 1024);
        bf16(m, "attn.wo.bias", 1024, 0);
        bf16(m, "mlp.w1.weight", 5632, 1024);
        bf16(m, "mlp.w2.weight", 1024, 2816);
    }
    m->prefix[0] = 0;
    bf16(m, "vision.norm.weight", 1024, 0);
    bf16(m, "aligner.w1.weight", 5120, 9216);
    bf16(m, "aligner.w1.bias", 5120, 0);
    bf16(m, "aligner.w2.weight", 5120, 5120);
    bf16(m, "aligner.w2.bias", 5120, 0);
    bf16(m, "image_start", 5120, 0);
    bf16(m, "image_end", 5120, 0);
    bf16(m, "image_newline", 5120, 0);
}

static void everything(struct maker *m)
{
    bf16(m, "embed.weight", 129280, 5120);
    vision(m);
    for (int l = 0; l < 40; l++)
        layer(m, l);
    m->at = 42;
    m->prefix[0] = 0;
    bf16(m, "head.weight", 129280, 5120);
    bf16(m, "norm.weight", 5120, 0);
    if (m->o->add)
        bf16(m, m->o->add, 3, 0);
    drafts(m);
}

/* Header, then a hole. */
static enum err write_shard(const struct maker *m, int i, struct error *e)
{
    const struct shard *s = &m->shard[i];
    char path[512];
    uint8_t size[8];
    uint64_t n = s->header.len + 1;
    snprintf(path, sizeof(path), "%s/model-%05d-of-%05d.safetensors", m->o->out, i + 1,
             N_SHARDS);
    for (int k = 0; k < 8; k++)
        size[k] = (uint8_t)(n >> 8 * k);
    AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_sys(e, errno, "%s", path);
    enum err rc;
    if ((rc = fs_pwrite(fd, path, size, 8, 0, e)) ||
        (rc = fs_pwrite(fd, path, s->header.data, s->header.len, 8, e)) ||
        (rc = fs_pwrite(fd, path, "}", 1, 7 + n, e)))
        return rc;
    if (ftruncate(fd, (off_t)(8 + n + s->n_data)))
        return err_sys(e, errno, "%s: %" PRIu64 " bytes", path, 8 + n + s->n_data);
    return OK;
}

static enum err write_all(const struct maker *m, struct error *e)
{
    AUTO(buf) struct buf text = BUF_INIT(64 << 20), config = BUF_INIT(1 << 20);
    char path[512];
    enum err rc = fs_mkdir_p(m->o->out, e);
    for (int i = 0; i < N_SHARDS && !rc; i++)
        rc = write_shard(m, i, e);
    if (rc ||
        (rc = buf_printf(&text, e,
                         "{\"metadata\":{\"total_size\":%" PRIu64 "},"
                         "\"weight_map\":{",
                         m->total)) ||
        (rc = buf_add(&text, m->index.data, m->index.len, e)) ||
        (rc = buf_add_str(&text, "}}", e)) || (rc = fs_read_file(CONFIG, &config, e)))
        return rc;
    snprintf(path, sizeof(path), "%s/model.safetensors.index.json", m->o->out);
    if ((rc = fs_write_atomic(path, text.data, text.len, 0600, e)))
        return rc;
    snprintf(path, sizeof(path), "%s/config.json", m->o->out);
    return fs_write_atomic(path, config.data, config.len, 0600, e);
}

enum err full_size_make(const struct full_size_options *o, struct error *e)
{
    struct maker *m = calloc(1, sizeof(*m));
    if (!m)
        return err_set(e, ERR_NOMEM, "full-size checkpoint");
    m->o = o;
    m->e = e;
    m->index = (struct buf)BUF_INIT(64 << 20);
    for (int i = 0; i < N_SHARDS; i++)
        m->shard[i].header = (struct buf)BUF_INIT(16 << 20);
    everything(m);
    enum err rc = m->failed ? m->failed : write_all(m, e);
    for (int i = 0; i < N_SHARDS; i++)
        buf_fini(&m->shard[i].header);
    buf_fini(&m->index);
    free(m);
    return rc;
}
