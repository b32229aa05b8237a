"""The reference model against golden case a_tiny, which other hands made: logits, selections,
Engram rows and drafts in mode math, logits in fp32kvq.

    python check_golden.py
"""
import json
import os
import sys

import numpy as np

import formats
from model import Model

CASE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "a_tiny")


def rows_of(mask, width):
    """A mask as ascending row numbers, -1 behind them."""
    out = np.full((len(mask), width), -1)
    for i, m in enumerate(mask.numpy()):
        r = np.flatnonzero(m)
        out[i, :len(r)] = r
    return out


def ascending(rows):
    """Row numbers of which some are -1, in the same form."""
    last = np.iinfo(rows.dtype).max
    out = np.sort(np.where(rows < 0, last, rows), 1)
    return np.where(out == last, -1, out)


def main():
    with open(os.path.join(CASE, "inputs.json"), encoding="utf-8") as f:
        ids = json.load(f)["token_ids"]
    failed = 0

    def claim(what, ok, figure=""):
        nonlocal failed
        failed += not ok
        print(f"{'ok' if ok else 'FAILED'}: {what} {figure}")

    n_prefill = 45
    for precision, bound in (("math", 1e-4), ("fp32kvq", 1e-3)):
        g = formats.Folder.__new__(formats.Folder)
        g.where = {}
        g.add(os.path.join(CASE, f"expected_{precision}.safetensors"))
        n = n_prefill + len(g.raw("decode_logits"))
        m = Model(os.path.join(CASE, "model"), precision)
        _, logits = m.logits(ids[:n])
        logits = logits.numpy()
        want = np.concatenate([g.plain("prefill_logits"), g.plain("decode_logits")])
        worst = np.abs(logits - want).max()
        claim(f"{precision}, {n} positions: logits", worst <= bound, f"within {worst:.2g} of {bound:g}")
        if precision != "math":
            continue
        for layer in (2, 4, 6):
            decode = g.raw(f"decode.L{layer}.topk_rows")
            same = rows_of(m.seen[f"L{layer}.chosen"][n_prefill:], decode.shape[1]) == ascending(decode)
            claim(f"layer {layer}: selections of {len(decode)} steps", bool(same.all()))
        rows = np.stack([m.seen[f"L{i}.engram_rows"] for i in (1, 3)], 1)
        want_rows = g.raw("engram_rows")
        claim(f"Engram rows of {len(want_rows)} positions", bool((rows[:len(want_rows)] == want_rows).all()))
        spec = g.raw("spec_ids")
        anchors = np.concatenate([np.zeros(n_prefill, np.int64), spec[:, 0]])
        drafts, confidence = m.drafts(ids[:n], anchors, range(n_prefill, n))
        claim(f"{drafts.size} draft ids", bool((drafts == spec[:, 1:]).all()))
        worst = np.abs(confidence - g.plain("spec_conf")).max()
        claim("confidence", worst <= 1e-4, f"within {worst:.2g}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
