"""Sessions: what the user asks, what the model does, what the tools say, with the graded spans.

One rule for every answer about a key: say the key as the user said it, then quote what follows it
where it stands, to the end of the line or the message - in the file, an earlier result, an earlier
message - or say "is not there".
A question that names a place to look is answered by a call; one that does not, from the context.
"""
import random

import prompts
from words import Words
from world import File, KIND_WORD, World

READ = ["Read {p}: what is {k}?", "What is {k} in {p}?", "Read {p} and tell me {k}.",
        "Look up {k} in {p}.", "Open {p} and tell me {k}.", "What does {p} say about {k}?",
        "Tell me {k} from {p}."]
GREP = ["Search {p} for {k}.", "Grep {p} for {k}.", "Search for {k} in {p}.", "Find {k} in {p}."]
GREP_ALL = ["Where is {k}?", "Search for {k}.", "Find {k}."]
ASK = ["What is {k}?", "And {k}?", "Tell me {k}.", "What about {k}?", "What was {k}?"]
LIST_READ = ["Read the {t} file in {d}: what is {k}?", "Look in {d} for the {t} file and tell me {k}.",
             "What is {k} in the {t} file in {d}?"]
WHICH = ["Which {t} file is in {d}?", "What is the {t} file in {d}?"]
REMEMBER = ["Remember: {f}", "Remember that {f}", "Note that {f}", "Keep in mind that {f}"]
SYSTEMS = ["", "You are a helpful agent.", "You are an agent that works in a folder.", "Be brief."]
THINGS = ["code", "door", "pin", "badge", "seat", "room", "port", "color", "number", "key"]
SMALL_TALK = [("Hello", "Hello. Ask me about a file."), ("Hello.", "Hello. Ask me about a file."),
              ("Thanks.", "You are welcome."), ("Thank you.", "You are welcome."),
              ("Who are you?", "A small model. Ask me about a file.")]
REPORT = ["Read the following report with care. Questions about it come at its end.", "Read this report.",
          "Here is a long text. I shall ask about it.", "Keep this report in mind."]
CODES = ["access code", "code", "door code", "number", "pass number", "key", "call sign"]
PLACES = ["depot", "station", "camp", "mill", "post", "hangar", "office", "ship"]
# The line of a report, the key in its answer, questions; n: a name.
LINES = [("The {c} of the {n} {p} is {v}.", "{n} {p}",
          ["What is the {c} of the {n} {p}? Answer with the {c} alone.", "What is the {c} of the {n} {p}?"]),
         ("Remember: the {n} {c} is {v}.", "the {n} {c}", ["What is the {n} {c}?"])]
MISSING = " is not there."
FAR = 1024  # tokens of a session from which on something is told at its beginning
QUOTED = 0.7
BARE = 0.5
KINDS = ["config"] * 3 + ["log"] * 2 + ["csv"] + ["passwd"] * 2


