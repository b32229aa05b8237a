"""agentd against the reference model on checkpoints of many shapes.

    python compare_shapes.py BUILD [--drawn N] [--only NAME] [--isa NAME] [--keep FOLDER]

Each shape is scored as one prompt, as a prompt with decoding behind it, and with layers above the last
KV source on a prompt's tail (ced and ced-report), in mode math; then in fp32kvq. Draft layers: ids and
confidence after every position of the prompt's end.
"""
import argparse
import os
import random
import subprocess
import sys
import tempfile
import time

import numpy as np

import checkpoint
import shapes
from model import Model

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENIZER = os.path.join(HERE, "..", "golden", "a_tiny", "model", "tokenizer.json")
N_IDS, N_PREFILL, N_DRAFTED = 150, 110, 12
MATH_BOUND = 5e-5    # of a logit; their spread is 3
KVQ_TYPICAL = 2e-4   # median over positions: a code of a cached value may flip now and then


def draw_ids(seed):
    """Ids with repeats, so that n-grams meet again; the special ones (497..) are rare."""
    r, out = random.Random(seed), [0]
    while len(out) < N_IDS:
        if len(out) > 20 and r.random() < 0.1:
            at = r.randrange(len(out) - 8)
            out += out[at:at + 8]
        else:
            out.append(r.randrange(2, 512 if r.random() < 0.05 else 497))
    return out[:N_IDS]


class Agentd:
    def __init__(self, build, isa, folder):
        self.build, self.isa, self.folder = build, isa, folder

    def score(self, model, ids, vocab, *options):
        ids_path, out = os.path.join(self.folder, "ids"), os.path.join(self.folder, "logits")
        with open(ids_path, "w", encoding="utf-8") as f:
            f.write("".join(f"{i}\n" for i in ids))
        isa = ["--isa", self.isa] if self.isa else []
        subprocess.run([os.path.join(self.build, "agentd"), "score", "-m", model, "--ids", ids_path, "-o", out, *isa,
                        "--threads", "1", *options], check=True, timeout=1200)
        return np.fromfile(out, "<f4").reshape(-1, vocab)

    def drafts(self, model, ids, n_prompt, block):
        """Guesses behind the positions n_prompt - 1, ...: ids and confidence."""
        ids_path = os.path.join(self.folder, "ids")
        with open(ids_path, "w", encoding="utf-8") as f:
            f.write("".join(f"{i}\n" for i in ids))
        text = subprocess.run([os.path.join(self.build, "tests", "draft_ids"), model, ids_path, str(n_prompt)],
                              check=True, timeout=600, stdout=subprocess.PIPE).stdout.split()
        rows = np.array(text, np.float64).reshape(-1, 2 * block)
        return rows[:, :block].astype(int), rows[:, block:]


def largest(a, b):
    return float(np.abs(a - b).max()) if a.shape == b.shape else float("inf")


def compare_shape(agentd, folder, c, ids):
    """What was compared: name -> (figure, bound)."""
    vocab, out = c["vocab_size"], {}
    m = Model(folder)
    first, full = m.logits(ids)
    full = full.numpy()
    ours = agentd.score(folder, ids, vocab, "--precision", "math", "--prefill", str(N_IDS), "--mode", "full")
    out["prefill"] = largest(ours, full), MATH_BOUND
    ours = agentd.score(folder, ids, vocab, "--precision", "math", "--prefill", str(N_PREFILL), "--mode", "full",
                        "--chunk", "13")
    out["decode"] = largest(ours, full), MATH_BOUND
    if c["num_nextn_predict_layers"]:
        n = N_IDS - N_DRAFTED
        want_ids, want = m.drafts(ids, ids[1:] + [ids[0]], range(n - 1, N_IDS - 1))
        have_ids, have = agentd.drafts(folder, ids, n, c["dspark_block_size"])
        out["draft ids"] = float((want_ids != have_ids).sum() if want_ids.shape == have_ids.shape else np.inf), 0
        out["confidence"] = largest(have, want), MATH_BOUND
    for mode in ("ced", "ced-report"):
        first, want = m.logits(ids, N_PREFILL, mode)
        ours = agentd.score(folder, ids, vocab, "--precision", "math", "--prefill", str(N_PREFILL), "--mode", mode)
        out[mode] = largest(ours, want.numpy()), MATH_BOUND
    m = Model(folder, "fp32kvq")
    _, want = m.logits(ids)
    ours = agentd.score(folder, ids, vocab, "--precision", "fp32kvq", "--prefill", str(N_PREFILL), "--mode", "full")
    out["fp32kvq"] = float(np.median(np.abs(ours - want.numpy()).max(1))), KVQ_TYPICAL
    return out


def main():
    a = argparse.ArgumentParser()
    a.add_argument("build")
    a.add_argument("--drawn", type=int, default=20)
    a.add_argument("--only")
    a.add_argument("--isa")
    a.add_argument("--keep", help="folder for the checkpoints, which stay")
    o = a.parse_args()
    n = failed = 0
    worst, start = {}, time.time()
    with tempfile.TemporaryDirectory() as work:
        agentd = Agentd(o.build, o.isa, work)
        for k, (name, config) in enumerate(shapes.all_shapes(o.drawn)):
            if o.only and name != o.only:
                continue
            folder = os.path.join(o.keep or work, name)
            checkpoint.write(folder, config, TOKENIZER, k, 1 + k % 3)
            figures = compare_shape(agentd, folder, config["text_config"], draw_ids(k))
            bad = {what: f for what, (f, bound) in figures.items() if not f <= bound}
            n, failed = n + 1, failed + bool(bad)
            print(f"{'FAILED' if bad else 'ok'}: {name}: " + ", ".join(f"{w} {f:.2g}" for w, (f, _) in figures.items()),
                  flush=True)
            for what, (f, _) in figures.items():
                worst[what] = max(worst.get(what, 0), f)
            if not o.keep:
                for file in os.listdir(folder):
                    os.remove(os.path.join(folder, file))
    print("worst: " + ", ".join(f"{w} {f:.2g}" for w, f in worst.items()))
    print(f"{n} shapes, {failed} failed, {time.time() - start:.0f} s")
    return failed > 0 or n == 0


if __name__ == "__main__":
    sys.exit(main())
