#!/usr/bin/env python3
"""Prints metric_scores.inc: scores of generated texts by the Python that our scorers follow.

test_metric draws the same texts (random.Random is ours bit for bit, test_pyrandom), so that only
digests of the scores and the first of them are committed. The two match functions do what
NVIDIA/RULER's scripts/eval does for one sample, ratio() what MRCR's data card describes.
"""
import difflib
import hashlib
import random
import re
import struct

N = 10000
N_SHOWN = 100
POOLS = [
    "aAbBcC", "aAbB \n\t,.:'", "\u03a3\u03c3\u03c2\u0391\u03b1 '",
    "\u0130Ii\u0131\u00df\u1e9e\u00e9\u00c9e\u0301", "\u01c4\u01c5\u01c6\u2160\u24b6\u00aa\u02b0",
    "\U00010400\U00010428\U0001d400\u4e2d\u1c90", "\u00a0\u2003\u0085\u001c\u3000 x", "0123456789",
]


def text(r, pools, max_len):
    out = []
    for _ in range(r.randrange(max_len + 1)):
        pool = POOLS[pools[r.randrange(len(pools))]]
        out.append(pool[r.randrange(len(pool))])
    return "".join(out)


ALL = list(range(len(POOLS)))


# ---- the functions -----------------------------------------------------------------------------

def clean(pred):
    return re.compile(r"[\x00-\x1f]").sub("\n", pred.strip()).strip()


def all_match(pred, refs):
    return sum([1.0 if r.lower() in clean(pred).lower() else 0.0 for r in refs]) / len(refs)


def any_match(pred, refs):
    return max([1.0 if r.lower() in clean(pred).lower() else 0.0 for r in refs])


def set_f1(pred, refs):
    found = re.search(r"Final Answer: ?\[(.*)\]", pred.rstrip().split("\n")[-1])
    if not found:
        return 0.0
    have, want = {x.strip() for x in found.group(1).split(",") if x.strip()}, set(refs)
    if not have or not have & want:
        return 0.0
    recall, precision = len(have & want) / len(want), len(have & want) / len(have)
    return 2 * (recall * precision) / (recall + precision)


def ratio(pred, answer):
    prefix = answer[:10]
    if not pred.startswith(prefix):
        return 0.0
    return difflib.SequenceMatcher(None, pred[len(prefix):], answer[len(prefix):]).ratio()


def choice(pred, answer):  # LongBench v2, pred.py: extract_answer
    pred = pred.replace("*", "")
    found = re.search(r"The correct answer is \(([A-D])\)", pred)
    found = found or re.search(r"The correct answer is ([A-D])", pred)
    return 1.0 if found and found.group(1) == answer else 0.0


def first_int(pred, answer):  # InfiniteBench, compute_scores.py: first_int_match
    for item in re.split("[^0-9]", pred):
        if item != "":
            return 1.0 if item == answer else 0.0
    return 0.0


def word(pred, answer):  # InfiniteBench, compute_scores.py: get_score_one_kv_retrieval
    for c in ["\n", ":", '"', "'", ".", ",", "?", "!", "{", "}"]:
        pred = pred.replace(c, " ")
    return 1.0 if answer in pred.split() else 0.0


# ---- the texts; test_metric.c draws them the same way --------------------------------------------

def draw_match(r):
    refs = [x if x else "b" for x in (text(r, ALL, 4).replace("\n", "a") for _ in
                                      range(1 + r.randrange(4)))]
    pred = text(r, ALL, 30)
    for ref in refs:
        if r.randrange(2):
            pred += [ref, ref.upper(), ref.lower()][r.randrange(2) * 2] + text(r, ALL, 5)
    return pred, refs


MARKS = ["Final Answer: [", "Final Answer:[", "Final Answer:  [", "Final answer: [", "["]
ENDS = ["]", "]\n", "] ", "", "].", "]]"]


def draw_set(r):
    refs = [x for x in (text(r, [7], 2) for _ in range(1 + r.randrange(5)))]
    refs = [x if x else "0" for x in refs]
    items = [text(r, [6, 7], 1) + (refs[r.randrange(len(refs))] if r.randrange(3) else
                                   text(r, [0, 7], 2)) for _ in range(r.randrange(7))]
    pred = text(r, [1], 8) + MARKS[r.randrange(5) if r.randrange(2) else 0]
    return pred + ",".join(items) + ENDS[r.randrange(6)], refs


