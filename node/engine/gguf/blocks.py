"""Decodes the quantized blocks of GGUF files; the layouts are those of ggml's `ggml-common.h`.

All functions work on many blocks at once. Arrays have one row per block: `n` blocks of `v` values,
in which each group of `v / g` neighbors shares a scale.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Fields = Any
"""Structured array of shape (n,): one record per block, with the fields of ggml's struct."""


class Blocks(NamedTuple):
    """Decoded blocks: value = quant * scale + bias."""

    quants: Any
    """uint8, (n, v)."""
    scales: Any
    """float32, (n, g)."""
    biases: Any
    """float32, (n, g)."""


def unpack(data: bytes, type_name: str) -> Blocks:
    """Decodes whole blocks of one type. Scales and biases are exact: ggml's are products of an
    11-bit mantissa and at most 8 bits."""
    layout, decode = _FORMATS[type_name]
    return decode(np.frombuffer(data, dtype=layout))


def values(data: bytes, type_name: str) -> Any:
    """Returns the values of whole blocks, or of plain numbers: float32, one dimension. Exact except
    for one rounding of a sum, which ggml's float32 decoding also has."""
    match type_name:
        case "F32":
            return np.frombuffer(data, dtype="<f4")
        case "F16":
            return np.frombuffer(data, dtype="<f2").astype(np.float32)
        case "BF16":
            return (np.frombuffer(data, dtype="<u2").astype("<u4") << 16).view("<f4")
    quants, scales, biases = unpack(data, type_name)
    found = quants.astype(np.float32).reshape(*scales.shape, -1)
    found *= scales[:, :, None]
    found += biases[:, :, None]
    return found.reshape(-1)


def _planes(raw: Any, run: int, bits: int) -> Any:
    """uint8 (n, bytes) to uint8 (n, bytes * 8 / bits): every `run` bytes contain the next 8 / bits
    runs of as many values, the first run in the lowest bits."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = raw.reshape(len(raw), -1, 1, run) >> shifts
    runs &= np.uint8(2**bits - 1)
    return runs.reshape(len(raw), -1)


def _f32(halves: Any) -> Any:
    """float16 (n,) to float32 (n, 1)."""
    return halves.astype(np.float32)[:, None]


def _scaled(quants: Any, scales: Any, zero: int) -> Blocks:
    """Returns blocks without a bias of their own, in which the quant `zero` represents 0."""
    return Blocks(quants, scales, scales * np.float32(-zero))


def _q4_0(raw: Fields) -> Blocks:
    return _scaled(_planes(raw["qs"], 16, 4), _f32(raw["d"]), 8)


def _q4_1(raw: Fields) -> Blocks:
    return Blocks(_planes(raw["qs"], 16, 4), _f32(raw["d"]), _f32(raw["m"]))


def _five_bits(raw: Fields) -> Any:
    return _planes(raw["qs"], 16, 4) | _planes(raw["qh"], 1, 1) << 4


def _q5_0(raw: Fields) -> Blocks:
    return _scaled(_five_bits(raw), _f32(raw["d"]), 16)


def _q5_1(raw: Fields) -> Blocks:
    return Blocks(_five_bits(raw), _f32(raw["d"]), _f32(raw["m"]))


def _q8_0(raw: Fields) -> Blocks:
    return _scaled(raw["qs"] ^ 0x80, _f32(raw["d"]), 128)


def _q2_k(raw: Fields) -> Blocks:
    scales, mins = raw["scales"] & 0x0F, raw["scales"] >> 4
    return Blocks(_planes(raw["qs"], 32, 2), _f32(raw["d"]) * scales, -_f32(raw["dmin"]) * mins)


def _q3_k(raw: Fields) -> Blocks:
    # 16 scales of 6 bits: low halves in 8 bytes, upper two bits in the last 4.
    packed = raw["scales"]
    scales = (_planes(packed[:, :8], 8, 4) | _planes(packed[:, 8:], 4, 2) << 4).astype(np.int8) - 32
    quants = _planes(raw["qs"], 32, 2) | _planes(raw["hmask"], 32, 1) << 2
    return _scaled(quants, _f32(raw["d"]) * scales, 4)


def _scales_and_mins(raw: Fields) -> tuple[Any, Any]:
    """Returns the 8 scales and 8 biases of Q4_K and Q5_K, float32 (n, 8). Their 6-bit numbers are
    packed in 12 bytes: those of the first four groups whole, those of the last four with their
    upper two bits above the former."""
    first, second, third = (raw["scales"][:, at : at + 4] for at in (0, 4, 8))
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    mins = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return _f32(raw["d"]) * scales, -_f32(raw["dmin"]) * mins


def _q4_k(raw: Fields) -> Blocks:
    return Blocks(_planes(raw["qs"], 32, 4), *_scales_and_mins(raw))


def _q5_k(raw: Fields) -> Blocks:
    quants = _planes(raw["qs"], 32, 4) | _planes(raw["qh"], 32, 1) << 4
    return Blocks(quants, *_scales_and_mins(raw))


def _q6_k(raw: Fields) -> Blocks:
    quants = _planes(raw["ql"], 64, 4) | _planes(raw["qh"], 32, 2) << 4
    return _scaled(quants, _f32(raw["d"]) * raw["scales"], 32)


_FORMATS: dict[str, tuple[Any, Callable[[Fields], Blocks]]] = {
    # block_q4_0, block_q4_1, block_q5_0, block_q5_1, block_q8_0: 32 values, one group.
    "Q4_0": (np.dtype([("d", "<f2"), ("qs", "u1", 16)]), _q4_0),
    "Q4_1": (np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)]), _q4_1),
    "Q5_0": (np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)]), _q5_0),
    "Q5_1": (np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)]), _q5_1),
    "Q8_0": (np.dtype([("d", "<f2"), ("qs", "u1", 32)]), _q8_0),
    # block_q2_K, block_q3_K, block_q6_K: 256 values, 16 groups.
    "Q2_K": (
        np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")]),
        _q2_k,
    ),
    "Q3_K": (
        np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")]),
        _q3_k,
    ),
    "Q6_K": (
        np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")]),
        _q6_k,
    ),
    # block_q4_K, block_q5_K: 256 values, 8 groups.
    "Q4_K": (
        np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)]),
        _q4_k,
    ),
    "Q5_K": (
        np.dtype(
            [
                ("d", "<f2"),
                ("dmin", "<f2"),
                ("scales", "u1", 12),
                ("qh", "u1", 32),
                ("qs", "u1", 128),
            ]
        ),
        _q5_k,
    ),
}
