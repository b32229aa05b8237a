#!/usr/bin/env python3
"""Writes engine/unicode_table.inc: the general categories that the pre-tokenizer asks for.

Python's own unicodedata is too old (14.0 in Python 3.11), so this needs the package unicodedata2,
exactly this version, whose data equals the regex engine of the reference tokenizer:

    pip install unicodedata2==16.0.0
    scripts/make_unicode_table.py > engine/unicode_table.inc
"""
import sys

import unicodedata2

WANT = "16.0.0"
CLASSES = "LMNPS"
PER_LINE = 5

if unicodedata2.unidata_version != WANT:
    sys.exit(f"unicodedata2 has Unicode {unicodedata2.unidata_version}, need {WANT}")


def ranges():
    """Runs of code points of one class, as (first, last, class)."""
    run = None
    for cp in range(0x110000):
        letter = unicodedata2.category(chr(cp))[0]
        if run and letter == run[2]:
            run[1] = cp
            continue
        if run and run[2] in CLASSES:
            yield run
        run = [cp, cp, letter]
    if run[2] in CLASSES:
        yield run


items = ["{0x%x, 0x%x, %s}," % tuple(r) for r in ranges()]
print(f"/* Unicode {WANT}: general categories {', '.join(CLASSES)}; made by scripts/make_unicode_table.py. */")
print(f"/* {len(items)} ranges {{first, last, class}}, ascending. */")
for i in range(0, len(items), PER_LINE):
    print(" ".join(items[i : i + PER_LINE]))
