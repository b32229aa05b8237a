"""The tokenizer: made here, written in the real tokenizer.json form, and applied here.

Byte-level BPE behind the three splits of the model family. The merges are chosen so that a word
has the same tokens wherever it stands - at the start of a line, behind a space, a dot or a slash:
copying a name from a question into a call, or finding it in a file, is then copying of tokens.
So no merge joins a letter with anything else, but for a few words of the templates, which may take
the space before them. `encode` covers ASCII text; other text the engine splits differently.
"""
import collections
import functools
import json
import re
import unicodedata

SPECIAL = [
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜System｜>", "<｜User｜>",
    "<｜Assistant｜>", "<|EOT|>", "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>",
    "<｜action｜>", "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜title｜>", "<｜read_url｜>",
    "<｜deepseek_image｜>",
]
PATTERNS = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]
_MARKS = r"!-/:-@\[-`{-~"
_WORD = re.compile(
    rf"[{_MARKS}][A-Za-z]+|[^\r\nA-Za-z{_MARKS}]?[A-Za-z]+| ?[{_MARKS}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_NUMBER = re.compile(r"[0-9]{1,3}")
_LETTERS = re.compile(r"[A-Za-z]+")


def _byte_alphabet():
    """The characters that stand for the 256 bytes in tokenizer.json."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(spare)) for b in range(256)]


ALPHABET = _byte_alphabet()


def _matches(expression, text):
    """The matches and the gaps between them."""
    at = 0
    for m in expression.finditer(text):
        if m.start() > at:
            yield text[at : m.start()], False
        yield m.group(), True
        at = m.end()
    if at < len(text):
        yield text[at:], False


def pieces(text):
    for part, is_number in _matches(_NUMBER, text):
        if is_number:
            yield part
        else:
            yield from (p for p, _ in _matches(_WORD, part))


class Tokenizer:
    def __init__(self, merges):
        """merges: pairs of byte strings, by rank."""
        self.merges = merges
        self.bytes = [s.encode() for s in SPECIAL] + [bytes([b]) for b in range(256)]
        self.bytes += [a + b for a, b in merges]
        self.special = {s: i for i, s in enumerate(SPECIAL)}
        self.n_special = len(SPECIAL)
        ids = {b: i for i, b in enumerate(self.bytes) if i >= self.n_special}
        self.rank = {(ids[a], ids[b]): (r, ids[a + b]) for r, (a, b) in enumerate(merges)}
        self.cache = {}

    @staticmethod
    def load(path):
        with open(path, encoding="utf-8") as f:
            model = json.load(f)["model"]
        byte = {c: b for b, c in enumerate(ALPHABET)}
        spell = lambda s: bytes(byte[c] for c in s)
        return Tokenizer([tuple(spell(x) for x in m.split(" ")) for m in model["merges"]])

    def save(self, path):
        added = [{"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": False,
                  "normalized": False, "special": True} for i, s in enumerate(SPECIAL)]
        spelled = lambda bs: "".join(ALPHABET[b] for b in bs)
        vocab = {spelled(b): i for i, b in enumerate(self.bytes) if i >= self.n_special}
        split = lambda p: {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                 "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                 "vocab": {**{s: i for i, s in enumerate(SPECIAL)}, **vocab},
                 "merges": [spelled(a) + " " + spelled(b) for a, b in self.merges]}
        whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
                 "normalizer": {"type": "Sequence", "normalizers": []},
                 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*map(split, PATTERNS), level]},
                 "post_processor": {**level, "use_regex": False}, "decoder": {**level, "use_regex": True},
                 "model": model}
        with open(path, "w", encoding="utf-8") as f:
            json.dump(whole, f, ensure_ascii=False, indent=0)

    def _piece(self, piece):
        ids = self.cache.get(piece)
        if ids is None:
            ids = [self.n_special + b for b in piece.encode()]
            while len(ids) > 1:
                never = (1 << 30, 0)
                (rank, new), at = min((self.rank.get(pair, never), i) for i, pair in enumerate(zip(ids, ids[1:])))
                if rank == never[0]:
                    break
                ids[at : at + 2] = [new]
            self.cache[piece] = ids
        return ids

    def encode(self, text):
        """Ids of plain text; special tokens are not looked for."""
        return [i for p in pieces(text) for i in self._piece(p)]

    def decode(self, ids):
        return b"".join(self.bytes[i] for i in ids).decode("utf-8", "replace")

    @functools.cached_property
    def letters(self):
        """(tokens of two letters and more, those that are there with a space before them too)."""
        texts = [b.decode("utf-8", "replace") for b in self.bytes[self.n_special :]]
        plain, spaced = ([t.strip() for t in texts if len(t.strip()) > 1 and _LETTERS.fullmatch(t.strip())
                          and (t[0] == " ") == with_space] for with_space in (False, True))
        return plain, spaced

    def token_map(self):
        """For each id the number of its normal form, and how many numbers there are."""
        numbers, result = {}, []
        for i, b in enumerate(self.bytes):
            text = b.decode("utf-8", "replace")
            key = "".join(ALPHABET[x] for x in b) if "\ufffd" in text else normal_form(text) or text
            result.append(numbers.setdefault(key, len(numbers)))
        return result, len(numbers)


def normal_form(text):
    t = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    t = "".join(c for c in t if not unicodedata.category(c).startswith("M"))
    t = "".join(c.lower() if len(c.lower()) == 1 else c for c in t)
    t = re.sub("[ \t\r\n]+", " ", t)
    return " " if t == " " else t.strip("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
                                        + "".join(map(chr, range(0x2000, 0x200B))))


# ---- making one ----------------------------------------------------------------------------


def _train(counts, n, taken):
    """n merges of plain BPE over {bytes: count}; ties go to the smaller pair. Extends taken."""
    words = [([bytes([b]) for b in w], k) for w, k in sorted(counts.items())]
    merges = []
    while len(merges) < n:
        pairs = collections.Counter()
        for parts, k in words:
            for pair in zip(parts, parts[1:]):
                pairs[pair] += k
        pairs = {p: k for p, k in pairs.items()}
        if not pairs:
            break
        best = min(pairs, key=lambda p: (-pairs[p], p))
        joined = best[0] + best[1]
        if joined not in taken:
            taken.add(joined)
            merges.append(best)
        for parts, _ in words:
            i = 0
            while i < len(parts) - 1:
                if (parts[i], parts[i + 1]) == best:
                    parts[i : i + 2] = [joined]
                i += 1
    return merges


def make(texts, words, vocab_size):
    """texts: [(text, weight)] of the fixed parts of prompts; words: the open vocabulary."""
    letters, marks, spaced = collections.Counter(), collections.Counter(), collections.Counter()
    for w in words:
        letters[w.encode()] += 2
    for text, weight in texts:
        for p in pieces(text):
            for w in _LETTERS.findall(p):
                letters[w.encode()] += weight
            if p[0] == " " and p[1:].isalpha() and len(p) > 3:
                spaced[p[1:].encode()] += weight
            if not _LETTERS.search(p) and not p[0].isdigit() and not p.isspace() and len(p) > 1:
                marks[p.encode()] += weight
    taken = set()
    merges = [(b"%d" % a, b"%d" % b) for a in range(10) for b in range(10)]
    merges += _train(dict(marks.most_common(24)), 48, taken)
    n_space = 110
    n_letters = vocab_size - len(SPECIAL) - 256 - len(merges) - n_space
    merges += _train(letters, n_letters, taken)
    single = Tokenizer(merges)
    whole = [w for w, _ in spaced.most_common() if len(single.encode(w.decode())) == 1]
    merges += [(b" ", w) for w in whole[:n_space]]
    short = vocab_size - len(SPECIAL) - 256 - len(merges)
    assert short == 0, f"{short} merges are missing"
    return Tokenizer(merges)
