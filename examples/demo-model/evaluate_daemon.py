"""Held-out accuracy through the daemon: real files, real tools, greedy.

    AGENTD_SOCKET=... python evaluate_daemon.py AGENTCTL [--samples N] [--minutes M] [--jobs N] [--show]

Needs a running `agentd serve --model` with the checkpoint, and no other Python package. Every session is
forked from one that has the system text, the tools and a greeting, so that these are computed once. A
sample has files of its own, and sessions: short ones of one or two questions, and a long one in
which three facts are told and files are read, listed and searched until 1,000 to 4,000 tokens lie behind;
then it is asked for the facts, for three lines of the first file, and for what was never there. An answer
counts when it is, byte for byte, the one that the session generator would have given; a turn's calls,
when they are exactly those. Half of the samples use words that are in no training list. Intervals are
Wilson's, 95 %.
"""
import argparse
import collections
import concurrent.futures
import itertools
import json
import math
import os
import random
import shutil
import subprocess
import tempfile
import threading
import time

import sessions
from words import Words
from world import World

KINDS = ["config", "log", "csv", "passwd"]
MODEL = ["--temperature", "0", "--thinking", "chat", "--approve", "auto", "--tools", "grep,list_dir,read_file",
         "--max-tokens", "400"]
ROWS = [("call", .99), ("value just read", .95), ("list, read, answer", .90), ("recall of a fact", .95),
        ("recall of a result", .95), ("not there", .90), ("line just found", None), ("follow-up", None),
        ("long: call", None), ("long: value just read", None), ("long: list, read, answer", None),
        ("long: not there", None), ("long: line just found", None)]
LONG_ROWS = ["recall of a fact", "recall of a result"]  # three of each in a long session


class Agent:
    """agentctl, a folder, and the session there that all others are forked from."""

    def __init__(self, agentctl, folder, name):
        self.agentctl, self.folder, self.base, self.n_forks = agentctl, folder, name, 0
        self.run("run", *MODEL, "-C", folder, "-n", name, "Hello")

    def run(self, *arguments):
        out = subprocess.run([self.agentctl, *arguments], capture_output=True, text=True, check=False)
        if out.returncode and not out.stdout:  # a turn that was cut off has a code of its own, and an answer
            raise SystemExit(f"agentctl {arguments[0]}: {out.stderr.strip()}")
        return out.stdout

    def fork(self):
        self.n_forks += 1
        name = f"{self.base}-{self.n_forks}"
        self.run("fork", "-n", name, self.base)
        return name

    def empty_folder(self):
        for x in os.scandir(self.folder):
            shutil.rmtree(x.path)


