"""The trainer's forward pass against the engine's, on the exported checkpoint.

    python compare_engine.py TRAINING_DIR CHECKPOINT AGENTD [TOKENS]

Mode math; exits 1 when a logit differs by more than 1e-3.
"""
import os
import subprocess
import sys
import tempfile

import numpy
import torch

from export import rounded_weights
from sessions import Session
from train import FULL_TOOLS, Training


def engine_logits(agentd, checkpoint, ids, width):
    with tempfile.TemporaryDirectory() as folder:
        ids_path, out = os.path.join(folder, "ids"), os.path.join(folder, "logits")
        with open(ids_path, "w", encoding="utf-8") as f:
            f.write("".join(f"{i}\n" for i in ids))
        subprocess.run([agentd, "score", "--model", checkpoint, "--ids", ids_path, "--prefill",
                        str(len(ids)), "--mode", "full", "--precision", "math", "--output", out], check=True)
        return numpy.fromfile(out, dtype="<f4").reshape(-1, width)


@torch.no_grad()
def main(folder, checkpoint, agentd, tokens="2000"):
    t, n = Training(folder), int(tokens)
    t.model.set_fake_quant(False)
    ids = Session(t.tokenizer, "compare").run(n, tools=FULL_TOOLS).ids[:n]
    with rounded_weights(t.model):
        ours = t.model.head(t.model(torch.tensor([ids])))[0].numpy()
    theirs = engine_logits(agentd, checkpoint, ids, ours.shape[1])
    worst = abs(ours - theirs).max()
    same = (ours.argmax(1) == theirs.argmax(1)).mean()
    print(f"{n} positions: largest difference of a logit {worst:.2g} (their spread is {ours.std():.2g}), "
          f"same best token at {same:.4f}")
    return 0 if worst <= 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
