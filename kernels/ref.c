#include "kernels/host.h"

enum err kernels_ref(struct kernels *k, struct pool *pool, struct error *e)
{
    enum err rc = k_host_init(k, "ref/1", pool, e);
    if (rc)
        return rc;
    k->embed = k_embed_ref;
    k->hc_mix = k_hc_mix_ref;
    k->hc_collapse = k_hc_collapse_ref;
    k->hc_update = k_hc_update_ref;
    k->rmsnorm = k_rmsnorm_ref;
    k->linear = k_linear_ref;
    k->rope_table = k_rope_table_ref;
    k->rope = k_rope_ref;
    k->encode = k_encode_ref;
    k->decode = k_decode_ref;
    k->fake_quant = k_fake_quant_ref;
    k->compress = k_compress_ref;
    k->attention = k_attention_ref;
    k->index = k_index_ref;
    k->ring = k_ring_ref;
    k->route = k_route_ref;
    k->scale = k_scale_ref;
    k->moe = k_moe_ref;
    k->moe_part = k_moe_part_ref;
    k->moe_sum = k_moe_sum_ref;
    k->engram_rows = k_engram_rows_ref;
    k->engram_put = k_engram_put_ref;
    k->engram_gate = k_engram_gate_ref;
    k->sample = k_sample_ref;
    return OK;
}
