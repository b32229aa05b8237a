"""Words of the generator. Every fifth word, real or invented, is held out for the evaluation."""
import os
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
CONSONANTS, VOWELS, LETTERS = "bcdfghjklmnprstvwz", "aeiou", "abcdefghijklmnopqrstuvwxyz"


def is_held_out(word):
    return zlib.crc32(word.lower().encode()) % 5 == 0


def _load():
    with open(os.path.join(HERE, "words.txt"), encoding="utf-8") as f:
        words = f.read().split()
    return [w for w in words if not is_held_out(w)], [w for w in words if is_held_out(w)]


TRAINING, HELD_OUT = _load()


class Words:
    """Draws words: real ones, pronounceable ones, random letters, short codes, and words put
    together from pieces."""

    def __init__(self, rng, held_out=False, pieces=((), ())):
        """pieces: Tokenizer.letters. Some of these tokens stand for words of the prompts only, and
        would never be copied in training were no words made of them."""
        self.rng, self.held_out = rng, held_out
        self.pieces, self.spaced = pieces
        self.real = HELD_OUT if held_out else TRAINING

    def _pieced(self, first):
        """first: what the first piece is drawn from."""
        r = self.rng
        w = r.choice(first)
        for _ in range(r.choice((0, 1, 1, 2))):
            w += r.choice(self.pieces) if r.random() < 0.6 else self._syllable()
        return w

    def _syllable(self):
        r = self.rng
        return r.choice(CONSONANTS) + r.choice(VOWELS) + (r.choice("lnrst") if r.random() < 0.3 else "")

    def _invent(self):
        r, kind = self.rng, self.rng.random()
        if kind < 0.6:
            return "".join(self._syllable() for _ in range(r.randint(1, 3)))
        if kind < 0.9:
            return "".join(r.choice(LETTERS) for _ in range(r.randint(3, 8)))
        return "".join(r.choice(LETTERS + "0123456789") for _ in range(r.randint(3, 6)))

    def word(self, behind_space=False):
        """behind_space: the word will stand behind a space, where some tokens are of another kind."""
        kind = self.rng.random()
        if kind < 0.5:
            return self.rng.choice(self.real)
        first = self.pieces if not behind_space or self.rng.random() < 0.2 else self.spaced
        while True:
            w = self._pieced(first) if first and kind < (0.9 if behind_space else 0.75) else self._invent()
            if is_held_out(w) == self.held_out:
                return w

    def name(self):
        """A name of three syllables, with a capital."""
        while True:
            w = "".join(self.rng.choice(CONSONANTS) + self.rng.choice(VOWELS) for _ in range(3))
            if is_held_out(w) == self.held_out:
                return w.capitalize()

    def number(self):
        r = self.rng
        return str(r.choice((r.randint(1, 99), r.randint(100, 999), r.randint(1000, 9999),
                             r.randint(10000, 999999))))