class Session:
    """Builds ids, weights (1 on the model's own tokens) and probes (start, length, tag, source)."""

    def __init__(self, tokenizer, seed, held_out=False, context_weight=0.1, joined=0.3):
        """joined: the share of values that are made of several parts."""
        self.tok, self.r, self.cw = tokenizer, random.Random(seed), context_weight
        self.w = Words(self.r, held_out, ((), ()) if held_out else tokenizer.letters)
        self.world = World(self.r, self.w, joined)
        self.ids, self.weights, self.probes = [], [], []
        self.known = []  # (key, rest, position, tag) that can be asked again
        self.absent = []
        self.told = []  # (thing, word) of the user's facts
        self.end = 0  # where the session is full

    # ---- tape ------------------------------------------------------------------------------

    def context(self, parts, weight=None):
        ids = prompts.encode(self.tok, parts)
        self.ids += ids
        self.weights += [self.cw if weight is None else weight] * len(ids)

    def says(self, parts, tag, source=None):
        ids = prompts.encode(self.tok, parts)
        start = len(self.ids)
        self.probes.append((start, len(ids), tag, start - source if source is not None else 0))
        self.ids += ids
        self.weights += [1.0] * len(ids)

    def user(self, text):
        self.context(prompts.user_turn([text]))

    def result(self, text):
        start = len(self.ids)
        self.context(prompts.user_turn([prompts.tool_result(text)]))
        return start

    def open(self, tools=None, bare=False):
        """The system text and the tools; bare: neither, as evals opens its sessions."""
        if bare:
            return self.context([prompts.Special(prompts.BOS)])
        system = self.r.choice(SYSTEMS) if tools is None or self.r.random() < 0.3 else ""
        self.context(prompts.opening(system, tools), self.cw * 0.3)

    # ---- turns -----------------------------------------------------------------------------

    def pick(self, f, miss):
        return (f.absent.pop(), None) if miss else f.facts[self.r.randrange(len(f.facts))]

    def asked(self, form, key, **names):
        """The user's question. Most users put a key that comes from a file into backticks."""
        quoted = f"`{key}`" if self.r.random() < QUOTED and not key.startswith("the ") else key
        self.user(self.r.choice(form).format(k=quoted, **names))

    def answers(self, key, rest, tag, source):
        if rest is None:
            self.says(prompts.answer(key + MISSING), "miss:" + tag, source)
        else:
            self.says(prompts.answer(key + rest), tag, source)

    def file(self, lines):
        return self.world.make(self.r.choice(KINDS), self.r.randint(*lines))

    def read(self, lines, follow, miss):
        f, r = self.file(lines), self.r
        key, rest = self.pick(f, r.random() < miss)
        self.asked(READ, key, p=f.path)
        self.says(prompts.call("read_file", path=f.path), "call")
        self.after_reading(f, key, rest, follow, miss)

    def after_reading(self, f, key, rest, follow, miss):
        source = self.result(f.text)
        self.answers(key, rest, "first:" + f.kind, source)
        facts = [x for x in f.facts if x[0] != key]
        self.r.shuffle(facts)
        for _ in range(self.r.randint(*follow)):
            if not facts:
                break
            k, v = (f.absent.pop(), None) if f.absent and self.r.random() < miss else facts.pop()
            self.asked(ASK, k)
            self.answers(k, v, "follow:" + f.kind, source)
        self.known += [(k, v, source, f.kind) for k, v in f.facts]
        self.absent += f.absent

    def read_nothing(self, lines, follow, miss):
        f = self.file((1, 1))
        self.asked(READ, f.facts[0][0], p=f.path)
        self.says(prompts.call("read_file", path=f.path), "call")
        self.result(f"error: {f.path}: No such file or directory\n")
        self.says(prompts.answer(f.path + MISSING), "error")

    def grep(self, lines, follow, miss):
        f, r = self.file((1, 3)), self.r
        key, rest = self.pick(f, r.random() < miss)
        self.asked(GREP, key, p=f.path)
        self.says(prompts.call("grep", pattern=key, path=f.path), "call")
        self.after_grep(key, [] if rest is None else [(f.path, x) for x in f.lines if key in x],
                        "[no match in 1 files]\n")

    def after_grep(self, key, hits, otherwise):
        """hits: (path, line) of what was found."""
        number, text = 0, ""
        for path, line in hits:
            number += self.r.randint(1, 90)
            text += f"{path}:{number}:{line}\n"
        source = self.result(text or otherwise)
        if hits:
            self.says(prompts.answer(text.split("\n")[0]), "grep", source)
        else:
            self.says(prompts.answer(key + MISSING), "miss:grep", source)

    def grep_all(self, lines, follow, miss):
        r = self.r
        if r.random() < 0.4:
            f = self.file((1, 1))
            key, hits = f.facts[0][0], [(f.path, f.lines[-1])]
        else:
            line, key = self.world.code_line()
            hits = sorted((self.source_path(), line) for _ in range(r.choice((1, 1, 2, 3, 6, 12))))
            hits = [(path, self.world.code_line(key)[0] if r.random() < 0.7 else line) for path, line in hits]
        self.asked(GREP_ALL, key)
        self.says(prompts.call("grep", pattern=key), "call")
        self.after_grep(key, [] if r.random() < miss else hits, f"[no match in {r.randint(2, 99)} files]\n")

    def source_path(self):
        return f"{self.world.folder() or self.w.word()}/{self.w.word()}{self.r.choice(('.c', '.py', '.md', '.h'))}"

    def listing(self, f):
        """A folder that holds f; no other file of its extension."""
        r = self.r
        entries = {f.name: f"\t{r.randint(20, 9000)}"}
        ending = f.name.rsplit(".", 1)[-1]
        others = [x for x in ("md", "txt", "c", "py", "conf", "log", "csv", "json") if x != ending]
        for _ in range(r.randint(1, 5)):
            name = self.w.word()
            if r.random() < 0.25:
                entries[name] = "/"
            else:
                entries[name + "." + r.choice(others)] = f"\t{r.randint(20, 9000)}"
        return "".join(name + entries[name] + "\n" for name in sorted(entries))

    def file_in_folder(self, lines):
        while True:
            f = self.file(lines)
            if f.folder:
                return f

    def named(self, f):
        """How a user names a file without its whole name: its stem, or its kind."""
        stem, _, ending = f.name.rpartition(".")
        if stem and self.r.random() < 0.75:
            return stem
        if stem and self.r.random() < 0.5:
            return "." + ending
        return ending if f.kind == "config" else KIND_WORD[f.kind]

    def list_read(self, lines, follow, miss):
        f, r = self.file_in_folder(lines), self.r
        key, rest = self.pick(f, r.random() < miss)
        self.asked(LIST_READ, key, t=self.named(f), d=f.folder)
        self.says(prompts.call("list_dir", path=f.folder), "call")
        source = self.result(self.listing(f))
        self.says(prompts.call("read_file", path=f.path), "call:listed", source)
        self.after_reading(f, key, rest, follow, miss)

    def list_only(self, lines, follow, miss):
        f = self.file_in_folder((1, 1))
        self.user(self.r.choice(WHICH).format(t=self.named(f), d=f.folder))
        self.says(prompts.call("list_dir", path=f.folder), "call")
        source = self.result(self.listing(f))
        self.says(prompts.answer(f.path), "listed", source)

    def user_fact(self, lines, follow, miss):
        for _ in range(self.r.choice((1, 1, 2, 3))):
            key, rest, source = self.fact_key(), " is " + self.world.value() + self.r.choice(("", ".")), len(self.ids)
            self.user(self.r.choice(REMEMBER).format(f=key + rest))
            self.says(prompts.answer("OK."), "ok")
            self.known.append((key, rest, source, "user"))
        if self.r.random() < 0.6:
            self.absent.append(self.fact_key())

    def fact_key(self):
        """Every second one begins or ends as one before it did: half a key must not be enough."""
        def draw():
            thing, word = r.choice(THINGS), self.w.word(behind_space=True)
            if self.told and r.random() < 0.5:
                if r.random() < 0.7:
                    thing = r.choice(self.told)[0]
                else:
                    word = r.choice(self.told)[1]
            self.told.append((thing, word))
            return f"the {thing} of {word}"

        r = self.r
        return self.world.fresh(draw)

    def recall(self, lines, follow, miss):
        """What was told is little beside what was read, and asked for by itself: were it not, most
        of the questions for a fact would be for one that was never told."""
        r = self.r
        told = [i for i, entry in enumerate(self.known) if entry[3] == "user"]
        if self.absent and r.random() < miss:
            key, rest, source, tag = self.absent.pop(self.early(self.absent)), None, 0, "recall"
        elif self.known:
            at = told[self.early(told)] if told and r.random() < 0.4 else self.early(self.known)
            key, rest, source, tag = self.known.pop(at)
            tag = "recall:" + tag
        else:
            return
        self.asked(ASK, key)
        self.answers(key, rest, tag, source)

    def early(self, entries):
        """Where in a list: anywhere, or often near its beginning, which lies furthest back."""
        at = self.r.randrange(len(entries))
        return at // 8 if self.r.random() < 0.3 else at

    def sentence(self, names, verbs):
        r = self.r
        text = f"the {r.choice(names)} {r.choice(verbs)} the {r.choice(names)} {r.choice(names)}"
        if r.random() < 0.4:
            text += f", {r.choice(verbs)} the {r.choice(names)}"
        return text[0].upper() + text[1:] + "."

    def report(self, lines, follow, miss):
        """A long text in which codes lie, and questions for some of them, in any order."""
        r, w, room = self.r, self.w, max(60, self.end - len(self.ids))
        line, key, ask = r.choice(LINES)
        names, verbs = [w.word() for _ in range(40)], [w.word() for _ in range(12)]
        length, n = room * r.uniform(0.1, 0.8), r.randint(3, min(30, 4 + room // 100))
        told = {"c": r.choice(CODES), "p": r.choice(PLACES)}
        codes = [{**told, "n": self.world.fresh(w.name), "v": r.randint(10**5, 10**7 - 1)} for _ in range(n)]
        source = len(self.ids)
        self.context([prompts.Special(prompts.USER), r.choice(REPORT)])
        for i, code in enumerate(codes):
            self.context(["\n\n" + line.format(**code)])
            while len(self.ids) - source < length * (i + r.random()) / n:
                self.context(["\n\n" + " ".join(self.sentence(names, verbs) for _ in range(r.randint(1, 6)))])
        self.context([prompts.Special(prompts.ASSISTANT), prompts.Special(prompts.THINK_END)])
        self.context(prompts.answer("I have read it."))
        r.shuffle(codes)
        for code in codes[: r.randint(2, 12)]:
            rest = f" is {code['v']}."
            if r.random() < miss / 3:
                code, rest = {**told, "n": self.world.fresh(w.name)}, None
            self.user(r.choice(ask).format(**code))
            self.answers(key.format(**code), rest, "report", source)

    def small_talk(self, lines, follow, miss):
        question, reply = self.r.choice(SMALL_TALK)
        self.user(question)
        self.says(prompts.answer(reply), "talk")

    def copy(self, lines, follow, miss):
        """Training only: a file, and its lines again in other orders. Dense practice of copying."""
        f = self.file(lines)
        self.user(f"Print {f.path}.")
        self.says(prompts.call("read_file", path=f.path), "call")
        self.result(f.text)
        lines = list(f.lines)
        self.r.shuffle(lines)
        ids = prompts.encode(self.tok, prompts.answer("\n".join(lines)))
        self.ids += ids
        self.weights += [1.0] * len(ids)

    TURNS = {"read": 30, "list_read": 8, "grep": 8, "grep_all": 6, "list_only": 5, "read_nothing": 2,
             "user_fact": 10, "recall": 18, "small_talk": 1, "copy": 0, "report": 0}

    def run(self, n_tokens, turns=None, lines=(3, 7), follow=(1, 5), miss=0.25, tools=None):
        """Turns until n_tokens are there; what lies behind is cut off by the user. With reports
        among the turns, some sessions without the full tools text hold nothing else."""
        turns, self.end = {**self.TURNS, **(turns or {})}, n_tokens
        bare = tools is None and turns["report"] and self.r.random() < BARE * turns["report"] / 10
        if bare:
            turns = {"report": 1}
        names, shares = list(turns), list(turns.values())
        self.open(tools, bare)
        if n_tokens > FAR and turns.get("user_fact") and self.r.random() < 0.6:
            self.user_fact(lines, follow, miss)  # what is asked from furthest back is what was told first
        while len(self.ids) < n_tokens:
            getattr(self, self.r.choices(names, shares)[0])(lines, follow, miss)
        return self
