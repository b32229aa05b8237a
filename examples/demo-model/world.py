"""Files that the sessions are about: config, log, CSV and passwd-like, with their facts.

A fact is a key, unique in its session, and the rest of the line that begins with the key (or
holds it): the answer to a question about `key` is key + rest, quoted from the file.
"""
from dataclasses import dataclass, field

DIRS = ["conf", "etc", "logs", "data", "src", "docs", "var", "home", "lib", "app"]
LEVELS = ["INFO", "WARN", "ERROR", "DEBUG"]
SHELLS = ["/bin/bash", "/bin/sh", "/bin/zsh", "/usr/sbin/nologin"]
KIND_WORD = {"config": "config", "log": "log", "csv": "CSV", "passwd": "passwd"}


@dataclass
class File:
    kind: str
    folder: str
    name: str
    lines: list
    facts: list = field(default_factory=list)  # (key, rest)
    absent: list = field(default_factory=list)  # keys of the same form that it does not hold

    @property
    def path(self):
        return f"{self.folder}/{self.name}" if self.folder else self.name

    @property
    def text(self):
        return "\n".join(self.lines) + "\n"


class World:
    """Makes files whose keys do not repeat within one session."""

    def __init__(self, rng, words, joined=0.3):
        """joined: the share of values that are made of several parts."""
        self.r, self.w, self.joined, self.used = rng, words, joined, set()

    def fresh(self, draw):
        while True:
            x = draw()
            if x not in self.used:
                self.used.add(x)
                return x

    def folder(self):
        """Where a file lies; "" is the workspace itself."""
        r = self.r
        if r.random() < 0.08:
            return ""
        if r.random() < 0.5:
            return r.choice(DIRS)
        return self.w.word() if r.random() < 0.6 else r.choice(DIRS) + "/" + self.w.word()

    def value(self):
        """Mostly it will stand behind a space."""
        r, w, k = self.r, self.w, self.r.random()
        if k < 4 / 7 * (1 - self.joined):
            return w.number()
        if k < 1 - self.joined:
            return w.word(behind_space=True)
        return r.choice((lambda: w.word(behind_space=True) + r.choice("-_.") + w.number(),
                         lambda: w.word(behind_space=True) + "-" + w.word(),
                         lambda: "/" + w.word() + "/" + w.word(),
                         lambda: w.word(behind_space=True) + ":" + w.number(),
                         lambda: w.word(behind_space=True) + " " + w.word(behind_space=True)))()

    def comment(self):
        return "# " + " ".join(self.w.word() for _ in range(self.r.randint(1, 4)))

    def make(self, kind, n):
        return getattr(self, kind)(n)

    def config(self, n):
        r, w = self.r, self.w
        joint, equal = r.choice("..._"), r.choice(("=", " = ", ": "))
        heads = [w.word() for _ in range(max(1, n // 3))]
        tails = [w.word() for _ in range(max(2, n // 2))]
        plain = r.random() < 0.15
        style = r.choice((str.upper, str.capitalize)) if r.random() < 0.15 else None
        if style is str.capitalize:
            joint = ""

        def key():
            if style:
                return joint.join(map(style, (r.choice(heads), r.choice(tails), w.word())[r.randrange(2) :]))
            if plain:
                return w.word()
            if r.random() < 0.15:
                return w.word() + joint + w.word()
            return r.choice(heads) + joint + r.choice(tails if r.random() < 0.9 else [w.word()])

        name = "." * (r.random() < 0.05) + w.word() + r.choice((".conf", ".ini", ".env", ".cfg", ".yaml", ".txt"))
        f = File("config", self.folder(), name, [])
        for _ in range(n):
            if r.random() < 0.08:
                f.lines.append(self.comment())
            k, v = self.fresh(key), self.value()
            f.lines.append(k + equal + v)
            f.facts.append((k, equal + v))
        f.absent = [self.fresh(key) for _ in range(4)]
        return f

    def log(self, n):
        r, w = self.r, self.w
        noun = r.choice(("job", "request", "task", "user", "order", "run"))
        draw = {"user": w.word, "request": lambda: "%06x" % r.randrange(1 << 24)}.get(noun, w.number)
        verb = r.choice(("ended with", "took", "is", "on", "from", "failed:", "->"))
        f = File("log", self.folder(), w.word() + ".log", [])
        day, minute = f"2026-{r.randint(1, 12):02d}-{r.randint(1, 28):02d} ", r.randint(0, 600)
        day = day if r.random() < 0.4 else ""
        level = r.random() < 0.6
        for _ in range(n):
            minute += r.randint(0, 3)
            stamp = f"{day}{minute // 60:02d}:{minute % 60:02d} "
            k, v = noun + " " + self.fresh(draw), f" {verb} {self.value()}"
            f.lines.append(stamp + (r.choice(LEVELS) + " " if level else "") + k + v)
            f.facts.append((k, v))
        f.absent = [noun + " " + self.fresh(draw) for _ in range(4)]
        return f

    def csv(self, n):
        r, w = self.r, self.w
        f = File("csv", self.folder(), w.word() + ".csv", [])
        columns = r.randint(1, 3)
        f.lines.append(",".join(w.word() for _ in range(columns + 1)))
        for _ in range(n):
            k = self.fresh(w.word)
            v = "".join("," + (w.number() if r.random() < 0.5 else w.word()) for _ in range(columns))
            f.lines.append(k + v)
            f.facts.append((k, v))
        f.absent = [self.fresh(w.word) for _ in range(4)]
        return f

    def passwd(self, n):
        r, w = self.r, self.w
        f = File("passwd", self.folder(), "passwd" if r.random() < 0.7 else w.word() + ".passwd", [])
        for _ in range(n):
            k, uid = self.fresh(w.word), w.number()
            v = f":x:{uid}:{uid if r.random() < 0.5 else w.number()}::/home/{w.word()}:{r.choice(SHELLS)}"
            f.lines.append(k + v)
            f.facts.append((k, v))
        f.absent = [self.fresh(w.word) for _ in range(4)]
        return f

    def code_line(self, name=None):
        """A line as of a source file, and the name in it."""
        r, w = self.r, self.w
        name = name or w.word() + "_" + w.word()
        return r.choice((
            lambda: f"int {name}(struct {w.word()} *{w.word()});",
            lambda: f"    {name} = {w.word()}({w.number()});",
            lambda: f"static const struct {w.word()} {name}[] = {{",
            lambda: f"def {name}({w.word()}, {w.word()}):",
            lambda: f"    if ({name}({w.word()}) != {w.number()})",
            lambda: f"enum err {name}(const char *{w.word()}, struct error *e);",
            lambda: f" * {w.word()} {name}() {w.word()} {w.word()}",
            lambda: f"{name}: {w.word()} {w.word()} {w.word()}",
            lambda: f"- {name}: {w.word()} {w.word()}"))(), name
