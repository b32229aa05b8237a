#!/usr/bin/env python3
"""Prints pyrandom_values.inc: what random.Random and numpy.random.RandomState draw."""
import hashlib
import random

import numpy


def c(values):
    return "{" + ", ".join(f"{v}u" for v in values) + "}"


print("""/* Made by make_pyrandom_values.py. */
static const struct py_values {
    uint64_t seed;
    uint32_t words[4];
    double reals[3];
    uint32_t below[6];
    uint64_t u128[2];
    uint32_t choices[5], pool5[5], set5[5], pool6[6], set6[6], shuffled[12], last;
} py_values[] = {""")
for seed in (0, 1, 42, 2**32 - 1, 2**32, 0x123456789ABCDEF0):
    r = random.Random(seed)
    print(f"    {{UINT64_C({seed}), {c(r.getrandbits(32) for _ in range(4))},")
    print("     {" + ", ".join(r.random().hex() for _ in range(3)) + "},")
    print(f"     {c(r.randrange(1 + i if i < 2 else 1000 * i) for i in range(6))},")
    big = r.getrandbits(128)
    print(f"     {{UINT64_C({big & 2**64 - 1}), UINT64_C({big >> 64})}},")
    print(f"     {c(r.choices(range(26), k=5))}, {c(r.sample(range(21), 5))},")
    print(f"     {c(r.sample(range(22), 5))}, {c(r.sample(range(85), 6))},")
    print(f"     {c(r.sample(range(86), 6))},")
    v = list(range(12))
    r.shuffle(v)
    print(f"     {c(v)}, {r.getrandbits(32)}u}},")
print("};\n")
r = random.Random(42)
data = b"".join(r.getrandbits(32).to_bytes(4, "little") for _ in range(5000))
digest = hashlib.blake2b(data, digest_size=32).hexdigest()
print(f'#define PY_5000_WORDS \\\n    "{digest}"\n')
print("static const struct np_values {\n    int64_t low, high, value;\n} np_values[] = {")
r = numpy.random.RandomState(42)
for i in range(40):
    low, high = [(10000, 99999), (0, 1), (-5, 5), (0, 2**31 - 1)][i % 4]
    print(f"    {{{low}, {high}, {r.randint(low, high)}}},")
print("};")
