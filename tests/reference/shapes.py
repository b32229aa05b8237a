"""Configurations that have little in common with the release, to find what is hard-wired.

Twelve are picked by hand, one oddity each or two; the rest are drawn.
"""
import random

from engram import Hash

BASE = {
    "model_type": "deepseek_v41_text", "vocab_size": 512, "hidden_size": 64, "moe_intermediate_size": 32,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32,
    "qk_rope_head_dim": 16, "q_lora_rank": 32, "o_lora_rank": 32, "o_groups": 2, "hidden_act": "silu",
    "swiglu_limit": 10.0, "rms_norm_eps": 1e-20, "attention_bias": False, "max_position_embeddings": 4096,
    "rope_theta": 10000,
    "rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1,
                     "original_max_position_embeddings": 256},
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 1.5, "sliding_window": 16,
    "compress_ratios": [0, 2, 1, 1], "compress_rope_theta": 160000, "kv_source_layer_ids": [1, 2],
    "index_source_layer_ids": [1, 2, 3], "index_n_heads": 2, "index_head_dim": 32, "index_topk": 8,
    "candidate_source_layer_id": 2, "candidate_topk_blocks": 4, "candidate_block_size": 4, "hc_mult": 4,
    "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "engram_layer_ids": [1], "engram_num_embeddings": [],
    "engram_max_ngram_size": 3, "engram_vocab_size": 50, "engram_n_heads": 2, "engram_head_dim": 32,
    "engram_pad_token_id": 2, "engram_compressed_vocab_size": 424, "num_nextn_predict_layers": 0,
    "dspark_block_size": 3, "dspark_noise_token_id": 497, "dspark_target_layer_ids": [1, 2, 3],
    "dspark_markov_rank": 32, "dspark_n_routed_experts": 4, "dspark_num_experts_per_tok": 2,
}

PICKED = {
    "hc-2": {"hc_mult": 2, "hc_sinkhorn_iters": 7},
    "hc-1": {"hc_mult": 1, "hc_sinkhorn_iters": 1},
    "hc-8": {"hc_mult": 8},
    "one-of-each": {"num_attention_heads": 1, "o_groups": 1, "n_routed_experts": 1, "num_experts_per_tok": 1,
                    "index_n_heads": 1, "index_topk": 1, "candidate_topk_blocks": 1, "candidate_block_size": 1,
                    "sliding_window": 1, "num_hidden_layers": 1, "compress_ratios": [1], "kv_source_layer_ids": [0],
                    "index_source_layer_ids": [0], "candidate_source_layer_id": 0, "engram_layer_ids": [0],
                    "engram_n_heads": 1, "engram_max_ngram_size": 2},
    "windows-only": {"num_hidden_layers": 3, "compress_ratios": [], "kv_source_layer_ids": [],
                     "index_source_layer_ids": [], "candidate_source_layer_id": -1, "engram_layer_ids": []},
    "ratio-2-only": {"compress_ratios": [2, 2, 2, 2], "kv_source_layer_ids": [0, 3], "index_source_layer_ids": [0, 1, 3],
                     "candidate_source_layer_id": -1},
    "masked-ratio-2": {"compress_ratios": [2, 2, 2, 2], "kv_source_layer_ids": [0], "index_source_layer_ids": [0, 1, 3],
                       "candidate_source_layer_id": 0, "candidate_block_size": 3, "candidate_topk_blocks": 3},
    "all-experts": {"n_routed_experts": 5, "num_experts_per_tok": 5, "norm_topk_prob": False,
                    "routed_scaling_factor": 2.5, "swiglu_limit": 0.25},
    "long-grams": {"engram_max_ngram_size": 8, "engram_n_heads": 3, "engram_head_dim": 64, "engram_layer_ids": [0, 2, 3]},
    "all-rope": {"qk_rope_head_dim": 32, "compress_rope_theta": 5000, "rope_theta": 500,
                 "rope_scaling": {"rope_type": "yarn", "factor": 40, "beta_fast": 4, "beta_slow": 2,
                                  "original_max_position_embeddings": 64}},
    "wide-heads": {"num_attention_heads": 6, "o_groups": 3, "head_dim": 96, "index_head_dim": 64, "index_n_heads": 5,
                   "hidden_size": 96, "q_lora_rank": 96, "moe_intermediate_size": 96},
    "one-draft": {"num_nextn_predict_layers": 1, "dspark_block_size": 5, "dspark_target_layer_ids": [3],
                  "dspark_n_routed_experts": 2, "dspark_num_experts_per_tok": 1, "dspark_markov_rank": 48},
}


