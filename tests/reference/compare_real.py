"""agentd against the reference model on one checkpoint of real shape, mode math.

    python compare_real.py BUILD CHECKPOINT [--tokens N] [--prefill N]

The checkpoint is one of configs/real-1 and real-2 (or any folder):

    build/tests/make_checkpoint tests/configs/real-1.json FOLDER
"""
import argparse
import sys
import tempfile
import time

import numpy as np

import compare_shapes
from model import Model

BOUND = 2e-4


def main():
    a = argparse.ArgumentParser()
    a.add_argument("build")
    a.add_argument("checkpoint")
    a.add_argument("--tokens", type=int, default=1100)
    a.add_argument("--prefill", type=int, default=1080)
    o = a.parse_args()
    compare_shapes.N_IDS = o.tokens
    ids = compare_shapes.draw_ids(1)
    start = time.time()
    m = Model(o.checkpoint)
    _, want = m.logits(ids)
    want = want.numpy()
    print(f"reference: {len(ids)} positions in {time.time() - start:.0f} s", flush=True)
    start = time.time()
    with tempfile.TemporaryDirectory() as work:
        ours = compare_shapes.Agentd(o.build, None, work).score(
            o.checkpoint, ids, m.c.vocab_size, "--precision", "math", "--prefill", str(o.prefill), "--mode", "full")
    print(f"agentd: {time.time() - start:.0f} s")
    for name, x in m.seen.items():
        if name.endswith(".chosen"):
            n = x.sum(-1)
            print(f"{name}: {int(n.max())} rows of {x.shape[1]} at most")
    worst, same = compare_shapes.largest(ours, want), (ours.argmax(1) == want.argmax(1)).mean()
    print(f"{'ok' if worst <= BOUND else 'FAILED'}: largest difference of a logit {worst:.2g} (spread {want.std():.2g}), "
          f"median over positions {np.median(np.abs(ours - want).max(1)):.2g}, same best token at {same:.4f}")
    return not worst <= BOUND


if __name__ == "__main__":
    sys.exit(main())
