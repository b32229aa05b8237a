"""Number formats and files of a checkpoint, as model.md sections 2.1 and 3 describe them.

Decoding is by tables and by ldexp, nothing is approximated: every weight is an exact float64.
"""
import json
import os
import struct

import numpy as np

FP4 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])


def e4m3_table():
    """Value of every code; NaN for 0x7f and 0xff."""
    table = np.empty(256)
    for code in range(256):
        sign, exponent, mantissa = -1.0 if code & 128 else 1.0, code >> 3 & 15, code & 7
        if code & 127 == 127:
            table[code] = np.nan
        elif exponent:
            table[code] = sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        else:
            table[code] = sign * mantissa * 2.0 ** -9
    return table


E4M3 = e4m3_table()
FP4_PAIRS = np.stack([FP4[np.arange(256) & 15], FP4[np.arange(256) >> 4]], 1)  # low nibble first
E4M3_POSITIVE = E4M3[:127]


def e8m0(codes):
    return np.ldexp(1.0, codes.astype(np.int32) - 127)


def bf16_to_f64(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def f64_to_bf16(x):
    """Nearest even, by way of float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def nearest_code(x, grid):
    """Index of the nearest value of an ascending grid that starts at 0; ties to the even index."""
    middle = (grid[1:] + grid[:-1]) / 2
    low = np.searchsorted(middle, x, side="left")  # x on a middle: the lower index
    tie = (low < len(middle)) & (x == middle[np.minimum(low, len(middle) - 1)])
    return np.where(tie & (low % 2 == 1), low + 1, low)


def round_e4m3(x):
    return np.copysign(E4M3_POSITIVE[nearest_code(np.minimum(np.abs(x), 448), E4M3_POSITIVE)], x)


def round_e2m1(x):
    return np.copysign(FP4[:8][nearest_code(np.minimum(np.abs(x), 6), FP4[:8])], x)


def power_of_two_above(amax, inverse):
    """2^ceil(log2(amax * inverse)), the product in float32."""
    mantissa, exponent = np.frexp((amax.astype(np.float32) * np.float32(inverse)).astype(np.float64))
    return np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent))


def grouped(x, size):
    return x.reshape(x.shape[:-1] + (x.shape[-1] // size, size))


def fake_fp8(x):
    """Window keys: E4M3 in groups of 32 with a power of two."""
    g = grouped(np.asarray(x), 32)
    s = power_of_two_above(np.maximum(np.abs(g).max(-1, keepdims=True), 1e-4), np.float32(1) / np.float32(448))
    return (round_e4m3(g / s) * s).reshape(x.shape)


def fake_fp4_row(x):
    """Compressed rows: E2M1 in groups of 16, scale E4M3."""
    g = grouped(np.asarray(x), 16)
    s = round_e4m3(np.maximum(np.abs(g).max(-1, keepdims=True), 6 * 2.0 ** -9) / 6)
    return (round_e2m1(g / s) * s).reshape(x.shape)


def fake_fp4_index(x):
    """Index keys and queries: E2M1 in groups of 32 with a power of two."""
    g = grouped(np.asarray(x), 32)
    s = power_of_two_above(np.maximum(np.abs(g).max(-1, keepdims=True), 6 * 2.0 ** -126),
                           np.float32(1) / np.float32(6))
    return (round_e2m1(g / s) * s).reshape(x.shape)


DTYPES = {"F32": "<f4", "BF16": "<u2", "I8": "i1", "F8_E4M3": "u1", "F8_E8M0": "u1", "I64": "<i8", "I32": "<i4",
          "U8": "u1"}


class Folder:
    """The tensors of a folder of safetensors files, mapped, by name."""

    def __init__(self, path):
        self.where = {}
        names = [n for n in sorted(os.listdir(path)) if n.endswith(".safetensors")]
        for name in names:
            file = os.path.join(path, name)
            self.add(file)

    def add(self, file):
        with open(file, "rb") as f:
            (n,) = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(n))
        data = np.memmap(file, np.uint8, "r", 8 + n)
        for key, t in header.items():
            if key != "__metadata__":
                self.where[key] = (data, t)

    def __contains__(self, name):
        return name in self.where

    def dtype(self, name):
        return self.where[name][1]["dtype"]

    def raw(self, name):
        data, t = self.where[name]
        a, b = t["data_offsets"]
        return data[a:b].view(DTYPES[t["dtype"]]).reshape(t["shape"])

    def plain(self, name):
        """A BF16 or F32 tensor."""
        x = self.raw(name)
        return bf16_to_f64(x) if self.dtype(name) == "BF16" else x.astype(np.float64)

    def fp8(self, prefix, rows=slice(None)):
        """X.weight with a scale for each tile of 32 x 32."""
        scale = np.repeat(e8m0(self.raw(prefix + ".scale")), 32, 0)[:self.raw(prefix + ".weight").shape[0]]
        return E4M3[self.raw(prefix + ".weight")[rows]] * np.repeat(scale, 32, 1)[rows]

    def fp8_rows(self, prefix, rows):
        """Rows of X.weight with scales for each row and 32 columns."""
        return E4M3[self.raw(prefix + ".weight")[rows]] * np.repeat(e8m0(self.raw(prefix + ".scale")[rows]), 32, -1)

    def fp4(self, prefix):
        packed = self.raw(prefix + ".weight").view(np.uint8)
        x = FP4_PAIRS[packed].reshape(len(packed), -1, 32)
        x *= e8m0(self.raw(prefix + ".scale"))[:, :, None]
        return x.reshape(len(packed), -1)


def write_safetensors(path, tensors):
    """tensors: name -> (dtype name, array of the bytes' type)."""
    header, at = {}, 0
    order = sorted(tensors, key=lambda n: (-np.dtype(DTYPES[tensors[n][0]]).itemsize, n))
    for name in order:
        dtype, x = tensors[name]
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            f.write(np.ascontiguousarray(tensors[name][1]).tobytes())
