#!/usr/bin/env python3
"""Writes core/tests/golden/formats/: what the Python package `gguf` makes of known bytes and floats.

    python3 -m venv /tmp/gguf && /tmp/gguf/bin/pip install gguf==0.19.0 numpy
    /tmp/gguf/bin/python scripts/format_vectors.py

    NAME.bin          blocks, then their elements as f32
    NAME.encode.bin   f32 elements, then the blocks they encode to
    sums.txt          lines `what name sum` over more data than is worth storing:
                      decode (4096 random blocks), encode (4096 blocks), codebook (its values)

The random data of the sums come from a generator that core/tests/formats.rs repeats.
"""

import pathlib

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T

TARGET = pathlib.Path(__file__).resolve().parent.parent / "core/tests/golden/formats"

# Offsets of the f16 scales in a block.
F16_SCALES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
    T.IQ1_S: [0], T.IQ1_M: [], T.IQ2_XXS: [0], T.IQ2_XS: [0], T.IQ2_S: [0], T.IQ3_XXS: [0], T.IQ3_S: [0],
    T.IQ4_NL: [0], T.IQ4_XS: [0], T.TQ1_0: [52], T.TQ2_0: [64], T.MXFP4: [], T.NVFP4: [],
}  # fmt: skip
PLAIN = [T.F16, T.BF16]
ENCODED = [T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.MXFP4]

N_SUM_BLOCKS = 4096


def splitmix64(seed: int, n: int) -> np.ndarray:
    """The first n outputs of the generator splitmix64 (Steele, Lea, Flood 2014)."""
    gamma = 0x9E3779B97F4A7C15
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.uint64(gamma) * np.arange(1, n + 1, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def weighted_sum(words: np.ndarray) -> int:
    """Sum of u32 words, each times its own odd weight, modulo 2^64."""
    words = words.astype(np.uint64)
    weights = splitmix64(0, len(words)) | np.uint64(1)
    with np.errstate(over="ignore"):
        return int((words * weights).sum(dtype=np.uint64))


def random_blocks(t: T, n: int) -> np.ndarray:
    size = GGML_QUANT_SIZES[t][1]
    words = splitmix64(int(t), (n * size + 7) // 8)
    return words.view(np.uint8)[: n * size].reshape(n, size).copy()


def make_finite(t: T, blocks: np.ndarray) -> np.ndarray:
    """As core/src/format/scales.rs: clears the top exponent bit of non-finite scales."""
    for at in F16_SCALES.get(t, []):
        bad = (blocks[:, at + 1] & 0x7C) == 0x7C
        blocks[bad, at + 1] &= 0xBF
    if t == T.IQ1_M:
        bad = ((blocks[:, 55] & 0x70) == 0x70) & ((blocks[:, 53] & 0xC0) == 0xC0)
        blocks[bad, 55] &= 0xBF
    if t == T.MXFP4:
        blocks[:, 0] = 90 + blocks[:, 0] % 71
    return blocks


def set_scale(t: T, block: np.ndarray, bits: int) -> None:
    """Every f16 scale of the block gets these bits."""
    for at in F16_SCALES[t]:
        block[at], block[at + 1] = bits & 255, bits >> 8
    if t == T.IQ1_M:
        for k in range(4):
            at = 49 + 2 * k
            block[at] = (block[at] & 0x0F) | ((bits >> (4 * k)) & 15) << 4


def decode(t: T, blocks: np.ndarray) -> np.ndarray:
    return quants.dequantize(blocks.reshape(1, -1), t).astype(np.float32).ravel()


def decode_vectors(t: T) -> bytes:
    """Ten random blocks and the corners: zeros, ones, d = ±0, smallest subnormal, largest, negative."""
    blocks = make_finite(t, random_blocks(t, 16))
    blocks[0] = 0
    blocks[1] = 0xFF
    make_finite(t, blocks[1:2])
    if t == T.MXFP4:
        for row, e in zip(blocks[2:7], (0, 1, 2, 253, 254)):
            row[0] = e
    elif t == T.NVFP4:
        blocks[2:6, :4] = np.array([[0, 1, 7, 8], [0x7E, 0x7F, 0x80, 0x81], [0xFE, 0xFF, 15, 16], [64, 63, 56, 55]])
    else:
        for row, bits in zip(blocks[2:7], (0x0000, 0x8000, 0x0001, 0x7BFF, 0xBC00)):
            set_scale(t, row, bits)
    return blocks.tobytes() + decode(t, blocks).tobytes()


def plain_vectors(t: T) -> bytes:
    """1024 finite random elements and the corners."""
    bits = splitmix64(int(t), 1024).astype(np.uint16)
    corners = [0, 0x8000, 1, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00, 0x007F, 0x0080]
    bits[: len(corners)] = corners
    top = 0x7C00 if t == T.F16 else 0x7F80
    bits = np.where(bits & top == top, bits & 0xBFFF, bits).astype(np.uint16)
    return bits.tobytes() + quants.dequantize(bits.view(np.uint8), t).tobytes()


def encode_input(seed: int, n: int) -> np.ndarray:
    """Blocks of 32 floats: 24-bit integers (every fourth block 5-bit, to make ties) times 2^-39 .. 2^-12."""
    words = splitmix64(seed, n * 33).reshape(n, 33)
    x = (words[:, :32] >> np.uint64(40)).astype(np.int64) - (1 << 23)
    x[::4] &= -(1 << 19)
    exponent = (words[:, 32] % np.uint64(28)).astype(np.int64) - 39
    return np.ldexp(x.astype(np.float64), exponent[:, None]).astype(np.float32)


def encode(t: T, x: np.ndarray) -> np.ndarray:
    return quants.quantize(x.reshape(-1, 32), t).ravel()


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    sums = []
    for t in F16_SCALES:
        name = t.name.lower()
        (TARGET / f"{name}.bin").write_bytes(decode_vectors(t))
        blocks = make_finite(t, random_blocks(t, N_SUM_BLOCKS))
        x = decode(t, blocks)
        assert np.isfinite(x).all(), name
        x = np.where(x == 0, np.float32(0), x)  # -0 counts as 0
        sums.append(f"decode {name} {weighted_sum(x.view(np.uint32)):016x}")
    for t in PLAIN:
        (TARGET / f"{t.name.lower()}.bin").write_bytes(plain_vectors(t))
    for t in ENCODED:
        name = t.name.lower()
        x = encode_input(int(t) + 100, 24)
        (TARGET / f"{name}.encode.bin").write_bytes(x.tobytes() + encode(t, x).tobytes())
        x = encode_input(int(t) + 200, N_SUM_BLOCKS)
        sums.append(f"encode {name} {weighted_sum(encode(t, x)):016x}")
    for cls in (quants.IQ1_S, quants.IQ2_XXS, quants.IQ2_XS, quants.IQ2_S, quants.IQ3_XXS, quants.IQ3_S):
        cls.init_grid()
        values = cls.grid.astype(np.int32).ravel().view(np.uint32)
        sums.append(f"codebook {cls.qtype.name.lower()} {weighted_sum(values):016x}")
    (TARGET / "sums.txt").write_text("\n".join(sums) + "\n")


if __name__ == "__main__":
    main()
