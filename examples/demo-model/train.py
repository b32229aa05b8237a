"""Trains the demo model. Stop it at any moment; the same command continues.

    python train.py OUT_DIR [--phase NAME] [--from MASTER] [--minutes M] [--threads N] [--eager]

An empty or new OUT_DIR gets config.json and tokenizer.json first. state.pt there is the whole
state of the training: with the same recipe and seed the batches of a step are the same whether or
not the training was interrupted. --phase leaves the current phase of the recipe for another one.
--from begins with the weights of a master.pt (export.py) and fresh moments.
"""
import argparse
import collections
import json
import os
import random
import shutil
import signal
import time

import torch
import torch.nn.functional as F

import make_tokenizer
import prompts
import start
from export import rounded_weights
from model import Model, compile_layers, load_config
from optim import Optimizer
from sessions import Session
from tokenizer import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
FULL_TOOLS = ["grep", "list_dir", "read_file"]
OTHER_TOOLS = sorted(set(prompts.TOOLS) - set(FULL_TOOLS))
SAVE_SECONDS, LOG_STEPS = 120, 25


def full_tools(r):
    """The three tools that the model calls, now and then with one or two that it does not."""
    return FULL_TOOLS + (r.sample(OTHER_TOOLS, r.randint(1, 2)) if r.random() < 0.3 else [])


def batch(tokenizer, recipe, phase, step):
    """(shape, ids [B, T+1], weights [B, T+1], probes (sequence, start, length, tag)) of a step."""
    r = random.Random(f"{recipe['seed']}/{step}")
    shape = r.choices(phase["shapes"], [s["share"] for s in phase["shapes"]])[0]
    ids, weights, probes, T = [], [], [], shape["length"]
    for b in range(shape["batch"]):
        s = Session(tokenizer, f"{recipe['seed']}/{step}/{b}",
                    context_weight=phase.get("context_weight", recipe["context_weight"]),
                    joined=phase.get("joined", 0.3))
        tools = full_tools(r) if shape.get("full_tools") else None
        turns = {**phase.get("turns", {}), **shape.get("turns", {})}
        s.run(T + 1, turns, shape["lines"], shape["follow"], recipe["miss"], tools)
        ids.append(s.ids[: T + 1])
        weights.append(s.weights[: T + 1])
        probes += [(b, at, n, tag) for at, n, tag, _ in s.probes if at + n <= T + 1]
    return shape, torch.tensor(ids), torch.tensor(weights), probes


def stretched(shape, ids, user_id, generator):
    """Positions [B, T] with gaps in front of some user turns, so that rotations of distances far
    beyond the length of the batch are trained too; None without gaps. A sequence's gaps are shorter
    than a power of two, 4,096 at most. They are even and begin at even positions: a group of two
    tokens stays together."""
    if torch.rand((), generator=generator) >= shape.get("stretch", 0):
        return None
    B, T = ids.shape
    jump = torch.zeros(B, T, dtype=torch.long)
    longest = 2 ** torch.randint(4, 13, (B, 1), generator=generator)
    size = (torch.rand(B, T, generator=generator) * longest).long() // 2 * 2
    for b, t in (ids == user_id).nonzero().tolist():
        jump[b, t + t % 2 if t + t % 2 < T else t] = size[b, t] if t + t % 2 < T else 0
    return torch.arange(T)[None] + jump.cumsum(1)


def rate(recipe, phase, updates, phase_step):
    f = min(1.0, (updates + 1) / recipe["warmup"]) * phase.get("rate", 1.0)
    end = phase.get("decay_to")
    return f if end is None else f * (1 - (1 - end) * min(1.0, phase_step / phase["steps"]))


