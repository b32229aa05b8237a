"""Makes tokenizer.json and fills the counts that depend on it into config.json.

    python make_tokenizer.py CONFIG_IN OUT_DIR
"""
import json
import os
import sys

import prompts
import sessions
import tokenizer
import words
from model import engram_primes, load_config


def texts():
    """The fixed parts of prompts, with weights."""
    forms = [*sessions.READ, *sessions.GREP, *sessions.GREP_ALL, *sessions.ASK, *sessions.LIST_READ,
             *sessions.WHICH, *sessions.REMEMBER, *sessions.SYSTEMS, sessions.MISSING,
             *(" the " + t + " of" for t in sessions.THINGS), *(x for pair in sessions.SMALL_TALK for x in pair)]
    for t in forms:
        yield t.translate(str.maketrans("", "", "{}")), 400
    yield from ((t, 400) for t in (" ended with", " took", " request", " task", " order", " run", " job", " user",
                                   "/home/", "/bin/bash", "/bin/sh", "/bin/zsh", "/usr/sbin/nologin", " INFO",
                                   " WARN", " ERROR", " DEBUG", "config log csv passwd conf ini env cfg",
                                   "a = b", "a -> b",
                                   "error: No such file or directory", "[no match in files]"))
    for name in prompts.TOOLS:
        shown = prompts.tools_text([name]).replace(prompts.DSML, "")
        yield shown, 60
    yield "".join(p for p in prompts.call("read_file", path="a") if not isinstance(p, prompts.Special)), 4000
    yield "<tool_result></tool_result>", 4000


def main(config_in, out_dir):
    with open(config_in, encoding="utf-8") as f:
        config = json.load(f)
    text = config["text_config"]
    t = tokenizer.make(list(texts()), words.TRAINING, text["vocab_size"])
    os.makedirs(out_dir, exist_ok=True)
    t.save(os.path.join(out_dir, "tokenizer.json"))
    _, text["engram_compressed_vocab_size"] = t.token_map()
    path = os.path.join(out_dir, "config.json")
    for _ in range(2):  # the table sizes follow from fields that are read back
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f, indent=2)
        text["engram_num_embeddings"] = [sum(p) for p in engram_primes(load_config(path))]


if __name__ == "__main__":
    main(*sys.argv[1:])
