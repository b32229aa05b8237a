"""A random checkpoint in the official layout for any config, draft layers included.

Spreads are those of the golden models: every layer adds a little to streams of size 1, so that
the residual stream dominates and rounding stays small. Which of the two allowed types a norm
has, and how tensors fall into shards, is drawn too.
"""
import json
import os
import shutil

import numpy as np

import formats


class Maker:
    def __init__(self, config, seed):
        self.c = config["text_config"]
        self.rng = np.random.default_rng(seed)
        self.t = {}

    def normal(self, shape, mean=0.0, std=1.0):
        return mean + std * self.rng.standard_normal(shape)

    def bf16(self, name, x):
        self.t[name] = ("BF16", formats.f64_to_bf16(x))

    def f32(self, name, x):
        self.t[name] = ("F32", np.asarray(x, np.float32))

    def norm(self, name, n, mean=1.0):
        x = self.normal(n, mean, 0.1 * mean)
        (self.bf16 if self.rng.random() < 0.5 else self.f32)(name + ".weight", x)

    def matrix(self, name, n_out, n_in, gain, put=None):
        (put or self.bf16)(name, self.normal((n_out, n_in), 0, gain / n_in ** 0.5))

    def scales(self, shape, std):
        """Powers of two around std; the codes that go with them spread by about 1."""
        low = np.floor(np.log2(std))
        up = (4.0 ** (np.log2(std) - low) - 1) / 3  # share of the next power, for the mean square
        return (127 + low + (self.rng.random(shape) < up)).astype(np.uint8)

    def fp8(self, name, n_out, n_in, gain, scale_rows=None):
        """A weight that is 64 times as large as its scales make it."""
        codes = self.rng.standard_normal((n_out, n_in)) * 64
        grid = formats.nearest_code(np.minimum(np.abs(codes), 448), formats.E4M3_POSITIVE).astype(np.uint8)
        self.t[name + ".weight"] = ("F8_E4M3", grid | np.where(codes < 0, 128, 0).astype(np.uint8))
        rows = scale_rows or -(-n_out // 32)
        self.t[name + ".scale"] = ("F8_E8M0", self.scales((rows, n_in // 32), gain / n_in ** 0.5 / 64))

    def fp4(self, name, n_out, n_in, gain):
        x = self.rng.standard_normal((n_out, n_in)) * 2
        code = (formats.nearest_code(np.minimum(np.abs(x), 6), formats.FP4[:8]) + np.where(x < 0, 8, 0)).astype(np.uint8)
        self.t[name + ".weight"] = ("I8", (code[:, 0::2] | code[:, 1::2] << 4).view(np.int8))
        self.t[name + ".scale"] = ("F8_E8M0", self.scales((n_out, n_in // 32), gain / n_in ** 0.5 / 2))

    def hyper(self, prefix):
        hc, dim = self.c["hc_mult"], self.c["hidden_size"]
        n = (2 + hc) * hc
        for half in ("attn", "ffn"):
            self.matrix(f"{prefix}hc_{half}_fn", n, hc * dim, 1, self.f32)
            base = self.normal(n, 0, 0.45)
            base[2 * hc:] += 3 * np.eye(hc).reshape(-1)
            self.f32(f"{prefix}hc_{half}_base", base)
            self.f32(f"{prefix}hc_{half}_scale", self.normal(3, 0.5, 0.15))

    def attention(self, prefix):
        c = self.c
        q, o = c["num_attention_heads"] * c["head_dim"], c["o_groups"] * c["o_lora_rank"]
        self.norm(prefix + "attn_norm", c["hidden_size"], 0.025)
        prefix += "attn."
        self.fp8(prefix + "wq_a", c["q_lora_rank"], c["hidden_size"], 1.6)
        self.norm(prefix + "q_norm", c["q_lora_rank"])
        self.fp8(prefix + "wq_b", q, c["q_lora_rank"], 0.95)
        self.fp8(prefix + "wkv", c["head_dim"], c["hidden_size"], 1.8)
        self.norm(prefix + "kv_norm", c["head_dim"], 0.4)
        self.f32(prefix + "attn_sink", self.normal(c["num_attention_heads"], 0, 0.5))
        self.fp8(prefix + "wo_a", o, q // c["o_groups"], 1.6)
        self.fp8(prefix + "wo_b", c["hidden_size"], o, 0.3)

    def indexer(self, layer):
        c, prefix = self.c, f"layers.{layer}.attn."
        d = c["head_dim"]
        if layer in c["index_source_layer_ids"]:
            self.fp8(prefix + "indexer.wq_b", c["index_n_heads"] * c["index_head_dim"], c["q_lora_rank"], 0.95)
            self.matrix(prefix + "indexer.weights_proj.weight", c["index_n_heads"], c["hidden_size"], 20)
        if layer in c["kv_source_layer_ids"]:
            self.matrix(prefix + "compressor.wkv.weight", d, c["hidden_size"], 1.8)
            self.norm(prefix + "compressor.norm", d, 0.6)
            if c["compress_ratios"][layer] == 2:
                self.matrix(prefix + "compressor.wgate.weight", d, c["hidden_size"], 20)
            self.matrix(prefix + "indexer.wk.weight", c["index_head_dim"], d, 1)
            self.norm(prefix + "indexer.k_norm", c["index_head_dim"], 0.5)

    def moe(self, prefix, n_experts):
        c = self.c
        dim, inner = c["hidden_size"], c["moe_intermediate_size"]
        self.norm(prefix + "ffn_norm", dim, 0.2)
        self.matrix(prefix + "ffn.gate.weight", n_experts, dim, 4)
        for name in ("bias", "bias_vl"):
            self.f32(f"{prefix}ffn.gate.{name}", self.normal(n_experts, 0, 0.08))
        for put, names in ((self.fp4, [f"experts.{e}" for e in range(n_experts)]), (self.fp8, ["shared_experts"])):
            for name in names:
                put(f"{prefix}ffn.{name}.w1", inner, dim, 1.5)
                put(f"{prefix}ffn.{name}.w3", inner, dim, 1.5)
                put(f"{prefix}ffn.{name}.w2", dim, inner, 1.05)

    def engram(self, layer, rows):
        c, prefix = self.c, f"layers.{layer}.engram."
        n_in = (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"] * c["engram_head_dim"]
        self.fp8(prefix + "embed", rows, c["engram_head_dim"], 0.25 * c["engram_head_dim"] ** 0.5, rows)
        self.fp8(prefix + "wkv", (c["hc_mult"] + 1) * c["hidden_size"], n_in, 1.8)
        for side in "qk":
            self.bf16(f"{prefix}{side}_weight", self.normal((c["hc_mult"], c["hidden_size"]), 1, 0.3))

    def drafts(self):
        c, n = self.c, self.c["num_nextn_predict_layers"]
        dim, rank, vocab = c["hidden_size"], c["dspark_markov_rank"], c["vocab_size"]
        for i in range(n):
            self.hyper(f"mtp.{i}.")
            self.attention(f"mtp.{i}.")
            self.moe(f"mtp.{i}.", c["dspark_n_routed_experts"])
        self.fp8("mtp.0.main_proj", dim, len(c["dspark_target_layer_ids"]) * dim, 1)
        self.norm("mtp.0.main_norm", dim)
        last = f"mtp.{n - 1}."
        self.norm(last + "norm", dim)
        self.matrix(last + "markov_head.embed.weight", vocab, rank, rank ** 0.5)
        self.matrix(last + "markov_head.head.weight", vocab, rank, 1)
        self.matrix(last + "confidence_head.proj.weight", 1, dim + rank, 1)

    def all(self):
        c = self.c
        self.matrix("embed.weight", c["vocab_size"], c["hidden_size"], c["hidden_size"] ** 0.5)
        self.matrix("head.weight", c["vocab_size"], c["hidden_size"], 3)
        self.norm("norm", c["hidden_size"])
        for layer in range(c["num_hidden_layers"]):
            self.hyper(f"layers.{layer}.")
            self.attention(f"layers.{layer}.")
            self.indexer(layer)
            self.moe(f"layers.{layer}.", c["n_routed_experts"])
        for layer, rows in zip(c["engram_layer_ids"], c["engram_num_embeddings"]):
            self.engram(layer, rows)
        if c["num_nextn_predict_layers"]:
            self.drafts()
        return self.t


def write(folder, config, tokenizer, seed, n_shards):
    maker = Maker(config, seed)
    tensors = maker.all()
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
    shutil.copy(tokenizer, os.path.join(folder, "tokenizer.json"))
    shard = maker.rng.integers(0, n_shards, len(tensors))
    where = {}
    for k in range(n_shards):
        file = f"model-{k + 1:05}-of-{n_shards:05}.safetensors"
        part = {name: t for (name, t), s in zip(tensors.items(), shard) if s == k}
        where.update({name: file for name in part})
        formats.write_safetensors(os.path.join(folder, file), part)
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": sum(t[1].nbytes for t in tensors.values())}, "weight_map": where}, f)