class Training:
    def __init__(self, folder, phase_name=None, master=None):
        self.read_recipe()
        self.folder, r = folder, self.recipe
        if not os.path.exists(os.path.join(folder, "tokenizer.json")):
            self.begin(folder, master)
        self.tokenizer = Tokenizer.load(os.path.join(folder, "tokenizer.json"))
        torch.manual_seed(r["seed"])
        config = load_config(os.path.join(folder, "config.json"))
        self.model = Model(config, self.tokenizer.token_map()[0])
        start.construct(self.model)
        self.optimizer = Optimizer(self.model, r["lr_muon"], r["lr_adam"])
        self.step = self.phase_step = self.tokens = 0
        self.names = [p["name"] for p in r["phases"]]
        self.phase = self.names[0]
        if os.path.exists(self.path):
            self.load()
        elif master:
            self.load_master(master)
        if phase_name and phase_name != self.phase:
            self.phase, self.phase_step = phase_name, 0

    def read_recipe(self):
        """Again at every save: the length of a decay can be corrected while it runs."""
        with open(os.path.join(HERE, "recipe.json"), encoding="utf-8") as f:
            self.recipe = json.load(f)

    @staticmethod
    def begin(folder, master):
        """config.json and tokenizer.json: new ones, or those that the weights were trained with."""
        if master is None:
            make_tokenizer.main(os.path.join(HERE, "config.json"), folder)
            return
        os.makedirs(folder, exist_ok=True)
        for name in ("config.json", "tokenizer.json"):
            shutil.copyfile(os.path.join(HERE, "checkpoint", name), os.path.join(folder, name))

    @property
    def path(self):
        return os.path.join(self.folder, "state.pt")

    def save(self):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state(),
                 "step": self.step, "phase": self.phase, "phase_step": self.phase_step,
                 "tokens": self.tokens}
        torch.save(state, self.path + ".new")
        os.replace(self.path + ".new", self.path)

    def load(self):
        s = torch.load(self.path)
        self.model.load_state_dict(s["model"])
        self.optimizer.load(s["optimizer"])
        self.step, self.phase, self.phase_step, self.tokens = (
            s["step"], s["phase"], s["phase_step"], s["tokens"])

    def save_master(self, path):
        """The weights alone, in BF16: a few megabytes from which a later day can go on."""
        half = {k: v.to(torch.bfloat16) for k, v in self.model.state_dict().items()}
        torch.save({"model": half, "step": self.step, "phase": self.phase,
                    "phase_step": self.phase_step, "tokens": self.tokens}, path)

    def load_master(self, path):
        s = torch.load(path)
        self.model.load_state_dict(s["model"])
        self.step, self.phase, self.phase_step, self.tokens = (
            s["step"], s["phase"], s["phase_step"], s["tokens"])

    def current(self):
        """The phase to run the next step in, or None at the end of the recipe."""
        phase = self.recipe["phases"][self.names.index(self.phase)]
        if self.phase_step < phase["steps"]:
            return phase
        at = self.names.index(self.phase) + 1
        if at == len(self.names):
            return None
        self.phase, self.phase_step = self.names[at], 0
        return self.recipe["phases"][at]

    def one_step(self, phase, grades):
        """(weighted loss, loss on the model's own tokens)."""
        shape, ids, weights, probes = batch(self.tokenizer, self.recipe, phase, self.step)
        w, target = weights[:, 1:], ids[:, 1:]
        generator = torch.Generator().manual_seed(self.step)
        positions = stretched(shape, ids[:, :-1], self.tokenizer.special[prompts.USER], generator)
        with rounded_weights(self.model, phase.get("rounded", False)):
            logits = self.model.head(self.model(ids[:, :-1], positions=positions))
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(w)
            mean = (loss * w).sum() / w.sum()
            mean.backward()
        if not torch.isfinite(mean):
            raise SystemExit(f"step {self.step}: the loss is not finite")
        if self.step < self.recipe["frozen"]:
            for name, p in self.model.named_parameters():
                if start.is_frozen_first(name):
                    p.grad = None
        self.optimizer.step(rate(self.recipe, phase, self.optimizer.step_count, self.phase_step))
        self.model.balance()
        right = logits.argmax(-1) == target
        for b, at, n, tag in probes:
            grades[tag][0] += bool(right[b, at - 1 : at + n - 1].all())
            grades[tag][1] += 1
        own = w == 1
        self.step, self.phase_step, self.tokens = self.step + 1, self.phase_step + 1, self.tokens + w.numel()
        return mean.item(), (loss.detach() * own).sum().item() / own.sum().item()

    @torch.no_grad()
    def hold_rotated(self):
        """The rotated channels of the indexers' queries and keys are zero. With them a choice among
        many rows is right at the distances that were trained and drops rows at others."""
        for layer in self.model.layers:
            if hasattr(layer.attn, "indexer"):
                i, r = layer.attn.indexer, layer.attn.rope_dim
                i.wq_b.weight.view(i.heads, i.dim, -1)[:, -r:] = 0
                if hasattr(i, "wk"):
                    i.wk.weight[-r:] = 0

    def index_step(self, phase):
        """One step of the indexers alone: their scores learn where the attention of the layers
        that share a selection goes. (KL divergence, share of the mass in the best rows.)"""
        shape, ids, _, _ = batch(self.tokenizer, self.recipe, phase, self.step)
        generator = torch.Generator().manual_seed(self.step)
        positions = stretched(shape, ids[:, :-1], self.tokenizer.special[prompts.USER], generator)
        record, loss, covered = {}, 0.0, []
        self.hold_rotated()
        self.model(ids[:, :-1], record=record, positions=positions)
        for scores, mass in record.values():
            total = mass.sum(-1, keepdim=True)
            target = mass / (total + 1e-6)
            log_p = scores.clamp_min(-1e4).log_softmax(-1)
            divergence = (target * (target.clamp_min(1e-9).log() - log_p)).sum(-1)
            loss = loss + (divergence * (total[..., 0] > 0.05)).mean()
            best = scores.detach().topk(min(128, scores.shape[-1]), -1).indices
            covered.append(target.gather(-1, best)[:, -256:].sum(-1).mean().item())
        loss.backward()
        for name, p in self.model.named_parameters():
            if "indexer" not in name:
                p.grad = None
        self.optimizer.step(rate(self.recipe, phase, self.optimizer.step_count, self.phase_step))
        self.hold_rotated()
        self.step, self.phase_step, self.tokens = self.step + 1, self.phase_step + 1, self.tokens + ids[:, 1:].numel()
        return loss.item(), sum(covered) / len(covered)


