"""The checkpoint in the official layout: names, number formats, config and tokenizer.

    python export.py TRAINING_DIR OUT_DIR [MASTER]

MASTER, if given, becomes a file with the unrounded weights, from which train.py --from goes on.
"""
import contextlib
import hashlib
import json
import os
import shutil
import sys

import numpy
import torch

import quantize

FP8 = ("wq_a.weight", "wq_b.weight", "attn.wkv.weight", "wo_a", "wo_b.weight", "engram.wkv.weight")
BF16 = ("embed.weight", "head.weight", "compressor.wkv.weight", "wgate.weight", "indexer.wk.weight",
        "weights_proj.weight", "gate.weight", "norm.weight", "q_weight", "k_weight")


def checkpoint_tensors(model):
    """(name, format, view of the parameter) of every tensor of the checkpoint.

    The views share the parameter's memory, so that rounding them in place rounds the model.
    """
    c = model.c
    inter = c.moe_intermediate_size
    for name, p in [*model.named_parameters(), *model.named_buffers()]:
        p = p.data
        if name == "token_map":
            continue
        if name.startswith("engram."):
            _, layer, rest = name.split(".", 2)
            name = f"layers.{layer}.engram.{rest}"
        name = name.replace(".hc_attn.", ".hc_attn_").replace(".hc_ffn.", ".hc_ffn_")
        if name.endswith("ffn.bias"):
            base = name[: -len("bias")]
            yield base + "gate.bias", "F32", p
            yield base + "gate.bias_vl", "F32", p
        elif ".ffn.w" in name:
            base, which = name.split(".ffn.")
            across = which.startswith("w2")
            for e in range(c.n_routed_experts + 1):
                part = p[:, e * inter : (e + 1) * inter] if across else p[e * inter : (e + 1) * inter]
                if e == 0:
                    yield f"{base}.ffn.shared_experts.{which}", "FP8", part
                else:
                    yield f"{base}.ffn.experts.{e - 1}.{which}", "FP4", part
        elif name.endswith("wo_a"):
            yield name + ".weight", "FP8", p.flatten(0, 1)
        elif name.endswith("engram.embed.weight"):
            yield name, "TABLE", p
        elif name.endswith(FP8) or name.endswith("indexer.wq_b.weight"):
            yield name, "FP8", p
        elif name.endswith(BF16):
            yield name, "BF16", p
        else:
            yield name, "F32", p


ROUND = {"FP8": lambda w: quantize.fp8_tiles(w)[0], "FP4": lambda w: quantize.fp4_rows(w)[0],
         "TABLE": lambda w: quantize.fp8_rows(w)[0], "BF16": quantize.bf16, "F32": lambda w: w}


@contextlib.contextmanager
def rounded_weights(model, on=True):
    """Inside, the weights are those that the checkpoint would hold; afterwards the exact ones.
    A backward pass inside is the straight-through estimate."""
    if not on:
        yield
        return
    with torch.no_grad():
        exact = [(p, p.detach().clone()) for p in model.parameters()]
        for _, kind, view in checkpoint_tensors(model):
            view.copy_(ROUND[kind](view))
    try:
        yield
    finally:
        with torch.no_grad():
            for p, old in exact:
                p.copy_(old)


# ---- codes -----------------------------------------------------------------------------------


def _e4m3_codes(x):
    return x.to(torch.float8_e4m3fn).view(torch.uint8).numpy()


def _e8m0_codes(s):
    return (torch.log2(s).round().to(torch.int32) + 127).to(torch.uint8).numpy()


def _e2m1_codes(x):
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    index = (x.abs()[..., None] == levels).int().argmax(-1).to(torch.uint8)
    return index | ((x < 0).to(torch.uint8) << 3)


def _encode(kind, w):
    """[(suffix, dtype, shape, bytes)] of one tensor."""
    if kind == "F32":
        return [("", "F32", w.shape, w.contiguous().numpy().tobytes())]
    if kind == "BF16":
        return [("", "BF16", w.shape, w.to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes())]
    if kind == "FP4":
        rounded, s = quantize.fp4_rows(w)
        codes = _e2m1_codes(rounded / s.repeat_interleave(32, 1))
        packed = (codes[:, 0::2] | codes[:, 1::2] << 4).numpy()
        first = ("", "I8", packed.shape, packed.tobytes())
    else:
        rounded, s = (quantize.fp8_rows if kind == "TABLE" else quantize.fp8_tiles)(w)
        full = s.repeat_interleave(32, 1)
        full = full if kind == "TABLE" else full.repeat_interleave(32, 0)
        codes = _e4m3_codes(rounded / full[: w.shape[0], : w.shape[1]])
        first = ("", "F8_E4M3", codes.shape, codes.tobytes())
    scales = _e8m0_codes(s)
    return [first, (".scale", "F8_E8M0", scales.shape, scales.tobytes())]


def write_safetensors(path, tensors):
    """tensors: [(name, dtype, shape, bytes)]."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for *_, data in tensors:
            f.write(data)
    return at


@torch.no_grad()
def export(model, source, out):
    os.makedirs(out, exist_ok=True)
    tensors = []
    for name, kind, w in checkpoint_tensors(model):
        for suffix, dtype, shape, data in _encode(kind, w):
            base = name[: -len(".weight")] if suffix and name.endswith(".weight") else name
            tensors.append((base + suffix, dtype, shape, data))
    size = write_safetensors(os.path.join(out, "model.safetensors"), sorted(tensors))
    index = {"metadata": {"total_size": size}, "weight_map": {t[0]: "model.safetensors" for t in sorted(tensors)}}
    with open(os.path.join(out, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump(index, f, indent=0)
    for name in ("config.json", "tokenizer.json"):
        shutil.copyfile(os.path.join(source, name), os.path.join(out, name))
    digest = hashlib.sha256()
    for name in sorted(os.listdir(out)):
        if name.endswith((".json", ".safetensors")):
            with open(os.path.join(out, name), "rb") as f:
                digest.update(f.read())
    return digest.hexdigest()


def main(source, out, master=None):
    from train import Training

    training = Training(source)
    digest = export(training.model, source, out)
    if master:
        training.save_master(master)
    print(f"step {training.step}, {training.tokens} tokens, sha256 of the files in order of name: {digest}")


if __name__ == "__main__":
    main(*sys.argv[1:])
