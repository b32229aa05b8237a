"""The architecture in PyTorch, dense: every row is attended to unless a selection is asked for.

Module names are those of the checkpoint, except that the shared expert and the routed ones are
one matrix each way (ffn.w1, w3, w2; the shared expert first): at this size computing all of them
is cheaper than choosing. All but the attention itself works on the N = B*T tokens of a batch in
one row, so that what torch.compile makes of it does not depend on how N is divided. Shapes: B
sequences, T tokens each, C streams, D channels.
"""
import json
import math
from types import SimpleNamespace

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F

import quantize
from attention import attend

EPS = 1e-20


def compile_layers(model):
    """Fuses what lies between the attentions: three times as fast, after minutes of compiling."""
    for layer in model.layers:
        layer.before = torch.compile(layer.before, dynamic=False)
        layer.after = torch.compile(layer.after, dynamic=False)
    for e in model.engram.values():
        e.forward = torch.compile(e.forward, dynamic=False)


def load_config(path):
    """config.json as attributes: the fields of text_config and those of the top level."""
    with open(path, encoding="utf-8") as f:
        top = json.load(f)
    c = SimpleNamespace(**top["text_config"], **{k: top[k] for k in top if k.endswith("_id")})
    assert c.rope_scaling["factor"] == 1, "the trainer has no YaRN ramp"
    return c


# ---- small parts ---------------------------------------------------------------------------


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * self.weight


def linear(n_in, n_out, gain=1.0):
    layer = nn.Linear(n_in, n_out, bias=False)
    nn.init.normal_(layer.weight, std=gain / math.sqrt(n_in))
    return layer


_tables = {}


def rope_table(n, dim, base):
    """cos and sin [>= n, dim/2]."""
    key = (dim, base)
    if key not in _tables or _tables[key][0].shape[0] < n:
        theta = base ** (-torch.arange(0, dim, 2).float() / dim)
        angle = torch.arange(max(n, 2048)).float()[:, None] * theta
        _tables[key] = (angle.cos(), angle.sin())
    return _tables[key]