def top(text):
    text = {**BASE, **text}
    text["engram_num_embeddings"] = Hash.table_sizes(text)
    return {"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
            "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": 511,
            "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
                                    "weight_block_size": [32, 32], "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
            "text_config": text}


def draw_sources(r, n):
    """Ratios and sources: a stretch of window-only layers, then KV sources that each rule a few."""
    first = r.randint(0, n - 1)
    starts = sorted(r.sample(range(first, n), r.randint(1, min(3, n - first))))
    ratios = [0] * n
    ratio = 0
    for layer in range(starts[0], n):
        if layer in starts:
            ratio = r.choice((1, 2))
        ratios[layer] = ratio
    index = sorted({*starts, *(k for k in range(starts[0], n) if r.random() < 0.3)})
    candidate = r.choice([-1, starts[-1]])
    return {"compress_ratios": ratios, "kv_source_layer_ids": starts, "index_source_layer_ids": index,
            "candidate_source_layer_id": candidate}


def draw(seed):
    r = random.Random(seed)
    groups, per_group = r.choice((1, 2, 3, 4)), r.randint(1, 3)
    n, n_experts, draft_experts = r.randint(1, 7), r.randint(1, 9), r.randint(1, 6)
    text = {
        "num_hidden_layers": n, "num_attention_heads": groups * per_group, "o_groups": groups,
        "head_dim": r.choice((32, 64, 96, 128)), "index_head_dim": r.choice((32, 64, 128)),
        "qk_rope_head_dim": r.choice((2, 6, 16, 32)), "q_lora_rank": 32 * r.randint(1, 4),
        "o_lora_rank": 32 * r.randint(1, 2), "hidden_size": 32 * r.randint(1, 5),
        "moe_intermediate_size": 32 * r.randint(1, 3), "n_routed_experts": n_experts,
        "num_experts_per_tok": r.randint(1, n_experts), "norm_topk_prob": r.random() < 0.7,
        "routed_scaling_factor": r.choice((0.7, 1.0, 1.5)), "sliding_window": r.choice((1, 3, 8, 31, 64)),
        "index_n_heads": r.randint(1, 6), "index_topk": r.choice((1, 5, 16, 40)),
        "candidate_topk_blocks": r.choice((1, 3, 10)), "candidate_block_size": r.choice((1, 2, 5, 8)),
        "hc_mult": r.choice((1, 2, 3, 4, 6)), "hc_sinkhorn_iters": r.randint(1, 25),
        "engram_layer_ids": sorted(r.sample(range(n), r.randint(0, min(3, n)))),
        "engram_max_ngram_size": r.randint(2, 6), "engram_n_heads": r.randint(1, 4),
        "engram_head_dim": r.choice((32, 64)), "engram_vocab_size": r.choice((20, 90, 333)),
        "num_nextn_predict_layers": r.choice((0, 1, 3)), "dspark_block_size": r.randint(1, 7),
        "dspark_target_layer_ids": sorted(r.sample(range(n), r.randint(1, min(4, n)))),
        "dspark_markov_rank": 16 * r.randint(1, 4), "dspark_n_routed_experts": draft_experts,
        "dspark_num_experts_per_tok": r.randint(1, draft_experts),
        **draw_sources(r, n),
    }
    return top(text)


def all_shapes(n_drawn):
    """(name, config) of the picked and then of n_drawn drawn ones."""
    for name, text in PICKED.items():
        yield name, top(text)
    for seed in range(n_drawn):
        yield f"drawn-{seed}", draw(seed)
