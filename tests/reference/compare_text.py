"""Tokenizer, prompt format and their joint against published packages over generated inputs.

    python compare_text.py BUILD [--inputs N] [--only tokens|prompts]

`tokenizers` (Hugging Face) is the reference for ids, with added tokens and without; for
conversations it is `deepseek_recipe`, DeepSeek's own renderer: prompt text and prompt ids, where
special tokens come from the renderer alone and never from what a message says.
"""
import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
import unicodedata

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "golden")
MODELS = [os.path.join(GOLDEN, "a_tiny", "model"), os.path.join(GOLDEN, "e_encoding"),
          os.path.join(HERE, "..", "..", "examples", "demo-model", "checkpoint")]
# Blocks that the three splits treat differently, and what joins or looks like something else.
RANGES = [(0, 0x7f), (0x80, 0x24f), (0x300, 0x36f), (0x370, 0x52f), (0x590, 0x74f), (0x900, 0xdff), (0xe00, 0xeff),
          (0x1100, 0x11ff), (0x2000, 0x206f), (0x20a0, 0x2bff), (0x3000, 0x30ff), (0x3400, 0x34ff), (0x4e00, 0x9fff),
          (0xac00, 0xad00), (0xe000, 0xe010), (0xfb00, 0xfdff), (0xff00, 0xffef), (0x10300, 0x1039f), (0x16fe0, 0x16fff),
          (0x1d400, 0x1d7ff), (0x1f300, 0x1faff), (0x20000, 0x20010), (0xe0100, 0xe01ef)]
WORDS = ["the", " the", "  ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u2028", "\x1c", "\x85", "0", "12", "1234567",
         "3.14", "-", "--", "://", "</", "<", ">", "{\"a\": 1}", "'s", "don't", "x_y", "$HOME", "(", ").", "…", "日本語",
         "カタカナ", "漢字", "한국어", "é", "e\u0301", "🙂", "👩\u200d🚀", "عربي", "हिन्दी", "Ω", "ﬁ", "|", "｜", "▁"]


def draw_char(r):
    low, high = r.choice(RANGES)
    return chr(r.randint(low, high))


def draw_text(r, specials, most=12):
    out = []
    for _ in range(r.randint(0, most)):
        kind = r.random()
        if kind < 0.45:
            out.append(r.choice(WORDS))
        elif kind < 0.55 and specials:
            word = r.choice(specials)
            out.append(word if r.random() < 0.8 else word[:r.randint(1, len(word))])
        elif kind < 0.8:
            out.append("".join(r.choice("abcdefgh ijklmnopqrstuvwxyz,.!?ABC") for _ in range(r.randint(1, 9))))
        else:
            out.append("".join(draw_char(r) for _ in range(r.randint(1, 4))))
    return "".join(out).replace("\x00", "") if r.random() < 0.9 else "".join(out)


class Lines:
    """text_lines of the build: a list of requests in, a list of answers out."""

    def __init__(self, build, model):
        self.command = [os.path.join(build, "tests", "text_lines"), model]

    def ask(self, requests):
        text = "".join(json.dumps(q) + "\n" for q in requests)
        done = subprocess.run(self.command, input=text.encode(), stdout=subprocess.PIPE, check=True, timeout=3000)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(answers) == len(requests), f"{len(answers)} answers to {len(requests)} requests"
        return answers


class Report:
    def __init__(self, what):
        self.what, self.n, self.bad = what, 0, []

    def count(self, same, show):
        self.n += 1
        if not same:
            self.bad.append(show)

    def print(self):
        print(f"{'FAILED' if self.bad else 'ok'}: {self.what}: {self.n} inputs, {len(self.bad)} differ", flush=True)
        for show in self.bad[:5]:
            print("   ", show)
        return bool(self.bad) or not self.n


# ---- tokenizer

def compare_tokenizer(build, model, n, seed):
    import tokenizers
    with open(os.path.join(model, "tokenizer.json"), encoding="utf-8") as f:
        source = json.load(f)
    specials = [t["content"] for t in source["added_tokens"]]
    with_added = tokenizers.Tokenizer.from_str(json.dumps(source))
    plain = tokenizers.Tokenizer.from_str(json.dumps({**source, "added_tokens": []}))
    r = random.Random(seed)
    texts = [draw_text(r, specials) for _ in range(n)]
    report = Report(f"tokens, {os.path.relpath(model, os.path.join(HERE, '..', '..'))}")
    for text, a in zip(texts, Lines(build, model).ask([{"text": t} for t in texts])):
        want = plain.encode(text, add_special_tokens=False).ids, with_added.encode(text, add_special_tokens=False).ids
        have = a.get("ids"), a.get("special")
        report.count(want == have, f"{text!r}: want {want}, have {have or a}")
    return report.print()


# ---- conversations

def draw_json(r, specials, depth=0):
    kind = r.randint(0, 7 if depth < 3 else 5)
    if kind == 0:
        return draw_text(r, specials, 4)
    if kind == 1:
        return r.randint(-10 ** r.randint(1, 15), 10 ** r.randint(1, 15))
    if kind == 2:
        return r.choice([0.5, 2.0, -1.25, 1e-3, 123456.75, 1e5, 0.1])
    if kind in (3, 4):
        return r.choice([True, False])
    if kind == 5:
        return None
    if kind == 6:
        return [draw_json(r, specials, depth + 1) for _ in range(r.randint(0, 3))]
    return {draw_text(r, [], 2) or "k": draw_json(r, specials, depth + 1) for _ in range(r.randint(0, 3))}