def rotate(x, cos, sin):
    """Rotates the last 2*cos.shape[-1] channels, in interleaved pairs."""
    dim = 2 * cos.shape[-1]
    plain, pairs = x[..., :-dim], x[..., -dim:].unflatten(-1, (dim // 2, 2))
    a, b = pairs[..., 0], pairs[..., 1]
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return torch.cat((plain, turned), -1)


def collapse(streams, pre):
    return (pre[..., None] * streams).sum(-2)


class HyperConnection(nn.Module):
    """Coefficients by which a half layer reads from and writes to the streams."""

    def __init__(self, c, start_stream):
        super().__init__()
        n = c.hc_mult
        self.n, self.iters, self.eps = n, c.hc_sinkhorn_iters, c.hc_eps
        self.fn = nn.Parameter(torch.randn((2 + n) * n, n * c.hidden_size) * 0.02)
        self.scale = nn.Parameter(torch.full((3,), 0.1))
        base = torch.zeros((2 + n) * n)
        base[:n] = -1.5
        base[start_stream % n] = 1.5
        base[2 * n :] = (torch.eye(n) * 4 - 2).flatten()
        self.base = nn.Parameter(base)

    def forward(self, streams):
        n, eps = self.n, self.eps
        v = streams.flatten(-2)
        m = F.linear(v, self.fn) * torch.rsqrt(v.square().mean(-1, keepdim=True) + EPS)
        pre = torch.sigmoid(m[..., :n] * self.scale[0] + self.base[:n]) + eps
        post = 2 * torch.sigmoid(m[..., n : 2 * n] * self.scale[1] + self.base[n : 2 * n])
        z = (m[..., 2 * n :] * self.scale[2] + self.base[2 * n :]).unflatten(-1, (n, n))
        z = z.softmax(-1) + eps
        z = z / (z.sum(-2, keepdim=True) + eps)
        for _ in range(self.iters - 1):
            z = z / (z.sum(-1, keepdim=True) + eps)
            z = z / (z.sum(-2, keepdim=True) + eps)
        return pre, post, z


def mix_in(y, streams, post, comb):
    out = post[..., None] * y[..., None, :]
    for j in range(streams.shape[-2]):
        out = out + comb[..., j, :, None] * streams[..., j, None, :]
    return out


class MoE(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n, self.k, self.inter = c.n_routed_experts, c.num_experts_per_tok, c.moe_intermediate_size
        self.limit, self.route_scale = c.swiglu_limit, c.routed_scaling_factor
        self.gate = linear(c.hidden_size, self.n)
        self.register_buffer("bias", torch.zeros(self.n))
        wide = (self.n + 1) * self.inter
        self.w1, self.w3 = linear(c.hidden_size, wide), linear(c.hidden_size, wide)
        self.w2 = linear(wide, c.hidden_size, 0.5)

    def forward(self, x):
        """The output, and each expert's share of the tokens."""
        score = torch.sqrt(F.softplus(self.gate(x)))
        best = (score.detach() + self.bias).topk(self.k, -1).indices
        chosen = torch.zeros_like(score).scatter(-1, best, 1.0)
        w = score * chosen
        w = w / (w.sum(-1, keepdim=True) + EPS) * self.route_scale
        w = torch.cat((torch.ones_like(w[..., :1]), w), -1)
        a = F.silu(self.w1(x).clamp_max(self.limit)) * self.w3(x).clamp(-self.limit, self.limit)
        a = (a.unflatten(-1, (self.n + 1, self.inter)) * w[..., None]).flatten(-2)
        return self.w2(a), chosen.detach().mean(0)


# ---- Engram --------------------------------------------------------------------------------


def consecutive_primes(above, n):
    """The n primes from `above` on."""
    found, p = [], above
    while len(found) < n:
        if p > 1 and all(p % d for d in range(2, math.isqrt(p) + 1)):
            found.append(p)
        p += 1
    return found


def engram_primes(c):
    """Per Engram layer: the table sizes, order-major."""
    per_layer = (c.engram_max_ngram_size - 1) * c.engram_n_heads
    p = consecutive_primes(c.engram_vocab_size, per_layer * len(c.engram_layer_ids))
    return [p[i : i + per_layer] for i in range(0, len(p), per_layer)]


class Engram(nn.Module):
    """Look-ups by hashes of the last n-grams of token ids."""

    def __init__(self, c, layer):
        super().__init__()
        k = c.engram_layer_ids.index(layer)
        self.heads, self.ngram, self.dim, self.n = (
            c.engram_n_heads, c.engram_max_ngram_size, c.hidden_size, c.hc_mult)
        self.primes = engram_primes(c)[k]
        bound = (2**63 - 1) // c.engram_compressed_vocab_size // 2
        draws = numpy.random.default_rng(10007 * layer).integers(0, bound, self.ngram)
        self.multipliers = [int(x) * 2 + 1 for x in draws]
        self.embed = nn.Embedding(sum(self.primes), c.engram_head_dim)
        nn.init.normal_(self.embed.weight, std=0.5)
        width = len(self.primes) * c.engram_head_dim
        self.wkv = linear(width, (self.n + 1) * self.dim, 0.5)
        self.q_weight = nn.Parameter(torch.ones(self.n, self.dim))
        self.k_weight = nn.Parameter(torch.ones(self.n, self.dim))

    def rows(self, ids, pad):
        """ids: compressed, [B, T] -> table rows [B, T, tables]."""
        T, out, offset = ids.shape[1], [], 0
        hashed = ids * self.multipliers[0]
        for s in range(1, self.ngram):
            hashed = hashed ^ (F.pad(ids, (s, 0), value=pad)[:, :T] * self.multipliers[s])
            for prime in self.primes[(s - 1) * self.heads : s * self.heads]:
                out.append(hashed % prime + offset)
                offset += prime
        return torch.stack(out, -1)

    def forward(self, streams, rows):
        kv = self.wkv(self.embed(rows).flatten(-2))
        keys = kv[..., : self.n * self.dim].unflatten(-1, (self.n, self.dim))
        value = kv[..., self.n * self.dim :]
        dot = (streams * (self.q_weight * self.k_weight) * keys).sum(-1)
        dot = dot * torch.rsqrt(streams.square().mean(-1) + EPS)
        dot = dot * torch.rsqrt(keys.square().mean(-1) + EPS) / math.sqrt(self.dim)
        root = torch.sqrt(dot.abs().clamp_min(1e-6))
        gate = torch.sigmoid(torch.where(dot < 0, -root, root))
        return streams + gate[..., None] * value[..., None, :]


# ---- layers --------------------------------------------------------------------------------


class Compressor(nn.Module):
    def __init__(self, c, ratio):
        super().__init__()
        self.ratio = ratio
        self.wkv, self.norm = linear(c.hidden_size, c.head_dim), Norm(c.head_dim)
        if ratio > 1:
            self.wgate = linear(c.hidden_size, c.head_dim, 0.5)

    def forward(self, x):
        u = self.wkv(x)
        if self.ratio > 1:
            n = x.shape[0] // self.ratio * self.ratio
            weights = self.wgate(x)[:n].unflatten(0, (-1, self.ratio)).softmax(1)
            u = (weights * u[:n].unflatten(0, (-1, self.ratio))).sum(1)
        return self.norm(u)


class Indexer(nn.Module):
    def __init__(self, c, is_source):
        super().__init__()
        self.heads, self.dim = c.index_n_heads, c.index_head_dim
        self.wq_b = linear(c.q_lora_rank, self.heads * self.dim)
        self.weights_proj = linear(c.hidden_size, self.heads)
        if is_source:
            self.wk, self.k_norm = linear(c.head_dim, self.dim), Norm(self.dim)

    def scores(self, x, qr, keys, cos, sin, fake_quant):
        """[B, T, rows] of the keys [B, rows, d]; x and qr are detached: only the indexer learns."""
        q = rotate(self.wq_b(qr).unflatten(-1, (self.heads, self.dim)), cos[:, None], sin[:, None])
        if fake_quant:
            q = quantize.straight_through(q, quantize.index_kv(q))
        w = self.weights_proj(x) * (self.dim * self.heads) ** -0.5
        B = keys.shape[0]
        dots = torch.einsum("bthd,bnd->bthn", q.unflatten(0, (B, -1)), keys).relu()
        return torch.einsum("bthn,bth->btn", dots, w.unflatten(0, (B, -1)))


class Attention(nn.Module):
    def __init__(self, c, layer):
        super().__init__()
        self.ratio, self.window = c.compress_ratios[layer], c.sliding_window
        self.heads, self.dim, self.rope_dim = c.num_attention_heads, c.head_dim, c.qk_rope_head_dim
        self.groups = c.o_groups
        self.theta = float(c.compress_rope_theta if self.ratio else c.rope_theta)
        self.fake_quant = True
        self.wq_a, self.q_norm = linear(c.hidden_size, c.q_lora_rank), Norm(c.q_lora_rank)
        self.wq_b = linear(c.q_lora_rank, self.heads * self.dim)
        self.wkv, self.kv_norm = linear(c.hidden_size, self.dim), Norm(self.dim)
        self.attn_sink = nn.Parameter(torch.zeros(self.heads))
        per_group = self.heads * self.dim // self.groups
        self.wo_a = nn.Parameter(
            torch.randn(self.groups, c.o_lora_rank, per_group) / math.sqrt(per_group))
        self.wo_b = linear(self.groups * c.o_lora_rank, c.hidden_size, 0.5)
        is_source = layer in c.kv_source_layer_ids
        if is_source:
            self.compressor = Compressor(c, self.ratio)
        if layer in c.index_source_layer_ids:
            self.indexer = Indexer(c, is_source)

    def _rounded(self, x, how):
        return quantize.straight_through(x, how(x)) if self.fake_quant else x

    def queries(self, x, cos, sin):
        """(normalised low-rank query, queries [N,H,d], window keys [N,d])."""
        qr = self.q_norm(self.wq_a(x))
        q = rotate(self.wq_b(qr).unflatten(-1, (self.heads, self.dim)), cos[:, None], sin[:, None])
        k = self._rounded(rotate(self.kv_norm(self.wkv(x)), cos, sin), quantize.window_kv)
        return qr, q, k

    def rows(self, x, cos, sin):
        """The rows of a source layer and the latents its index keys are made of."""
        latent = self.compressor(x)
        n = latent.shape[0] * self.ratio
        row = rotate(latent, cos[: n : self.ratio], sin[: n : self.ratio])
        return self._rounded(row, quantize.row_kv), latent

    def index_keys(self, latent, cos, sin):
        n = latent.shape[0] * self.ratio
        k = self.indexer.k_norm(self.indexer.wk(latent.detach()))
        k = rotate(k, cos[: n : self.ratio], sin[: n : self.ratio])
        return self._rounded(k, quantize.index_kv)

    def output(self, o, cos, sin):
        o = rotate(o, cos[:, None], -sin[:, None]).reshape(o.shape[0], self.groups, -1)
        return self.wo_b(torch.einsum("tgi,goi->tgo", o, self.wo_a).flatten(-2))


class Layer(nn.Module):
    def __init__(self, c, layer):
        super().__init__()
        self.attn, self.ffn = Attention(c, layer), MoE(c)
        self.attn_norm, self.ffn_norm = Norm(c.hidden_size), Norm(c.hidden_size)
        self.hc_attn, self.hc_ffn = HyperConnection(c, 2 * layer + 1), HyperConnection(c, 2 * layer + 2)

    def before(self, streams, pre, cos, sin):
        coefficients = self.hc_attn(streams)
        x = self.attn_norm(collapse(streams, pre))
        qr, q, k = self.attn.queries(x, cos, sin)
        row = latent = None
        if hasattr(self.attn, "compressor"):
            row, latent = self.attn.rows(x, cos, sin)
        return coefficients, x, qr, q, k, row, latent

    def after(self, streams, o, coefficients, cos, sin):
        a_pre, a_post, a_comb = coefficients
        streams = mix_in(self.attn.output(o, cos, sin), streams, a_post, a_comb)
        f_pre, f_post, f_comb = self.hc_ffn(streams)
        y, load = self.ffn(self.ffn_norm(collapse(streams, a_pre)))
        return mix_in(y, streams, f_post, f_comb), f_pre, load


class Model(nn.Module):
    def __init__(self, c, token_map):
        """token_map: for each token id the compressed id that Engram hashes."""
        super().__init__()
        self.c = c
        self.embed = nn.Embedding(c.vocab_size, c.hidden_size)
        nn.init.normal_(self.embed.weight)
        self.head, self.norm = linear(c.hidden_size, c.vocab_size, 0.5), Norm(c.hidden_size)
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c.num_hidden_layers))
        self.engram = nn.ModuleDict({str(i): Engram(c, i) for i in c.engram_layer_ids})
        self.register_buffer("token_map", torch.as_tensor(token_map, dtype=torch.long), False)
        self.loads = None

    def set_fake_quant(self, on):
        for layer in self.layers:
            layer.attn.fake_quant = on

    def balance(self, step=1e-3):
        """Moves the router's bias towards equal load (after a training step)."""
        for layer, load in zip(self.layers, self.loads):
            layer.ffn.bias += step * torch.sign(load.mean() - load)

    def forward(self, ids, sparse=False, record=None, positions=None):
        """ids [B,T] -> normed hidden [B,T,D]. sparse: select rows as the engine does.

        positions [B,T]: for the rotation only, default 0..T-1.
        record: a dict that gets, per index source, its scores [B,T,N] and the attention mass of
        the rows summed over the layers that share its selection.
        """
        c, (B, T) = self.c, ids.shape
        assert B == 1 or T % 2 == 0, "sequences of a batch need an even length"
        compressed = self.token_map[ids]
        pad = int(self.token_map[c.engram_pad_token_id])
        streams = self.embed(ids.flatten())[:, None].expand(-1, c.hc_mult, -1)
        at = (torch.arange(T).expand(B, T) if positions is None else positions).flatten()
        pre = torch.zeros(B * T, c.hc_mult)
        pre[:, 0] = 1.0
        row = keys = selected = mass = candidates = None
        self.loads = []
        for i, layer in enumerate(self.layers):
            attn, ratio = layer.attn, layer.attn.ratio
            if str(i) in self.engram:
                e = self.engram[str(i)]
                streams = e(streams, e.rows(compressed, pad).flatten(0, 1))
            cos, sin = (t[at] for t in rope_table(int(at.max()) + 1, c.qk_rope_head_dim, attn.theta))
            coefficients, x, qr, q, k, own, latent = layer.before(streams, pre, cos, sin)
            row = own.unflatten(0, (B, -1)) if own is not None else row
            if hasattr(attn, "indexer") and (sparse or record is not None):
                if latent is not None:
                    keys = attn.index_keys(latent, cos, sin).unflatten(0, (B, -1))
                scores = attn.indexer.scores(
                    x.detach(), qr.detach(), keys, cos, sin, attn.fake_quant)
                visible = _visible(T, keys.shape[1], ratio)
                scores = scores.masked_fill(~visible, -math.inf)
                if record is not None:
                    mass = torch.zeros_like(scores)
                    record[i] = (scores, mass)
                if sparse:
                    selected, candidates = self._select(i, scores.detach(), visible, candidates)
            o = attend(q.unflatten(0, (B, T)), k.unflatten(0, (B, T)), row if ratio else None,
                       attn.attn_sink, ratio, c.sliding_window, selected if ratio else None,
                       mass if ratio else None)
            streams, pre, load = layer.after(streams, o.flatten(0, 1), coefficients, cos, sin)
            self.loads.append(load)
        return self.norm(collapse(streams, pre)).unflatten(0, (B, T))

    def _select(self, layer, scores, visible, candidates):
        c = self.c
        if layer == c.candidate_source_layer_id:
            size, N = c.candidate_block_size, scores.shape[-1]
            n_blocks = -(-N // size)
            best = F.pad(scores, (0, n_blocks * size - N), value=-math.inf)
            best = best.unflatten(-1, (n_blocks, size)).amax(-1)
            newest = ((visible.sum(-1) - 1) // size).clamp_min(0)[None, :, None]
            best.scatter_(-1, newest.expand(best.shape[0], -1, 1), math.inf)
            kept = best.topk(min(c.candidate_topk_blocks, n_blocks), -1).indices
            blocks = torch.zeros_like(best, dtype=torch.bool).scatter_(-1, kept, True)
            candidates = blocks.repeat_interleave(size, -1)[..., :N]
        elif candidates is not None and layer > c.candidate_source_layer_id:
            scores = scores.masked_fill(~candidates, -math.inf)
        top = scores.topk(min(c.index_topk, scores.shape[-1]), -1).indices
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, top, True) & visible, candidates


def _visible(T, N, ratio):
    return (torch.arange(N)[None] + 1) * ratio <= torch.arange(T)[:, None] + 1