def draw_ratio(r):
    small = [r.randrange(len(POOLS))]
    answer = "0123456789" + text(r, ALL if r.randrange(2) else small, 260).replace("\n", " ")
    pred = answer
    for _ in range(r.randrange(6)):
        at = r.randrange(len(pred) + 1)
        kind, n = r.randrange(3), 1 + r.randrange(12)
        new = text(r, ALL if r.randrange(2) else small, 12)
        if kind == 0:
            pred = pred[:at] + new + pred[at:]
        elif kind == 1:
            pred = pred[:at] + pred[at + n:]
        else:
            pred = pred[:at] + new + pred[at + n:]
    return pred, [answer]


CHOICE = ["The correct answer is (", "The correct answer is ", "the correct answer is (", "*", "A",
          "B", "C", "E", ")", "**", "\n", " ", "(D)", "The correct answer is (A)", "x"]
INTS = ["12", "7", " ", "a", "-", ".", "\n", "001", "\u0663", "0"]
WORDS = ["abc-1", '"', ":", " ", "\n", "{", "xyz", ".", "\u00a0", ",", "\u2003", "}", "'", "!", "?",
         "\u00e9", "\x1c", "("]


def draw_from(pieces, refs):
    def draw(r):
        ref = refs[r.randrange(len(refs))]
        return "".join(pieces[r.randrange(len(pieces))] for _ in range(r.randrange(9))), [ref]
    return draw


# ---- output ------------------------------------------------------------------------------------

def emit(name, seed, draw, score):
    r = random.Random(seed)
    scores, texts = [], hashlib.blake2b(digest_size=32)
    for _ in range(N):
        pred, refs = draw(r)
        for s in [pred] + refs:
            texts.update(s.encode() + b"\0")
        scores.append(score(pred, refs))
    digest = hashlib.blake2b(struct.pack(f"<{N}d", *scores), digest_size=32).hexdigest()
    print(f'static const struct scores {name} = {{\n    "{texts.hexdigest()}",')
    print(f'    "{digest}",\n    {sum(1 for s in scores if s)},')
    print("    {" + ", ".join(s.hex() for s in scores[:N_SHOWN]) + "}};\n")


NEW = [(0xA7CB, 0xA7CF), (0xA7D2, 0xA7D5), (0xA7DA, 0xA7DF), (0x1C89, 0x1C8A), (0x10D50, 0x10D65),
       (0x16EA0, 0x16EB8)]  # cased since Unicode 15


def lower_digests():
    h = hashlib.blake2b(digest_size=32)
    for cp in range(0x110000):
        if 0xD800 <= cp <= 0xDFFF or any(a <= cp <= b for a, b in NEW):
            continue
        if chr(cp).lower() != chr(cp):
            h.update((chr(cp) + chr(cp).lower()).encode() + b"\n")
    print(f'#define LOWER_OF_ALL \\\n    "{h.hexdigest()}"')
    h = hashlib.blake2b(digest_size=32)
    for cp in range(1, 0x590):
        c = chr(cp)
        h.update(("a\u03a3" + c + " " + c + "\u03a3 a" + c + "\u03a3 a\u03a3" + c + "a").lower()
                 .encode())
    print(f'#define LOWER_OF_SIGMA \\\n    "{h.hexdigest()}"\n')


print("""/* Made by make_metric_scores.py. */
struct scores {
    const char *texts, *all; /* BLAKE2b of the texts, and of the scores as little-endian doubles */
    int n_not_zero;
    double first[%d];
};
""" % N_SHOWN)
lower_digests()
emit("all_match_scores", 1, draw_match, all_match)
emit("any_match_scores", 2, draw_match, any_match)
emit("set_f1_scores", 3, draw_set, set_f1)
emit("ratio_scores", 4, draw_ratio, lambda p, refs: ratio(p, refs[0]))
emit("choice_scores", 5, draw_from(CHOICE, ["A", "B", "C", "D"]), lambda p, refs: choice(p, refs[0]))
emit("first_int_scores", 6, draw_from(INTS, ["12", "7", "127", "001"]),
     lambda p, refs: first_int(p, refs[0]))
emit("word_scores", 7, draw_from(WORDS, ["abc-1", "xyz", "\u00e9", "abc-1xyz"]),
     lambda p, refs: word(p, refs[0]))
