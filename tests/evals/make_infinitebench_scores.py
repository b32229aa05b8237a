#!/usr/bin/env python3
"""Prints infinitebench_scores.inc: what InfiniteBench's own scorers give for generated texts.

    make_infinitebench_scores.py PATH/src/compute_scores.py > infinitebench_scores.inc

test_metric draws the same texts, so that only digests are committed, as with metric_scores.inc. The
file of the original is loaded as it is; of what it imports `tqdm` and `args` are stood in for, and
`evaluate` by the package that it calls (pip install rouge-score). Where the original raises an
exception the score is 0.
"""
import hashlib
import importlib.util
import random
import struct
import sys
import types

from rouge_score import rouge_scorer

N = 10000
N_SHOWN = 100

for name in ("tqdm", "evaluate", "args"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["tqdm"].tqdm = iter


class Rouge:
    """What evaluate.load("rouge") does for one text against its list of answers."""

    def compute(self, predictions, references, use_aggregator):
        scorer = rouge_scorer.RougeScorer(["rougeLsum"], use_stemmer=False)
        best = scorer.score_multi(references[0], predictions[0])["rougeLsum"]
        return {"rougeLsum": [best.fmeasure]}


sys.modules["evaluate"].load = lambda _: Rouge()
sys.modules["args"].parse_args = None
spec = importlib.util.spec_from_file_location("compute_scores", sys.argv[1])
original = importlib.util.module_from_spec(spec)
spec.loader.exec_module(original)

# name, task, pieces, answers (those of one sample joined by |), label of the original
CASES = [
    ("last_int", "code_run",
     ["12", "-5", "7", "+7", "1_0", "_", " ", "\n", ".", "`", "'", '"', ":", "a", "\u0663", "00",
      "\u00a0", "The answer is "],
     ["12", "-5", "7", "10", "3"], lambda a: int(a[0])),
    ("first_number", "math_find",
     ["12", "3.5", ".", "5", " ", "a", "\u0663", "0", "\n", "-", "12.50"],
     ["12", "3.5", "12.5", "3", "0", "5.0"],
     lambda a: float(a[0]) if "." in a[0] else int(a[0])),
    ("numbers", "math_calc",
     ["1", "2", "12", " ", ",", "[", "]", "-", "\n", "\u0663", "x", "03"],
     ["1|2|3", "12|1", "2"], lambda a: [int(x) for x in a]),
    ("upper_word", "longdialogue_qa_eng",
     ["marcus", "MARCUS", "Marcus", " ", "\n", ".", ",", "!", "{", "ma", "\u00df", "\u017f",
      "\ufb01", "x", "\u00a0", ":"],
     ["MARCUS", "SS", "MASS", "FIX", "S"], lambda a: a),
    ("code_option", "code_debug",
     ["A.", "B:", "A", "B", " ", "\n", "Option", "option", "answer is:", "is:", "answer:",
      "correct option is:", "foo", "foo_bar", "-", "*", "`", "x", "\u00e9", "The "],
     ["foo|A", "foo_bar|B", "A|C"], lambda a: a),
    ("option", "longbook_choice_eng",
     ["A", "B", "C", "D", "AB", "Ann", " ", "\n", ".", "answer is:", "answer:", "answer is",
      "option is", "x", ",", "The ", "\u00e9", "'"],
     ["Ann|A", "x y|B", "Bob|D"], lambda a: a),
    ("f1_words", "longbook_qa_eng",
     ["the", "a", "an", "The", " ", "cat", "dog", ".", "-", "\n", "\u2013", "\u00e9", "A",
      "\u0301", "_", "ant", "\u00a0", "x\u00b2"],
     ["the cat", "cat dog|a dog", "ant", "\u00e9 cat cat"], lambda a: a),
    ("f1_chars", "longbook_qa_chn",
     ["\u4e2d", "\u56fd", "\uff0c", "\u3002", " ", "a", "A", "b", "\uff01", "\n", "\u6587",
      "\u3000", "x", "\u00b7", "\u2026"],
     ["\u4e2d\u56fd", "\u4e2d\u6587a|\u56fd", "ab"], lambda a: a),
    ("rouge_lsum", "longbook_sum_eng",
     ["the cat", "the", " ", "\n", "dog", ".", "Cat", "\u0130", "-", "sat 12", "\n\n", " on", "...",
      "\u00e9", "it", " the dog sat"],
     ["the cat\nsat on the dog", "dog dog cat|it sat\n12\n\nthe dog", "the\n.\nthe the"], lambda a: a),
]


def score(task, pred, label):
    try:
        return float(original.get_score_one(pred, label, task, ""))
    except ValueError:
        return 0.0


def emit(seed, name, task, pieces, answers, label):
    r = random.Random(seed)
    scores, texts = [], hashlib.blake2b(digest_size=32)
    for _ in range(N):
        refs = answers[r.randrange(len(answers))].split("|")
        pred = "".join(pieces[r.randrange(len(pieces))] for _ in range(r.randrange(9)))
        for s in [pred] + refs:
            texts.update(s.encode() + b"\0")
        scores.append(score(task, pred, label(refs)))
    digest = hashlib.blake2b(struct.pack(f"<{N}d", *scores), digest_size=32).hexdigest()
    print(f'static const struct scores {name}_scores = {{\n    "{texts.hexdigest()}",')
    print(f'    "{digest}",\n    {sum(1 for s in scores if s)},')
    print("    {" + ", ".join(s.hex() for s in scores[:N_SHOWN]) + "}};\n")


print("/* Made by make_infinitebench_scores.py from src/compute_scores.py of OpenBMB/InfiniteBench,\n"
      " * revision 88b3daa. struct scores: metric_scores.inc. */")
for i, case in enumerate(CASES):
    emit(100 + i, *case)
