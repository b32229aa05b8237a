"""Held-out accuracy, measured in the trainer's own forward pass.

    python evaluate.py TRAINING_DIR [--samples N] [--length T] [--exact-weights] [--sparse]
                       [--minutes M]

Fresh seeds; half of the sessions use words that are in no training list. A span counts when every
token of it, up to and with the end of the run, is the most likely one: the model in greedy decoding
would have said exactly this. Weights are those of the exported checkpoint, cached values are
rounded as the engine stores them.
"""
import argparse
import collections
import time

import torch

from export import rounded_weights
from sessions import Session
from train import FULL_TOOLS, Training

LONG_BACK = 1000


def spans(session):
    """(start, length, task) of the graded spans; the tasks are the lines of the table."""
    for at, n, tag, distance in session.probes:
        if tag.startswith("call"):
            yield at, n, "call"
        elif tag.startswith("miss"):
            yield at, n, "not there"
        elif tag.startswith("first"):
            yield at, n, "value just read"
        elif tag == "grep":
            yield at, n, "line just found"
        elif tag.startswith("follow"):
            yield at, n, "follow-up"
        elif tag.startswith("recall"):
            yield at, n, "recall, far" if distance >= LONG_BACK else "recall, near"
        else:
            yield at, n, tag


def chains(session):
    """Spans of list, read, answer as one: [(start, length), ...] of each chain."""
    p = session.probes
    for i in range(1, len(p) - 1):
        if p[i][2] == "call:listed":
            yield [(at, n) for at, n, *_ in p[i - 1 : i + 2]]


@torch.no_grad()
def grade(model, session, tally, sparse=False):
    ids = torch.tensor([session.ids])
    right = model.head(model(ids[:, :-1], sparse=sparse))[0].argmax(-1) == ids[0, 1:]
    exact = lambda at, n: bool(right[at - 1 : at + n - 1].all())
    for at, n, task in spans(session):
        tally[task].append(exact(at, n))
    for tag in ("first", "follow"):
        for at, n, t, _ in session.probes:
            if t.startswith(tag + ":"):
                tally["  " + t].append(exact(at, n))
    for chain in chains(session):
        tally["list, read, answer"].append(all(exact(at, n) for at, n in chain))


def session(training, seed, held_out, length, full_tools):
    s = Session(training.tokenizer, f"evaluation/{seed}", held_out)
    return s.run(length, None, (3, 30), (1, 5), 0.3, FULL_TOOLS if full_tools else None)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folder")
    p.add_argument("--samples", type=int, default=500, help="of each main task, both halves together")
    p.add_argument("--length", type=int, default=1500)
    p.add_argument("--exact-weights", action="store_true")
    p.add_argument("--sparse", action="store_true", help="rows selected by the indexer")
    p.add_argument("--short-tools", action="store_true", help="the stand-in of the training")
    p.add_argument("--minutes", type=float, default=1e9)
    a = p.parse_args()
    torch.set_num_threads(1)
    t = Training(a.folder)
    t.model.eval()
    tallies = {False: collections.defaultdict(list), True: collections.defaultdict(list)}
    main_tasks = ("call", "value just read", "list, read, answer", "not there", "follow-up")
    end, seed = time.monotonic() + 60 * a.minutes, 0
    with rounded_weights(t.model, not a.exact_weights):
        while time.monotonic() < end and any(
                len(tallies[h][k]) < a.samples // 2 for h in tallies for k in main_tasks):
            held_out = bool(seed % 2)
            grade(t.model, session(t, seed, held_out, a.length, not a.short_tools), tallies[held_out], a.sparse)
            seed += 1
    print(f"step {t.step}, {t.tokens} tokens trained; {seed} sessions of {a.length} tokens or more")
    print(f"{'task':24} {'words of training':>18} {'unseen words':>18} {'all':>18}")
    show = lambda x: f"{sum(x)}/{len(x)} {sum(x) / max(1, len(x)):.3f}"
    for task in sorted({*tallies[False], *tallies[True]}, key=lambda k: (k.startswith(" "), k)):
        old, new = tallies[False][task], tallies[True][task]
        print(f"{task:24} {show(old):>18} {show(new):>18} {show(old + new):>18}")


if __name__ == "__main__":
    main()