class Sample:
    """The sessions of one seed with their files, and the tally of their answers."""

    def __init__(self, agent, seed, show):
        self.agent, self.folder, self.show, self.seed = agent, agent.folder, show, seed
        self.r = random.Random(f"daemon/{seed}")
        self.words = Words(self.r, held_out=bool(seed % 2))
        self.world = World(self.r, self.words)
        self.results, self.name = [], None

    def begin(self, kind=""):
        """A new session; kind goes in front of the rows of what is asked in it."""
        self.end()
        self.name, self.kind, self.tokens = self.agent.fork(), kind, 0

    def end(self):
        if self.name:
            self.agent.run("rm", self.name)

    # ---- the daemon ------------------------------------------------------------------------

    def ask(self, prompt):
        """(answer, [(tool, arguments)]) of a turn."""
        turn = json.loads(self.agent.run("send", self.name, "--json", prompt))
        self.tokens = turn["ledger"]["prompt_tokens"] + turn["ledger"]["decoded"]
        calls = []
        for line in self.agent.run("logs", "--jsonl", self.name).splitlines():
            event = json.loads(line)["params"]
            if event.get("turnId") == turn["turnId"] and event.get("item", {}).get("kind") == "tool_call":
                try:
                    arguments = json.loads(event["item"]["arguments"])
                except ValueError:
                    arguments = None
                calls.append((event["item"]["name"], arguments))
        return turn["text"], calls

    def grade(self, row, prompt, want, *calls):
        """Asks; tallies the calls one by one, and the answer."""
        got, made = self.ask(prompt)
        for i, call in enumerate(calls):
            self.results.append((self.kind + "call", made[i : i + 1] == [call]))
        self.results.append((row if row.startswith("recall") else self.kind + row, got == want))
        if self.show and (got != want or made != list(calls)):
            print(f"{self.seed} {row}: {prompt!r}\n  want {list(calls)} {want!r}\n  got  {made} {got!r}", flush=True)

    # ---- questions -------------------------------------------------------------------------

    def file(self, kind):
        while True:
            f = self.world.make(kind, self.r.randint(3, 30))
            path = os.path.join(self.folder, f.path)
            if f.folder and not os.path.lexists(os.path.join(self.folder, f.folder)):
                break
        os.makedirs(os.path.dirname(path))
        with open(path, "w", encoding="utf-8") as out:
            out.write(f.text)
        for _ in range(self.r.randint(1, 4)):  # what else lies in the folder
            other = os.path.join(os.path.dirname(path), self.words.word() + self.r.choice((".md", ".c", ".py", ".json")))
            with open(other, "w", encoding="utf-8") as out:
                out.write("nothing\n")
        return f

    def form(self, forms, key, **names):
        quoted = f"`{key}`" if self.r.random() < sessions.QUOTED and not key.startswith("the ") else key
        return self.r.choice(forms).format(k=quoted, **names)

    def read(self, f):
        key, rest = self.r.choice(f.facts)
        self.grade("value just read", self.form(sessions.READ, key, p=f.path), key + rest,
                   ("read_file", {"path": f.path}))
        return key

    def list_read(self, f):
        key, rest = self.r.choice(f.facts)
        stem = f.name.rpartition(".")[0] or f.name
        self.grade("list, read, answer", self.form(sessions.LIST_READ, key, t=stem, d=f.folder), key + rest,
                   ("list_dir", {"path": f.folder}), ("read_file", {"path": f.path}))

    def read_absent(self, f):
        key = f.absent.pop()
        self.grade("not there", self.form(sessions.READ, key, p=f.path), key + sessions.MISSING,
                   ("read_file", {"path": f.path}))

    def grep(self, f):
        once = [(k, i) for i, x in enumerate(f.lines) for k, _ in f.facts if k in x and sum(k in y for y in f.lines) == 1]
        if once:
            key, at = self.r.choice(once)
            self.grade("line just found", self.form(sessions.GREP, key, p=f.path), f"{f.path}:{at + 1}:{f.lines[at]}",
                       ("grep", {"pattern": key, "path": f.path}))

    def ask_again(self, row, key, rest):
        self.grade(row, self.form(sessions.ASK, key), key + rest)

    def run(self, with_long):
        kind = KINDS[self.seed // 2 % 4]
        self.begin()
        self.list_read(self.file(kind))
        self.begin()
        self.read_absent(self.file(kind))
        self.begin()
        self.grep(self.file(kind))
        self.begin()
        f = self.file(kind)
        asked = self.read(f)
        self.ask_again("follow-up", *self.r.choice([x for x in f.facts if x[0] != asked]))
        if with_long:
            self.begin("long: ")
            self.long()
        self.end()
        self.agent.empty_folder()
        return self.results

    def tell(self):
        key = self.world.fresh(lambda: f"the {self.r.choice(sessions.THINGS)} of {self.words.word()}")
        rest = " is " + self.world.value() + self.r.choice(("", "."))
        self.grade("told", self.r.choice(sessions.REMEMBER).format(f=key + rest), "OK.")
        return key, rest

    def long(self):
        r = self.r
        facts, first = [self.tell() for _ in range(3)], self.file(r.choice(KINDS))
        asked = self.read(first)
        begun, far = self.tokens, r.randint(1000, 3900)
        while self.tokens - begun < far:
            r.choice((self.list_read, self.list_read, self.read_absent, self.grep, self.read))(self.file(r.choice(KINDS)))
        for fact in facts:
            self.ask_again("recall of a fact", *fact)
        others = [x for x in first.facts if x[0] != asked]
        for fact in r.sample(others, min(3, len(others))):
            self.ask_again("recall of a result", *fact)
        self.ask_again("not there", first.absent.pop(), sessions.MISSING)


def interval(right, n, z=1.96):
    p, d = right / n, 1 + z * z / n
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, (p + z * z / (2 * n) - half) / d), (p + z * z / (2 * n) + half) / d


def table(tally):
    yield "| task | must reach | words of training | unseen words | all | 95 % |"
    yield "|---|---|---|---|---|---|"
    for row, must in ROWS:
        results = tally[row]
        if not results:
            continue
        cell = [f"{sum(ok for ok, held in results if held == h)}/{sum(held == h for _, held in results)}" for h in (0, 1)]
        right, n = sum(ok for ok, _ in results), len(results)
        low, high = interval(right, n)
        yield (f"| {row} | {must or ''} | {cell[0]} | {cell[1]} | {right}/{n} = {right / n:.3f} | "
               f"{low:.3f} to {high:.3f} |")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("agentctl")
    p.add_argument("--samples", type=int, default=500, help="of each row")
    p.add_argument("--minutes", type=float, default=1e9)
    p.add_argument("--jobs", type=int, default=2, help="samples at a time")
    p.add_argument("--first", type=int, default=0, help="first seed")
    p.add_argument("--show", action="store_true", help="print what was wrong")
    a = p.parse_args()
    tally, begun, lock = collections.defaultdict(list), time.monotonic(), threading.Lock()
    seeds = itertools.count(a.first)

    def enough(rows):
        return all(len(tally[row]) >= a.samples for row in rows)

    def work(job):
        with tempfile.TemporaryDirectory() as folder:
            agent = Agent(a.agentctl, folder, f"eval-{os.getpid()}-{job}")
            while True:
                with lock:
                    if time.monotonic() > begun + 60 * a.minutes or enough(r for r, must in ROWS if must):
                        break
                    seed, with_long = next(seeds), not enough(LONG_ROWS)
                results = Sample(agent, seed, a.show).run(with_long)
                with lock:
                    for row, ok in results:
                        tally[row].append((ok, seed % 2))
            agent.run("rm", agent.base)

    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        list(pool.map(work, range(a.jobs)))
    print(f"{next(seeds) - a.first} samples, {time.monotonic() - begun:.0f} s")
    print("\n".join(table(tally)))


if __name__ == "__main__":
    main()