def report(training, rate_, losses, grades):
    n = len(losses)
    line = {"step": training.step, "phase": training.phase, "tokens": training.tokens,
            "tokens_per_second": round(rate_), "loss": round(sum(a for a, _ in losses) / n, 4),
            "own_loss": round(sum(b for _, b in losses) / n, 4),
            "exact": {k: [a, b] for k, (a, b) in sorted(grades.items())}}
    with open(os.path.join(training.folder, "log.jsonl"), "a", encoding="utf-8") as f:
        f.write(json.dumps(line) + "\n")
    shares = collections.defaultdict(lambda: [0, 0])
    for k, (a, b) in grades.items():
        k = k if k.startswith(("call", "first", "follow")) else k.split(":")[0]
        shares[k][0] += a
        shares[k][1] += b
    print(f"{line['step']} {line['phase']} {line['tokens'] / 1e6:.2f}M {line['tokens_per_second']}/s "
          f"loss {line['loss']:.3f} own {line['own_loss']:.3f} "
          + " ".join(f"{k} {a / b:.2f}" for k, (a, b) in sorted(shares.items())), flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folder")
    p.add_argument("--phase")
    p.add_argument("--from", dest="master")
    p.add_argument("--minutes", type=float, default=1e9)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--eager", action="store_true", help="do not compile")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.set_flush_denormal(True)
    training, stop = Training(a.folder, a.phase, a.master), []
    if not a.eager:
        compile_layers(training.model)
    for s in (signal.SIGINT, signal.SIGTERM):
        signal.signal(s, lambda *_: stop.append(1))
    end = time.monotonic() + 60 * a.minutes
    losses, grades = [], collections.defaultdict(lambda: [0, 0])
    saved = logged = time.monotonic()
    counted = training.tokens
    while not stop and time.monotonic() < end:
        phase = training.current()
        if phase is None:
            print("the recipe is done")
            break
        losses.append(training.index_step(phase) if phase.get("indexer") else training.one_step(phase, grades))
        now = time.monotonic()
        if len(losses) == LOG_STEPS:
            report(training, (training.tokens - counted) / (now - logged), losses, grades)
            losses, logged, counted = [], now, training.tokens
            grades.clear()
        if now - saved > SAVE_SECONDS:
            training.save()
            training.read_recipe()
            saved = now
    training.save()


if __name__ == "__main__":
    main()
