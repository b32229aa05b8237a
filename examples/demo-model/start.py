"""The constructed start: circuits that copy what followed an earlier occurrence, written into
the weights before training. From a random start nothing learned to copy within the budget; from
this one copying begins within minutes (README).

Channel 0 of the embedding is a constant; heads find distances by the rope phases of it. The last
RESERVED residual channels start empty. Layer 0 writes three codes into them: of the token one
back, of the token two back, and a blurred one of the tokens around six back, which tells apart
places where the last two tokens are the same (" = ", ":x:"). The decoder's rows carry these codes
next to a code of their own token, and head 0 of every decoder layer asks for rows whose
predecessors look like the query and its predecessors.
"""
import math

import torch

RESERVED = 40
# Heads of layers 0 and 1: (tokens back, rope pairs, gain), and the width of the code of layer 0.
LOOKS = ((1, (0, 1, 2), 10.0), (2, (0, 1, 2), 10.0), (6, (1, 2), 2.4))
CODES = (16, 8, 16)
CODE_GAINS = (1.0, 1.0, 2.5)
FROZEN_FIRST = ("embed.", ".wq_a.", ".wq_b.", ".wkv.", ".q_norm.", ".kv_norm.", "compressor.norm",
                ".attn_norm.", "layers.0.attn.wo_", "layers.0.hc_")


def is_frozen_first(name):
    """Parameters that wait until the rest has learned to use the circuits."""
    return not name.startswith("engram") and any(
        name.startswith(k) if k == "embed." else k in name for k in FROZEN_FIRST)


@torch.no_grad()
def _look_back(model):
    """Heads of layers 0 and 1 attend so many tokens back."""
    c = model.c
    plain = c.head_dim - c.qk_rope_head_dim
    model.embed.weight[:, 0] = 4.0
    for layer in model.layers[:2]:
        a = layer.attn
        k = a.wkv.weight
        k[plain:] = 0
        for pair in range(3):
            k[plain + 2 * pair, 0] = 0.8
        a.wq_a.weight[0] = 0
        a.wq_a.weight[0, 0] = 1.0
        for head, (back, pairs, gain) in enumerate(LOOKS):
            q = a.wq_b.weight[head * c.head_dim : (head + 1) * c.head_dim]
            q[:plain] *= 0.1
            q[plain:] = 0
            for pair in pairs:
                angle = back * c.rope_theta ** (-2 * pair / c.qk_rope_head_dim)
                q[plain + 2 * pair, 0] = gain * math.cos(angle)
                q[plain + 2 * pair + 1, 0] = -gain * math.sin(angle)


@torch.no_grad()
def _induction(model, gain=6.0):
    c = model.c
    free = c.hidden_size - RESERVED
    plain, per_group = c.head_dim - c.qk_rope_head_dim, c.num_attention_heads // c.o_groups
    model.embed.weight[:, free:] = 0
    for layer in model.layers:
        layer.attn.wo_b.weight[free:] = 0
        layer.ffn.w2.weight[free:] = 0
    for e in model.engram.values():
        e.wkv.weight[c.hc_mult * c.hidden_size + free :] = 0

    a = model.layers[0].attn
    value = a.wkv.weight
    value[:plain, 0] = 0
    value[:plain, free:] = 0
    value[:plain] *= 1.15
    at, n_out = free, [0] * c.o_groups
    for head, width in enumerate(CODES):
        group, column = divmod(head, per_group)
        for i in range(width):
            o = n_out[group]
            n_out[group] += 1
            a.wo_a[group, o] = 0
            a.wo_a[group, o, column * c.head_dim + i] = 1.0
            a.wo_b.weight[:, group * c.o_lora_rank + o] = 0
            a.wo_b.weight[at + i, group * c.o_lora_rank + o] = CODE_GAINS[head]
        at += width

    n = sum(CODES)
    decoder = c.kv_source_layer_ids[-1]
    row = model.layers[decoder].attn.compressor.wkv.weight
    row[:n] = 0
    row[plain:] = 0
    row[n:plain, free:] = 0
    row[n:plain, 0] = 0
    for i in range(n):
        row[i, free + i] = 1.2
    for pair in (3, 4, 5):  # a constant on slow rope pairs: lets heads prefer recent rows
        row[plain + 2 * pair, 0] = 0.3

    for layer in model.layers[decoder:]:
        low = layer.attn.wq_a.weight
        low[:n] = 0
        low[: CODES[0]] = value[: CODES[0]]  # the own code meets the row's code one back,
        for i in range(CODES[1]):  # the code one back the row's code two back,
            low[CODES[0] + i, free + i] = 1.0
        for i in range(CODES[2]):  # and the blurred codes each other
            low[CODES[0] + CODES[1] + i, free + CODES[0] + CODES[1] + i] = 1.0
        q = layer.attn.wq_b.weight[: c.head_dim]
        q *= 0.1
        q[:n] = 0
        for i in range(n):
            q[i, i] = gain


def construct(model):
    _look_back(model)
    _induction(model)
