#include "engine/fingerprint.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

static enum err add_weights(const struct model *m, const struct weight_digests_options *o,
                            struct hash *h, struct error *e)
{
    size_t n = 0;
    const struct tensor *tensors = safetensors_list(m->st, &n);
    uint8_t(*digests)[HASH_BYTES] = malloc((n ? n : 1) * HASH_BYTES);
    enum err rc = digests ? weight_digests(m->st, o, digests, e)
                          : err_set(e, ERR_NOMEM, "digests of %zu tensors", n);
    if (!rc)
        hash_u64le(h, n);
    for (size_t i = 0; i < n && !rc; i++) {
        const struct tensor *t = &tensors[i];
        hash_field(h, t->name, strlen(t->name));
        hash_field(h, dtype_name(t->dtype), strlen(dtype_name(t->dtype)));
        hash_u32le(h, t->n_dims);
        for (uint32_t k = 0; k < t->n_dims; k++)
            hash_u64le(h, t->shape[k]);
        hash_field(h, digests[i], HASH_BYTES);
    }
    free(digests);
    return rc;
}

static void add_token_map(const struct model *m, struct hash *h)
{
    hash_u32le(h, m->token_map ? m->config.vocab_size : 0);
    for (uint32_t i = 0; m->token_map && i < m->config.vocab_size; i++)
        hash_u32le(h, m->token_map[i]);
}

static void add_planes(const struct model *m, struct hash *h)
{
    const struct kv_shape *s = &m->shape;
    hash_u32le(h, s->n_planes);
    for (uint32_t i = 0; i < s->n_planes; i++) {
        hash_field(h, s->planes[i].name, strlen(s->planes[i].name));
        hash_u32le(h, s->planes[i].row_bytes);
        hash_u32le(h, s->planes[i].ratio);
    }
    hash_u32le(h, (uint32_t)s->row_format);
    hash_u32le(h, (uint32_t)s->key_format);
    hash_u32le(h, (uint32_t)s->ring_format);
}

enum err fingerprint_model(const struct model *m, const struct weight_digests_options *o,
                           uint8_t out[STATE_KEY_BYTES], struct error *e)
{
    static const char *const PRECISIONS[] = {"fast", "fp32kvq", "math", "official"};
    const char *precision = PRECISIONS[m->precision];
    AUTO(buf) struct buf text = BUF_INIT(1 << 16);
    struct hash h;
    hash_init(&h, NULL, HASH_BYTES);
    hash_field(&h, "agentd model 1", 14);
    enum err rc = add_weights(m, o, &h, e);
    if (rc || (rc = config_text(&m->config, &text, e)))
        return rc;
    hash_field(&h, text.data, text.len);
    add_token_map(m, &h);
    add_planes(m, &h);
    hash_field(&h, "ties: lowest first", 18);
    hash_field(&h, precision, strlen(precision));
    hash_final(&h, out);
    return OK;
}
