#!/usr/bin/env python3
"""Runs the original RULER generators and prints one line for each file they made:

    TOKENIZER WORDS TASK LENGTH SAMPLES BYTES BLAKE2B-256

tests/evals/ruler_digests.txt holds such lines, so that test_ruler needs no Python. The original is
github.com/NVIDIA/RULER (Apache-2.0), checked out elsewhere; it needs numpy, scipy, nltk, tqdm, pyyaml,
tenacity, transformers and, for WORDS = wonderwords, the package of that name (3.0.1).

With WORDS = made the word lists are those that test_ruler makes for itself (made_word below), so
that the lines can be checked anywhere. english_words.json is always a made one: the original's lies
in Git LFS.

The original spends nearly all of its time on counting tokens. With --count-pieces its scripts, as they
are, get a counter in place of transformers (ruler_counter) that is faster and checks itself.
--first adds a line for the first samples of a file, which are those that a smaller file has.

    make_ruler_digests.py --ruler DIR/scripts --tokenizer NAME[=DIR] --words made|wonderwords \
        --lengths 4096:500,32768:20 --tasks vt,cwe --out DIR
"""
import argparse
import hashlib
import json
import os
import subprocess
import sys

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
LETTERS = ["bcdfghjklmnprstvwz", "aeiou"]
N_MADE = {"nounlist.txt": 700, "adjectivelist.txt": 150, "verblist.txt": 200}
N_RANDLE = 60000
N_BYTE_IDS = 257  # of a tokenizer before its merges


def made_word(i, n_letters):
    """Consonants and vowels in turn, drawn by a linear congruential generator seeded with i."""
    x, out = i & 0xFFFFFFFF, ""
    for k in range(n_letters):
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        out += LETTERS[k % 2][(x >> 16) % len(LETTERS[k % 2])]
    return out


def make_lists(folder):
    """Word lists with what the real ones hold, too: duplicates, blanks behind a word, a letter
    outside of ASCII, and words of which one goes on where the other's dash stands."""
    for salt, (name, n) in enumerate(sorted(N_MADE.items())):
        with open(os.path.join(folder, name), "w", encoding="utf-8", newline="") as f:
            for i in range(n):
                word = made_word(1000 * salt + i, 4 + i % 5)
                if i % 40 == 7:
                    word = made_word(1000 * salt + i - 1, 4 + (i - 1) % 5) + "-" + word
                if i % 50 == 9:
                    word += "\u00f1o"
                if i % 60 == 11:
                    word += " "
                f.write(word + ("\r\n" if i % 70 == 13 else "\n"))


def make_randle(path):
    with open(path, "w", encoding="utf-8") as f:
        json.dump({str(i): made_word(77777 + i, 3 + i % 9) for i in range(N_RANDLE)}, f)


def make_tokenizer(name, folder):
    """tokenizer_small with the merges of ruler_NAME_merges.txt."""
    with open(os.path.join(HERE, "tokenizer_small", "tokenizer.json"), encoding="utf-8") as f:
        j = json.load(f)
    with open(os.path.join(HERE, f"ruler_{name}_merges.txt"), encoding="utf-8") as f:
        merges = [line.rstrip("\n").split(" ") for line in f]
    vocab = {token: i for token, i in j["model"]["vocab"].items() if i < N_BYTE_IDS}
    vocab.update(("".join(pair), N_BYTE_IDS + i) for i, pair in enumerate(merges))
    j["model"].update(vocab=vocab, merges=merges)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(j, f, ensure_ascii=False)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 10**8,
                   "clean_up_tokenization_spaces": False}, f)


def template(ruler, task):
    """As the original's prepare.py joins it, for the model template `base`."""
    sys.path.insert(0, os.path.join(ruler, "data", "synthetic"))
    from constants import TASKS
    with open(os.path.join(ruler, "synthetic.yaml")) as f:
        config = yaml.safe_load(f)[task]
    base = TASKS[config["task"]]
    return config, base, base["template"] + base["answer_prefix"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ruler", required=True)
    p.add_argument("--tokenizer", required=True, 
                   help="NAME=DIR (with tokenizer_config.json), or a NAME whose merges lie here")
    p.add_argument("--words", choices=["made", "wonderwords"], required=True)
    p.add_argument("--lengths", required=True, help="LENGTH:SAMPLES,...")
    p.add_argument("--tasks",
                   default="niah_single_1,niah_multikey_2,niah_multikey_3,vt,cwe,fwe")
    p.add_argument("--out", required=True)
    p.add_argument("--count-pieces", action="store_true")
    p.add_argument("--first", default="", help="LENGTH:SAMPLES,...: one more line for those")
    a = p.parse_args()
    tok_name, _, tok_dir = a.tokenizer.partition("=")
    if not tok_dir:
        tok_dir = os.path.join(a.out, "tokenizer_" + tok_name)
        make_tokenizer(tok_name, tok_dir)
    env = dict(os.environ)
    packages = [os.path.join(HERE, "ruler_counter")] if a.count_pieces else []
    make_randle(os.path.join(a.ruler, "data", "synthetic", "json", "english_words.json"))
    if a.words == "made":
        lists = os.path.join(a.out, "lists")
        package = os.path.join(a.out, "package", "wonderwords")
        os.makedirs(lists, exist_ok=True)
        os.makedirs(package, exist_ok=True)
        make_lists(lists)
        with open(os.path.join(package, "__init__.py"), "w") as f:
            f.write("from . import random_word\n")
        with open(os.path.join(package, "random_word.py"), "w") as f:
            f.write("def _get_words_from_text_file(name):\n"
                    f"    with open({lists!r} + '/' + name, 'r', encoding='utf-8') as f:\n"
                    "        return [line.rstrip() for line in f.readlines()]\n")
        packages.append(os.path.join(a.out, "package"))
    env["PYTHONPATH"] = os.pathsep.join(packages)
    first = {spec.split(":")[0]: int(spec.split(":")[1]) for spec in a.first.split(",") if spec}
    for spec in a.lengths.split(","):
        length, samples = spec.split(":")
        for task in a.tasks.split(","):
            config, base, text = template(a.ruler, task)
            folder = os.path.join(a.out, tok_name, a.words, length)
            command = [sys.executable,
                       os.path.join(a.ruler, "data", "synthetic", config["task"] + ".py"),
                       "--save_dir", folder, "--save_name", task,
                       "--tokenizer_path", tok_dir, "--tokenizer_type", "hf",
                       "--max_seq_length", length,
                       "--tokens_to_generate", str(base["tokens_to_generate"]),
                       "--num_samples", samples, "--random_seed", "42", "--template", text]
            for key, value in config["args"].items():
                command += [f"--{key}", str(value)]
            subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
            with open(os.path.join(folder, task, "validation.jsonl"), "rb") as f:
                data = f.read()
            lines = data.splitlines(True)
            for n in [first.get(length), len(lines)]:
                part = b"".join(lines[:n])
                if n:
                    print(tok_name, a.words, task, length, n, len(part),
                          hashlib.blake2b(part, digest_size=32).hexdigest(), flush=True)


main()
