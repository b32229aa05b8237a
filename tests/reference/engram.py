"""Which rows of an Engram table each position reads: model.md, 9.1 and 9.2. From token ids alone."""
import json
import os
import re
import unicodedata

import numpy as np

SPACE = "\ue000"
# White_Space of Unicode, which str.strip() does not use: it also strips U+001C to U+001F.
WHITE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"


def byte_letters():
    """The GPT-2 alphabet: letter -> byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, n = {chr(b): b for b in plain}, 0
    for b in range(256):
        if b not in plain:
            letters[chr(256 + n)] = b
            n += 1
    return letters


def normalise(text):
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    text = "".join(c for c in text if not unicodedata.category(c).startswith("M"))
    text = "".join(c.lower() for c in text)
    text = re.sub("[ \t\r\n]+", " ", text)
    if text == " ":
        text = SPACE
    return text.strip(WHITE).replace(SPACE, " ")


def compressed_ids(folder, vocab_size):
    """Token id -> compressed id."""
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        tokenizer = json.load(f)
    letters, spelling, added = byte_letters(), {}, {}
    for word, i in tokenizer["model"]["vocab"].items():
        spelling[i] = word
    for token in tokenizer["added_tokens"]:
        added[token["id"]] = token["content"]
    numbers, out = {}, np.zeros(vocab_size, np.int64)
    for i in range(vocab_size):
        word = added.get(i, spelling.get(i, ""))
        text = word if i in added else bytes(letters[c] for c in word).decode("utf-8", "replace")
        key = word if "\ufffd" in text else normalise(text) or text
        out[i] = numbers.setdefault(key, len(numbers))
    return out, len(numbers)


def is_prime(n):
    if n < 2:
        return False
    k = 2
    while k * k <= n:
        if n % k == 0:
            return False
        k += 1
    return True


class Hash:
    """The row numbers of every Engram layer."""

    def __init__(self, config, folder):
        self.c = config
        self.compressed, n = compressed_ids(folder, config.vocab_size)
        assert n == config.engram_compressed_vocab_size, f"{n} compressed ids"
        self.primes, self.multipliers = [], []
        at = config.engram_vocab_size - 1
        for layer in config.engram_layer_ids:
            primes = []
            for _ in range((config.engram_max_ngram_size - 1) * config.engram_n_heads):
                at += 1
                while not is_prime(at):
                    at += 1
                primes.append(at)
            self.primes.append(primes)
            bound = (2 ** 63 - 1) // config.engram_compressed_vocab_size // 2
            draw = np.random.default_rng(10007 * layer).integers(0, bound, config.engram_max_ngram_size)
            self.multipliers.append([int(m) * 2 + 1 for m in draw])

    @staticmethod
    def table_sizes(config):
        """What engram_num_embeddings has to say for these fields."""
        at, out = config["engram_vocab_size"] - 1, []
        for _ in config["engram_layer_ids"]:
            total = 0
            for _ in range((config["engram_max_ngram_size"] - 1) * config["engram_n_heads"]):
                at += 1
                while not is_prime(at):
                    at += 1
                total += at
            out.append(total)
        return out

    def rows(self, which, ids):
        """[positions, (n - 1) * heads] of the which-th Engram layer, offsets included."""
        n, pad = self.c.engram_max_ngram_size, int(self.compressed[self.c.engram_pad_token_id])
        out = []
        for p in range(len(ids)):
            back = [int(self.compressed[ids[p - s]]) if p >= s else pad for s in range(n)]
            product = [t * m for t, m in zip(back, self.multipliers[which])]
            h, row, offset, k = product[0], [], 0, 0
            for order in range(1, n):
                h ^= product[order]
                for _ in range(self.c.engram_n_heads):
                    prime = self.primes[which][k]
                    row.append(h % prime + offset)
                    offset += prime
                    k += 1
            out.append(row)
        return np.array(out)