def draw_arguments(r, specials):
    kind = r.random()
    if kind < 0.06:  # JSON text of JSON text is left out: the checkpoint's encoder decodes it twice, the package once
        return r.choice(["not json", "[1, 2]", "3", "", "null", "{\"a\": ", "{}"])
    names = ["path", "n", "options", "arguments", "a b", "é"]
    return json.dumps({k: draw_json(r, specials) for k in r.sample(names, r.randint(0, 3))},
                      ensure_ascii=r.random() < 0.5, separators=r.choice([(", ", ": "), (",", ":")]))


def draw_tools(r, specials):
    return [{"name": f"tool_{i}", "description": draw_text(r, specials, 5),
             "parameters": {"type": "object", "properties": {k: {"type": r.choice(["string", "integer", "object"])}
                                                             for k in r.sample(["path", "n", "q"], r.randint(0, 3))},
                            "required": []}}
            for i in range(r.randint(1, 3))]


def draw_conversation(r, specials):
    """Messages in the OpenAI form that agentd reads."""
    messages, n_calls = [], 0
    tools = draw_tools(r, specials) if r.random() < 0.4 else None
    text = lambda: draw_text(r, specials)
    if tools or r.random() < 0.6:
        messages.append({"role": "system", "content": text()})
        if tools:
            messages[0]["tools"] = [{"type": "function", "function": t} for t in tools]
    for _ in range(r.randint(1, 4)):
        # Only in front of any user turn: behind one the encoder of the checkpoint begins the answer
        # first, which the golden cases have, and the package does not.
        if r.random() < 0.2 and all(m["role"] == "system" for m in messages):
            messages.append({"role": "latest_reminder", "content": text()})
        for _ in range(r.choice((1, 1, 1, 2))):
            messages.append({"role": "user", "content": text()})
        if r.random() < 0.1 and len(messages) > 1:
            messages.append({"role": "system", "content": text()})
        if r.random() < 0.75:
            a = {"role": "assistant", "content": text()}
            if r.random() < 0.6:
                a["reasoning_content"] = text()
            ids = []
            if r.random() < 0.5:
                for _ in range(r.randint(1, 3)):
                    ids.append(f"call_{n_calls}")
                    n_calls += 1
                a["tool_calls"] = [{"id": i, "type": "function",
                                    "function": {"name": f"tool_{r.randint(0, 3)}", "arguments": draw_arguments(r, specials)}}
                                   for i in ids]
            messages.append(a)
            r.shuffle(ids)
            messages += [{"role": "tool", "tool_call_id": i if r.random() < 0.95 else "unknown", "content": text()}
                         for i in ids]
    # The package renders what a model goes on from: behind an assistant turn it opens another, an
    # empty prefix is none to it.
    if messages[-1]["role"] == "assistant":
        if messages[-1]["content"] and "tool_calls" not in messages[-1] and r.random() < 0.5:
            messages[-1]["wo_eos"] = True
        else:
            messages.append({"role": "user", "content": text()})
    return messages, tools


def to_recipe(messages, tools, thinking, effort):
    import deepseek_recipe as d
    out = []
    for m in messages:
        content = m["content"]
        if m["role"] == "system":
            out.append(d.SystemMessage(content))
        elif m["role"] == "user":
            out.append(d.UserMessage(content))
        elif m["role"] == "tool":
            out.append(d.ToolMessage(content, m["tool_call_id"]))
        elif m["role"] == "latest_reminder":
            out.append(d.LatestReminderMessage(content))
        else:
            calls = [d.ToolCall(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in m.get("tool_calls", [])]
            out.append(d.AssistantMessage(content, m.get("reasoning_content"), calls or None,
                                          m.get("wo_eos", False)))
    tools = [d.ToolDefinition(t["name"], t["description"], t["parameters"]) for t in tools or []]
    return d.Conversation(out, thinking_mode=thinking, tools=tools or None, reasoning_effort=effort)


def compare_prompts(build, n, seed):
    import deepseek_recipe as d
    model = MODELS[0]
    with open(os.path.join(model, "tokenizer.json"), encoding="utf-8") as f:
        specials = [t["content"] for t in json.load(f)["added_tokens"]]
    encoding = d.DeepseekV41Encoding().with_tokenizer(d.Tokenizer.from_file(os.path.join(model, "tokenizer.json")))
    r = random.Random(seed)
    cases, requests = [], []
    for _ in range(n):
        messages, tools = draw_conversation(r, specials)
        thinking, effort = r.random() < 0.6, r.choice([None, "low", "high", "max"])
        cases.append(to_recipe(messages, tools, thinking, effort))
        requests.append({"messages": messages, "thinking": thinking, "drop": True, "effort": effort})
    texts, ids = Report("prompts as text"), Report("prompts as ids")
    for q, conversation, a in zip(requests, cases, Lines(build, model).ask(requests)):
        want = encoding.render_conversation(conversation).prompt
        texts.count(want == a.get("text"), f"{json.dumps(q, ensure_ascii=False)}\n  want {want!r}\n  have {a.get('text', a)!r}")
        want = encoding.encode(conversation)
        ids.count(want == a.get("ids"), f"{json.dumps(q, ensure_ascii=False)}: want {want}, have {a.get('ids')}")
    return texts.print() + ids.print()


def main():
    a = argparse.ArgumentParser()
    a.add_argument("build")
    a.add_argument("--inputs", type=int, default=20000)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--only", choices=["tokens", "prompts"])
    o = a.parse_args()
    start, failed = time.time(), 0
    for model in MODELS if o.only != "prompts" else []:
        failed += compare_tokenizer(o.build, model, o.inputs, o.seed)
    if o.only != "tokens":
        failed += compare_prompts(o.build, o.inputs, o.seed)
    print(f"{time.time() - start:.0f} s")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
