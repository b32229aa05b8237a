#!/usr/bin/env python3
"""A random DeepSeek V4 model for llama.cpp, of the outer shape of one of tests/configs.

    make_llama_model.py CONFIG.json OUT.gguf [--seed N]

What scripts/bench.sh measures beside this project: llama.cpp knows V4 (its architecture
"deepseek4"), not V4.1, so widths, depth, heads, experts, window and the number of index heads are
those of the config, and what is V4's own is as in V4-Flash: the first two layers see the window
only, the others compress 4 and 128 tokens to one in turns, each layer on its own.

Storage is what llama.cpp's converter makes of the release: Q8_0 for matrices that are FP8 there,
MXFP4 for routed experts, BF16 and F32 for the rest. Random, so that routing, selection and the
time they take are like those of a real model; what it says means nothing.

Needs the package gguf, 0.19 or later.
"""
import argparse
import json
import math

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter, LlamaFileType, TokenType, quantize

ARCH = "deepseek4"
SQRT_SOFTPLUS = 4  # llama.cpp's number of the gate's function
FP4_BLOCK = 32
FP4_STD = 2.926  # of E2M1 codes that are all equally likely


class Maker:
    def __init__(self, config, path, seed):
        self.c = config
        self.out = GGUFWriter(path, ARCH)
        self.rng = np.random.default_rng(seed)

    # -- tensors: shapes are [rows][columns], as a product reads them; gguf counts from the other end

    def add(self, name, shape, kind, std, mean=0.0):
        values = (mean + std * self.rng.standard_normal(shape, dtype=np.float32)).astype(np.float32)
        self.out.add_tensor(name, quantize(values, kind), raw_dtype=kind)

    def vector(self, name, n, mean, std):
        self.add(name, (n,), Kind.F32, std, mean)

    def norm(self, name, n, mean=1.0):
        self.vector(name, n, mean, 0.1 * mean)

    def matrix(self, name, rows, columns, gain, kind=Kind.Q8_0):
        """Products with inputs of size 1 have size `gain`."""
        self.add(name, (rows, columns), kind, gain / math.sqrt(columns))

    def experts(self, name, rows, columns, gain):
        """A scale of eight bits and 32 codes a block, all codes equally likely."""
        n = self.c["n_routed_experts"]
        blocks = self.rng.integers(
            0, 256, (n, rows, columns // FP4_BLOCK, 1 + FP4_BLOCK // 2), dtype=np.uint8)
        blocks[..., 0] = 127 + round(math.log2(gain / math.sqrt(columns) / FP4_STD))
        self.out.add_tensor(name, blocks.reshape(n, rows, -1), raw_dtype=Kind.MXFP4)

    # -- the parts of a layer

    def hyper_connection(self, at, half):
        width = self.c["hc_mult"]
        n = (2 + width) * width
        self.matrix(f"{at}.hc_{half}_fn.weight", n, width * self.c["hidden_size"], 1, Kind.F32)
        self.vector(f"{at}.hc_{half}_base.weight", n, 0, 0.5)
        self.vector(f"{at}.hc_{half}_scale.weight", 3, 0.5, 0.15)

    def compressor(self, at, ratio, head_dim):
        """Blocks of 4 overlap: two sets of columns."""
        columns = head_dim * (2 if ratio == 4 else 1)
        dim = self.c["hidden_size"]
        self.matrix(f"{at}_kv.weight", columns, dim, 1.8, Kind.BF16)
        self.matrix(f"{at}_gate.weight", columns, dim, 20, Kind.BF16)
        self.add(f"{at}_ape.weight", (ratio, columns), Kind.F32, 0.5)
        self.norm(f"{at}_norm.weight", head_dim)

    def attention(self, at, ratio):
        c = self.c
        dim, head = c["hidden_size"], c["head_dim"]
        q, o = c["num_attention_heads"] * head, c["o_groups"] * c["o_lora_rank"]
        self.norm(f"{at}.attn_norm.weight", dim, 0.025)
        self.vector(f"{at}.attn_sinks.weight", c["num_attention_heads"], 0, 0.5)
        self.matrix(f"{at}.attn_q_a.weight", c["q_lora_rank"], dim, 1.6)
        self.norm(f"{at}.attn_q_a_norm.weight", c["q_lora_rank"])
        self.matrix(f"{at}.attn_q_b.weight", q, c["q_lora_rank"], 0.95)
        self.matrix(f"{at}.attn_kv.weight", head, dim, 1.8)
        self.norm(f"{at}.attn_kv_a_norm.weight", head, 0.4)
        self.matrix(f"{at}.attn_output_a.weight", o, q // c["o_groups"], 1.6)
        self.matrix(f"{at}.attn_output_b.weight", dim, o, 0.3)
        if ratio:
            self.compressor(f"{at}.attn_compressor", ratio, head)
        if ratio == 4:
            index = c["index_n_heads"] * c["index_head_dim"]
            self.matrix(f"{at}.indexer.proj.weight", c["index_n_heads"], dim, 20, Kind.BF16)
            self.matrix(f"{at}.indexer.attn_q_b.weight", index, c["q_lora_rank"], 0.95)
            self.compressor(f"{at}.indexer_compressor", ratio, c["index_head_dim"])

    def feed_forward(self, at):
        c = self.c
        dim, wide = c["hidden_size"], c["moe_intermediate_size"]
        self.norm(f"{at}.ffn_norm.weight", dim, 0.2)
        self.matrix(f"{at}.ffn_gate_inp.weight", c["n_routed_experts"], dim, 4, Kind.BF16)
        self.vector(f"{at}.exp_probs_b.bias", c["n_routed_experts"], 0, 0.08)
        for part, rows, columns, gain in (
                ("gate", wide, dim, 1.5), ("up", wide, dim, 1.5), ("down", dim, wide, 1.05)):
            self.experts(f"{at}.ffn_{part}_exps.weight", rows, columns, gain)
            self.matrix(f"{at}.ffn_{part}_shexp.weight", rows, columns, gain)

    # -- the file

    def key_values(self, ratios):
        c, w = self.c, self.out
        yarn = c["rope_scaling"]
        w.add_file_type(LlamaFileType.MOSTLY_MXFP4_MOE)
        w.add_context_length(c["max_position_embeddings"])
        w.add_embedding_length(c["hidden_size"])
        w.add_block_count(c["num_hidden_layers"])
        w.add_feed_forward_length(c["moe_intermediate_size"])
        w.add_head_count(c["num_attention_heads"])
        w.add_head_count_kv(1)
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
        w.add_layer_norm_rms_eps(1e-6)
        w.add_q_lora_rank(c["q_lora_rank"])
        w.add_sliding_window(c["sliding_window"])
        w.add_rope_dimension_count(c["qk_rope_head_dim"])
        w.add_rope_freq_base(c["rope_theta"])
        w.add_string(f"{ARCH}.rope.scaling.type", "yarn")
        w.add_rope_scaling_factor(yarn["factor"])
        w.add_rope_scaling_orig_ctx_len(yarn["original_max_position_embeddings"])
        w.add_expert_count(c["n_routed_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        w.add_expert_shared_count(c["n_shared_experts"])
        w.add_expert_weights_scale(c["routed_scaling_factor"])
        w.add_expert_weights_norm(c["norm_topk_prob"])
        w.add_uint32(f"{ARCH}.expert_gating_func", SQRT_SOFTPLUS)
        limits = [float(c["swiglu_limit"])] * c["num_hidden_layers"]
        w.add_array(f"{ARCH}.swiglu_clamp_exp", limits)
        w.add_array(f"{ARCH}.swiglu_clamp_shexp", limits)
        w.add_uint32(f"{ARCH}.attention.indexer.head_count", c["index_n_heads"])
        w.add_uint32(f"{ARCH}.attention.indexer.key_length", c["index_head_dim"])
        w.add_uint32(f"{ARCH}.attention.indexer.top_k", c["index_topk"])
        w.add_uint32(f"{ARCH}.attention.output_group_count", c["o_groups"])
        w.add_uint32(f"{ARCH}.attention.output_lora_rank", c["o_lora_rank"])
        w.add_array(f"{ARCH}.attention.compress_ratios", ratios)
        w.add_float32(f"{ARCH}.attention.compress_rope_freq_base", c["compress_rope_theta"])
        w.add_uint32(f"{ARCH}.hyper_connection.count", c["hc_mult"])
        w.add_uint32(f"{ARCH}.hyper_connection.sinkhorn_iterations", c["hc_sinkhorn_iters"])
        w.add_float32(f"{ARCH}.hyper_connection.epsilon", c["hc_eps"])
        w.add_uint32(f"{ARCH}.hash_layer_count", 0)

    def vocabulary(self):
        """Prompts are given as ids: three control tokens, all bytes, and names for the rest."""
        n = self.c["vocab_size"]
        tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
        kinds = [TokenType.UNKNOWN] + 2 * [TokenType.CONTROL] + 256 * [TokenType.BYTE]
        if n < len(tokens):
            raise SystemExit(f"a vocabulary of {n} is too small: bytes and controls are {len(tokens)}")
        kinds += (n - len(tokens)) * [TokenType.NORMAL]
        tokens += [f"t{i} " for i in range(len(tokens), n)]
        w = self.out
        w.add_tokenizer_model("llama")
        w.add_token_list(tokens)
        w.add_token_scores([0.0] * n)
        w.add_token_types(kinds)
        w.add_unk_token_id(0)
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
        w.add_add_bos_token(False)

    def make(self):
        c = self.c
        n, dim = c["num_hidden_layers"], c["hidden_size"]
        ratios = [0 if i < 2 else 128 if i % 2 else 4 for i in range(n)]
        self.key_values(ratios)
        self.vocabulary()
        self.matrix("token_embd.weight", c["vocab_size"], dim, math.sqrt(dim), Kind.BF16)
        self.matrix("output.weight", c["vocab_size"], dim, 3, Kind.BF16)
        self.norm("output_norm.weight", dim)
        self.matrix("output_hc_fn.weight", c["hc_mult"], c["hc_mult"] * dim, 1, Kind.F32)
        self.vector("output_hc_base.weight", c["hc_mult"], 0, 0.5)
        self.vector("output_hc_scale.weight", 1, 0.5, 0.15)
        for i, ratio in enumerate(ratios):
            at = f"blk.{i}"
            self.hyper_connection(at, "attn")
            self.hyper_connection(at, "ffn")
            self.attention(at, ratio)
            self.feed_forward(at)
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_tensors_to_file()
        self.out.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("config")
    parser.add_argument("out")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with open(args.config, encoding="utf-8") as f:
        config = json.load(f)["text_config"]
    Maker(config, args.out, args.seed).make()


if __name__ == "__main__":
    main()
