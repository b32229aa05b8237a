"""Needles by way of prefill: a suite of evals asked in modes ced, ced-report and full.

    agentd-evals gen needle-session -m checkpoint -o SUITE -l 16K --contexts 4
    AGENTD_SOCKET=... python evaluate_needles.py AGENTCTL SUITE [--modes ced,ced-report,full]

Needs a running daemon, and no other Python package. A context is read once in each mode; each question
is asked in a fork of that session, greedy. An answer counts when it holds the code. Intervals are
Wilson's, those of the difference to mode full of pairs, 95 %.
"""
import argparse
import json
import math
import os
import subprocess

from evaluate_daemon import interval

OPTIONS = ["--temperature", "0", "--thinking", "chat", "--tools", "", "--max-tokens", "32", "--json"]


def agent(*arguments, text=None):
    out = subprocess.run(arguments, capture_output=True, text=True, input=text, check=False)
    if out.returncode and not out.stdout:  # a turn that was cut off has a code of its own, and an answer
        raise SystemExit(f"agentctl {arguments[1]}: {out.stderr.strip()}")
    return out.stdout


def lines(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as f:
        return [json.loads(x) for x in f]


def ask_all(agentctl, mode, context, samples):
    """[(answer, right)] of the questions about a context."""
    base, results = f"needles-{os.getpid()}-{mode}", []
    agent(agentctl, "run", "--mode", mode, *OPTIONS, "-n", base, "-", text=context["text"])
    for i, s in enumerate(samples):
        name = f"{base}-{i}"
        agent(agentctl, "fork", "-n", name, base)
        answer = json.loads(agent(agentctl, "send", name, "--json", s["question"]))["text"]
        results.append((answer, all(x in answer for x in s["answers"])))
        agent(agentctl, "rm", name)
    agent(agentctl, "rm", base)
    return results


def difference(a, b):
    """How much more often a is right than b, with its interval, and how often both say the same."""
    n = len(a)
    only_a = sum(x[1] and not y[1] for x, y in zip(a, b))
    only_b = sum(y[1] and not x[1] for x, y in zip(a, b))
    d, half = (only_a - only_b) / n, 1.96 * math.sqrt(only_a + only_b - (only_a - only_b) ** 2 / n) / n
    same = sum(x[0] == y[0] for x, y in zip(a, b))
    return f"{d:+.3f} ({d - half:+.3f} to {d + half:+.3f})", f"{same}/{n}"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("agentctl")
    p.add_argument("suite")
    p.add_argument("--modes", default="full,ced,ced-report")
    a = p.parse_args()
    samples, results = lines(a.suite, "samples.jsonl"), {m: [] for m in a.modes.split(",")}
    for context in lines(a.suite, "contexts.jsonl"):
        own = [s for s in samples if s["context"] == context["id"]]
        for mode in results:
            results[mode] += ask_all(a.agentctl, mode, context, own)
            print(context["id"], mode, sum(ok for _, ok in results[mode]), len(results[mode]), flush=True)
    print("| mode | right | 95 % | more than full | the same answer as full |\n|---|---|---|---|---|")
    for mode, r in results.items():
        right = sum(ok for _, ok in r)
        low, high = interval(right, len(r))
        more, same = difference(r, results["full"]) if "full" in results else ("", "")
        print(f"| {mode} | {right}/{len(r)} = {right / len(r):.3f} | {low:.3f} to {high:.3f} | {more} | {same} |")


if __name__ == "__main__":
    main()
