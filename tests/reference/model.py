"""DeepSeek-V4.1 in float64, written from model.md alone: slow, flat, and on purpose unlike engine/.

A whole token sequence is computed layer by layer. That is the same as prefill and decode of any
cut, except for the layers above the last KV source, which in modes ced and ced-report see only
the tail of a long prompt: then these layers are run on the positions from there on.
"""
import math

import numpy as np
import torch

import formats
from config import Config
from engram import Hash

QUERIES = 64       # of one attention block
SMALL = 1 << 18    # elements of a tensor that stays decoded


def t64(x):
    return torch.from_numpy(np.ascontiguousarray(x, np.float64))


def rmsnorm(x, w, eps):
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if w is None else y * w


class Rope:
    """Rotation of the last `dims` channels in interleaved pairs; model.md, 5."""

    def __init__(self, c, compressed):
        d = self.dims = c.qk_rope_head_dim
        base = c.compress_rope_theta if compressed else c.rope_theta
        theta = np.float32(base) ** -(np.arange(0, d, 2, dtype=np.float32) / np.float32(d))
        if compressed:
            s = c.rope_scaling
            at = lambda turns: d * math.log(s["original_max_position_embeddings"] / (2 * math.pi * turns)) / (
                2 * math.log(base))
            low = min(max(math.floor(at(s["beta_fast"])), 0), d - 1)
            high = min(max(math.ceil(at(s["beta_slow"])), 0), d - 1)
            ramp = np.clip((np.arange(d // 2, dtype=np.float32) - low) / np.float32(max(high - low, 1e-3)), 0, 1)
            theta = theta / np.float32(s["factor"]) * ramp + theta * (1 - ramp)
        self.theta = theta.astype(np.float32)

    def __call__(self, x, positions, inverse=False):
        """x [positions, ..., channels]"""
        angle = (np.asarray(positions, np.float32)[:, None] * self.theta).astype(np.float64)
        turn = torch.polar(torch.ones(angle.shape, dtype=torch.float64), t64(-angle if inverse else angle))
        turn = turn.reshape(turn.shape[0], *([1] * (x.dim() - 2)), turn.shape[1])
        z = torch.view_as_complex(x[..., -self.dims:].reshape(*x.shape[:-1], self.dims // 2, 2).contiguous())
        return torch.cat([x[..., :-self.dims], torch.view_as_real(z * turn).reshape(*x.shape[:-1], self.dims)], -1)


class Model:
    def __init__(self, folder, precision="math"):
        self.c = Config.load(folder)
        self.w = formats.Folder(folder)
        self.quantised = precision == "fp32kvq"
        self.hash = Hash(self.c, folder) if self.c.engram_layer_ids else None
        self.ropes = Rope(self.c, False), Rope(self.c, True)
        self.seen = {}  # what a caller may want to look at
        self.decoded = {}

    # ---- weights

    def weight(self, decode, name):
        if name in self.decoded:
            return self.decoded[name]
        x = t64(decode(name))
        if x.numel() <= SMALL:
            self.decoded[name] = x
        return x

    def plain(self, name):
        return self.weight(self.w.plain, name)

    def fp8(self, prefix):
        return self.weight(self.w.fp8, prefix)

    def fp4(self, prefix):
        return self.weight(self.w.fp4, prefix)

    def norm(self, x, name):
        return rmsnorm(x, self.plain(name + ".weight"), self.c.rms_norm_eps)

    def cached(self, x, grid):
        return t64(grid(x.numpy())) if self.quantised else x

    # ---- one half of a layer: hyper-connections

    def mix(self, X, prefix):
        """Coefficients (pre, post, comb) from the streams X [t, hc, dim]; model.md, 4."""
        hc, c = self.c.hc_mult, self.c
        m = rmsnorm(X.flatten(1), None, c.rms_norm_eps) @ self.plain(prefix + "_fn").T
        scale, base = self.plain(prefix + "_scale"), self.plain(prefix + "_base")
        pre = torch.sigmoid(m[:, :hc] * scale[0] + base[:hc]) + c.hc_eps
        post = 2 * torch.sigmoid(m[:, hc:2 * hc] * scale[1] + base[hc:2 * hc])
        z = (m[:, 2 * hc:] * scale[2] + base[2 * hc:]).reshape(-1, hc, hc)
        comb = torch.softmax(z, -1) + c.hc_eps
        comb = comb / (comb.sum(-2, keepdim=True) + c.hc_eps)
        for _ in range(c.hc_sinkhorn_iters - 1):
            comb = comb / (comb.sum(-1, keepdim=True) + c.hc_eps)
            comb = comb / (comb.sum(-2, keepdim=True) + c.hc_eps)
        return pre, post, comb

    @staticmethod
    def collapse(X, pre):
        return (pre[:, :, None] * X).sum(1)

    @staticmethod
    def spread(X, y, post, comb):
        return post[:, :, None] * y[:, None, :] + torch.einsum("tij,tid->tjd", comb, X)

    # ---- attention

    def queries(self, x, at, prefix, rope):
        """(low-rank query, rotated heads [t, heads, dim])"""
        c = self.c
        low = self.norm(x @ self.fp8(prefix + "wq_a").T, prefix + "q_norm")
        q = (low @ self.fp8(prefix + "wq_b").T).reshape(len(x), c.num_attention_heads, c.head_dim)
        return low, rope(q, at)

    def window_keys(self, x, at, prefix, rope):
        k = self.norm(x @ self.fp8(prefix + "wkv").T, prefix + "kv_norm")
        return self.cached(rope(k, at), formats.fake_fp8)

    def output(self, o, at, prefix, rope):
        c = self.c
        groups = c.o_groups
        o = rope(o, at, inverse=True).reshape(len(o), groups, -1)
        wo_a = self.fp8(prefix + "wo_a").reshape(groups, c.o_lora_rank, -1)
        return torch.einsum("tgi,goi->tgo", o, wo_a).flatten(1) @ self.fp8(prefix + "wo_b").T

    def attend(self, q, keys, allowed, sink):
        """q [t, h, d] over keys [k, d] (values too) where allowed [t, k]."""
        s = torch.einsum("thd,kd->thk", q, keys) * self.c.head_dim ** -0.5
        s = s.masked_fill(~allowed[:, None, :], -torch.inf)
        s = torch.cat([s, sink.expand(len(q), -1)[:, :, None]], -1)
        return torch.einsum("thk,kd->thd", torch.softmax(s, -1)[..., :-1], keys)

    def compress(self, x, layer, rope):
        """Rows and index keys of a KV source from all its inputs; model.md, 6."""
        c, r, prefix = self.c, self.c.compress_ratios[layer], f"layers.{layer}.attn.compressor."
        u = x @ self.plain(prefix + "wkv.weight").T
        if r == 2:
            n = len(x) // 2
            g = (x @ self.plain(prefix + "wgate.weight").T)[:2 * n].reshape(n, 2, -1)
            u = (torch.softmax(g, 1) * u[:2 * n].reshape(n, 2, -1)).sum(1)
        latent = self.norm(u, prefix + "norm")
        at = np.arange(len(latent)) * r
        index = f"layers.{layer}.attn.indexer."
        key = self.norm(latent @ self.plain(index + "wk.weight").T, index + "k_norm")
        return (self.cached(rope(latent, at), formats.fake_fp4_row),
                self.cached(rope(key, at), formats.fake_fp4_index))

    def select(self, x, low, at, layer, keys, candidates, rope):
        """Which rows each query reads, as a mask [t, rows]; model.md, 7."""
        c, r, prefix = self.c, self.c.compress_ratios[layer], f"layers.{layer}.attn.indexer."
        q = (low @ self.fp8(prefix + "wq_b").T).reshape(len(x), c.index_n_heads, c.index_head_dim)
        q = self.cached(rope(q, at), formats.fake_fp4_index)
        w = x @ self.plain(prefix + "weights_proj.weight").T * (c.index_head_dim ** -0.5 * c.index_n_heads ** -0.5)
        visible = (t64(at)[:, None] + 1) // r > torch.arange(len(keys))
        score = torch.empty(len(x), len(keys), dtype=torch.float64)
        for i in range(0, len(x), QUERIES):
            part = slice(i, i + QUERIES)
            score[part] = torch.einsum("thk,th->tk", torch.relu(torch.einsum("thd,kd->thk", q[part], keys)), w[part])
        score = score.masked_fill(~visible, -torch.inf)
        if candidates is not None and layer > c.candidate_source_layer_id:
            score = score.masked_fill(~candidates, -torch.inf)
        if layer == c.candidate_source_layer_id:
            candidates = self.candidate_rows(score, at, r)
        chosen = self.best(score, c.index_topk) & visible
        return chosen, candidates

    def candidate_rows(self, score, at, r):
        size, n_rows = self.c.candidate_block_size, score.shape[1]
        n_blocks = -(-n_rows // size)
        padded = torch.full((len(score), n_blocks * size), -torch.inf, dtype=torch.float64)
        padded[:, :n_rows] = score
        block = padded.reshape(len(score), n_blocks, size).amax(-1)
        for t, p in enumerate(at):
            n = (p + 1) // r
            if n:
                block[t, (n - 1) // size] = torch.inf
        kept = self.best(block, self.c.candidate_topk_blocks) & (block > -torch.inf)
        return kept.repeat_interleave(size, 1)[:, :n_rows]

    @staticmethod
    def best(score, k):
        """Mask of the k largest of each row, the lower index first among equals, -inf never."""
        mask = torch.zeros(score.shape, dtype=torch.bool)
        if score.shape[1]:
            order = torch.sort(score, dim=-1, descending=True, stable=True).indices[:, :k]
            mask.scatter_(1, order, True)
        return mask & (score > -torch.inf)

    def attention(self, x, at, layer, shared, full):
        """x: inputs of the positions `at`; full: those of every position, for a source's rows."""
        c, prefix = self.c, f"layers.{layer}.attn."
        ratio = c.compress_ratios[layer]
        rope = self.ropes[ratio > 0]
        low, q = self.queries(x, at, prefix, rope)
        k = self.window_keys(x, at, prefix, rope)
        if ratio and layer in c.kv_source_layer_ids:
            shared["rows"], shared["keys"] = self.compress(full, layer, rope)
            shared["candidates"] = None
        if ratio and layer in c.index_source_layer_ids:
            shared["chosen"], shared["candidates"] = self.select(x, low, at, layer, shared["keys"],
                                                                 shared["candidates"], rope)
            self.seen[f"L{layer}.chosen"] = shared["chosen"]
        sink, out = self.plain(prefix + "attn_sink"), []
        for i in range(0, len(x), QUERIES):
            to = min(i + QUERIES, len(x))
            first = max(i - c.sliding_window + 1, 0)
            age = torch.arange(i, to)[:, None] - torch.arange(first, to)
            keys, allowed = k[first:to], (age >= 0) & (age < c.sliding_window)
            if ratio:
                used = shared["chosen"][i:to]
                some = used.any(0)
                keys = torch.cat([keys, shared["rows"][some]])
                allowed = torch.cat([allowed, used[:, some]], 1)
            out.append(self.attend(q[i:to], keys, allowed, sink))
        return self.output(torch.cat(out), at, prefix, rope)

    # ---- experts

    def expert(self, x, w1, w2, w3, weight=None):
        limit = self.c.swiglu_limit
        u = (x @ w3.T).clamp(-limit, limit)
        g = (x @ w1.T).clamp(max=limit)
        a = torch.nn.functional.silu(g) * u
        return (a if weight is None else a * weight[:, None]) @ w2.T

    def moe(self, x, prefix, n_active):
        c = self.c
        s = torch.sqrt(torch.nn.functional.softplus(x @ self.plain(prefix + "gate.weight").T))
        biased = s + self.plain(prefix + "gate.bias")
        chosen = torch.sort(biased, dim=-1, descending=True, stable=True).indices[:, :n_active]
        w = s.gather(1, chosen)
        if c.norm_topk_prob and n_active > 1:
            w = w / (w.sum(-1, keepdim=True) + 1e-20)
        w = w * c.routed_scaling_factor
        part = [self.fp8(f"{prefix}shared_experts.w{i}") for i in (1, 2, 3)]
        y = self.expert(x, *part)
        for e in chosen.unique().tolist():
            token, slot = torch.where(chosen == e)
            part = [self.fp4(f"{prefix}experts.{e}.w{i}") for i in (1, 2, 3)]
            y.index_add_(0, token, self.expert(x[token], *part, w[token, slot]))
        return y

    # ---- Engram

    def engram(self, X, layer, ids):
        c, prefix, hc = self.c, f"layers.{layer}.engram.", self.c.hc_mult
        rows = self.hash.rows(c.engram_layer_ids.index(layer), ids)
        self.seen[f"L{layer}.engram_rows"] = rows
        table = t64(self.w.fp8_rows(prefix + "embed", rows.reshape(-1))).reshape(len(ids), -1)
        kv = (table @ self.fp8(prefix + "wkv").T).reshape(len(ids), hc + 1, -1)
        k, v = kv[:, :hc], kv[:, hc]
        d = X.shape[-1]
        dot = (rmsnorm(X, None, c.rms_norm_eps) * self.plain(prefix + "q_weight") * self.plain(prefix + "k_weight") *
               rmsnorm(k, None, c.rms_norm_eps)).sum(-1) / math.sqrt(d)
        sign = torch.where(dot < 0, -1.0, 1.0).double()
        gate = torch.sigmoid(sign * torch.sqrt(dot.abs().clamp(min=1e-6)))
        return X + gate[:, :, None] * v[:, None, :]

    # ---- all of it

    def half_layers(self, X, pre, prefix, attention, n_active):
        """One block: `attention` maps the normed input to the output."""
        a_pre, a_post, a_comb = self.mix(X, prefix + "hc_attn")
        x = self.norm(self.collapse(X, pre), prefix + "attn_norm")
        X1 = self.spread(X, attention(x), a_post, a_comb)
        f_pre, f_post, f_comb = self.mix(X1, prefix + "hc_ffn")
        x = self.norm(self.collapse(X1, a_pre), prefix + "ffn_norm")
        return self.spread(X1, self.moe(x, prefix + "ffn.", n_active), f_post, f_comb), f_pre

    def start(self, ids):
        h = t64(formats.bf16_to_f64(self.w.raw("embed.weight")[np.asarray(ids)]))
        X = h[:, None, :].repeat(1, self.c.hc_mult, 1)
        pre = torch.zeros(len(ids), self.c.hc_mult, dtype=torch.float64)
        pre[:, 0] = 1
        return X, pre

    @torch.no_grad()
    def logits(self, ids, prefill=0, mode="full"):
        """(first position, rows of logits from there on). prefill: length of the prompt."""
        c, w = self.c, self.c.sliding_window
        X, pre = self.start(ids)
        at, shared = np.arange(len(ids)), {"candidates": None}
        cut = max(prefill - w, 0) if mode != "full" else 0
        main = []
        for layer in range(c.num_hidden_layers):
            n_dropped = cut - at[0] if layer > c.last_source else 0
            if n_dropped > 0:
                X, pre, at = X[n_dropped:], pre[n_dropped:], at[n_dropped:]
                for name in ("chosen", "candidates"):
                    if shared.get(name) is not None:
                        shared[name] = shared[name][n_dropped:]
            if layer in c.engram_layer_ids:
                X = self.engram(X, layer, ids)[...] if len(at) == len(ids) else self.engram_tail(X, layer, ids, at)
            if c.num_nextn_predict_layers and layer in c.dspark_target_layer_ids:
                main.append(X.mean(1))
            full = None
            if mode == "ced-report" and layer == c.last_source and cut:
                full = self.norm(self.collapse(X, pre), f"layers.{layer}.attn_norm")
                X, pre, at = X[cut:], pre[cut:], at[cut:]
            X, pre = self.half_layers(
                X, pre, f"layers.{layer}.",
                lambda x: self.attention(x, at, layer, shared, x if full is None else full),
                c.num_experts_per_tok)
        self.main = torch.cat([m[len(m) - len(at):] for m in main], -1) if main else None
        h = self.norm(self.collapse(X, pre), "norm")
        return int(at[0]), h @ self.plain("head.weight").T

    def engram_tail(self, X, layer, ids, at):
        """An Engram layer above the cut: rows hash the true ids before the tail, too."""
        whole = torch.zeros(len(ids), *X.shape[1:], dtype=torch.float64)
        whole[at[0]:] = X
        return self.engram(whole, layer, ids)[at[0]:]

    # ---- draft layers

    @torch.no_grad()
    def drafts(self, ids, anchors, positions):
        """(ids, confidence) [positions, block] of the guesses behind each position p, whose next
        token is anchors[p]. logits(ids) in mode full comes first: it leaves what the draft layers
        read. model.md, 12."""
        c, last = self.c, f"mtp.{self.c.num_nextn_predict_layers - 1}."
        rope, n = self.ropes[0], c.dspark_block_size
        main = self.norm(self.main @ self.fp8("mtp.0.main_proj").T, "mtp.0.main_norm")
        rings = [self.window_keys(main, np.arange(len(main)), f"mtp.{i}.attn.", rope)
                 for i in range(c.num_nextn_predict_layers)]
        table, head = self.plain("embed.weight"), self.plain("head.weight")
        m_embed, m_head = self.plain(last + "markov_head.embed.weight"), self.plain(last + "markov_head.head.weight")
        confidence = self.plain(last + "confidence_head.proj.weight")[0]
        out_ids, out_confidence = [], []
        for p in positions:
            anchor = anchors[p]
            at = np.arange(p + 1, p + 1 + n)
            block = [int(anchor)] + [c.dspark_noise_token_id] * (n - 1)
            X = table[block][:, None, :].repeat(1, c.hc_mult, 1)
            pre = torch.zeros(n, c.hc_mult, dtype=torch.float64)
            pre[:, 0] = 1
            for i, ring in enumerate(rings):
                prefix = f"mtp.{i}."

                def attention(x, prefix=prefix, ring=ring):
                    _, q = self.queries(x, at, prefix + "attn.", rope)
                    keys = torch.cat([ring[max(p + 1 - c.sliding_window, 0):p + 1],
                                      self.window_keys(x, at, prefix + "attn.", rope)])
                    o = self.attend(q, keys, torch.ones(n, len(keys), dtype=torch.bool),
                                    self.plain(prefix + "attn.attn_sink"))
                    return self.output(o, at, prefix + "attn.", rope)

                X, pre = self.half_layers(X, pre, prefix, attention, c.dspark_num_experts_per_tok)
            x = self.collapse(X, pre)
            base = self.norm(x, last + "norm") @ head.T
            before, row, sure = int(anchor), [], []
            for i in range(n):
                e = m_embed[before]
                sure.append(float(confidence @ torch.cat([x[i], e])))
                before = int(torch.argmax(base[i] + m_head @ e))
                row.append(before)
            out_ids.append(row)
            out_confidence.append(sure)
        return np.array(out_ids), np.array(out_confidence)
