#include "engine/fingerprint.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

struct tensor_digests {
    const struct tensor *tensors;
    uint8_t (*digest)[HASH_BYTES];
};

static void digest_tensors(void *arg, size_t first, size_t last, uint32_t thread)
{
    const struct tensor_digests *d = arg;
    (void)thread;
    for (size_t i = first; i < last; i++)
        hash_bytes(NULL, d->tensors[i].data, d->tensors[i].n_bytes, d->digest[i]);
}

static enum err add_weights(const struct model *m, struct hash *h, struct error *e)
{
    size_t n = 0;
    struct tensor_digests d = {.tensors = safetensors_list(m->st, &n)};
    if (!(d.digest = malloc(n * HASH_BYTES)))
        return err_set(e, ERR_NOMEM, "digests of %zu tensors", n);
    pool_run(m->pool, digest_tensors, &d, n);
    hash_u64le(h, n);
    for (size_t i = 0; i < n; i++) {
        const struct tensor *t = &d.tensors[i];
        hash_field(h, t->name, strlen(t->name));
        hash_field(h, dtype_name(t->dtype), strlen(dtype_name(t->dtype)));
        hash_u32le(h, t->n_dims);
        for (uint32_t k = 0; k < t->n_dims; k++)
            hash_u64le(h, t->shape[k]);
        hash_field(h, d.digest[i], HASH_BYTES);
    }
    free(d.digest);
    return OK;
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

enum err fingerprint_model(const struct model *m, uint8_t out[STATE_KEY_BYTES], struct error *e)
{
    static const char *const PRECISIONS[] = {"fast", "fp32kvq", "math", "official"};
    const char *precision = PRECISIONS[m->precision];
    AUTO(buf) struct buf text = BUF_INIT(1 << 16);
    struct hash h;
    hash_init(&h, NULL, HASH_BYTES);
    hash_field(&h, "agentd model 1", 14);
    enum err rc = add_weights(m, &h, e);
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
