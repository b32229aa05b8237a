"""Held-out accuracy through the daemon: real files, real tools, greedy.

    AGENTD_SOCKET=... python evaluate_daemon.py AGENTCTL [--samples N] [--minutes M]

Needs a running `agentd serve --model` with the checkpoint, and no other Python package. An answer
counts when it is, byte for byte, the one that the session generator would have given. Half of the
sessions use words that are in no training list.
"""
import argparse
import collections
import json
import os
import random
import subprocess
import tempfile
import time

import sessions
from words import Words
from world import World

TOOLS = "grep,list_dir,read_file"


class Workspace:
    """A folder with files of every kind, and the questions about them."""

    def __init__(self, folder, seed):
        self.r = random.Random(f"daemon/{seed}")
        self.folder = folder
        self.world = World(self.r, Words(self.r, held_out=bool(seed % 2)))
        self.files = [self.world.make(k, self.r.randint(3, 30)) for k in ("config", "log", "csv", "passwd")]
        for f in self.files:
            os.makedirs(os.path.join(folder, f.folder), exist_ok=True)
            with open(os.path.join(folder, f.path), "w", encoding="utf-8") as out:
                out.write(f.text)

    def questions(self, f):
        """[(task, [prompts of one session], wanted last answer)]."""
        r = self.r
        (key, rest), (key2, rest2), absent = *r.sample(f.facts, 2), f.absent[0]
        stem = f.name.rpartition(".")[0] or f.name
        line = next(i for i, x in enumerate(f.lines) if key + rest in x)
        quote = lambda k: f"`{k}`" if r.random() < sessions.QUOTED else k
        read = r.choice(sessions.READ).format(p=f.path, k=quote(key))
        yield "value just read", [read], key + rest
        yield "list, read, answer", [r.choice(sessions.LIST_READ).format(t=stem, d=f.folder, k=quote(key))], key + rest
        yield "follow-up", [read, r.choice(sessions.ASK).format(k=quote(key2))], key2 + rest2
        yield "not there", [r.choice(sessions.READ).format(p=f.path, k=quote(absent))], absent + sessions.MISSING
        if sum(key in x for x in f.lines) == 1:
            found = f"{f.path}:{line + 1}:{f.lines[line]}"
            yield "line just found", [r.choice(sessions.GREP).format(p=f.path, k=quote(key))], found
            yield "not there", [r.choice(sessions.GREP).format(p=f.path, k=quote(absent))], absent + sessions.MISSING


def ask(agentctl, folder, prompts):
    """The last answer of a session that is asked the prompts in turn."""
    text, name = "", None
    for p in prompts:
        start = ["run", "--temperature", "0", "--thinking", "chat", "--approve", "auto", "--tools", TOOLS, "-C", folder, "-n"]
        if name is None:
            name = f"eval-{os.getpid()}-{time.monotonic_ns()}"
            command = [agentctl, *start, name, "--json", p]
        else:
            command = [agentctl, "send", name, "--json", p]
        out = subprocess.run(command, capture_output=True, text=True, check=False)
        text = json.loads(out.stdout).get("text", "") if out.stdout else f"[{out.stderr.strip()}]"
    subprocess.run([agentctl, "rm", name], capture_output=True, check=False)
    return text


def main():
    p = argparse.ArgumentParser()
    p.add_argument("agentctl")
    p.add_argument("--samples", type=int, default=500, help="of each task")
    p.add_argument("--minutes", type=float, default=1e9)
    p.add_argument("--show", action="store_true", help="print what was answered instead")
    a = p.parse_args()
    tally, end, seed = collections.defaultdict(list), time.monotonic() + 60 * a.minutes, 0
    while time.monotonic() < end and (not tally or min(map(len, tally.values())) < a.samples):
        with tempfile.TemporaryDirectory() as folder:
            w = Workspace(folder, seed)
            for task, prompts, want in w.questions(w.files[seed // 2 % 4]):
                got = ask(a.agentctl, folder, prompts)
                tally[task].append((got == want, bool(seed % 2)))
                if a.show and got != want:
                    print(f"{task}: {prompts[-1]!r}\n  want {want!r}\n  got  {got!r}", flush=True)
        seed += 1
    for task, results in sorted(tally.items()):
        n, unseen = len(results), [ok for ok, held_out in results if held_out]
        right = sum(ok for ok, _ in results)
        print(f"{task:20} {right}/{n} {right / n:.3f}   unseen words {sum(unseen)}/{len(unseen)}")


if __name__ == "__main__":
    main()
