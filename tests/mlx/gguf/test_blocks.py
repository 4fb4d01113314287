"""Every quantization of GGUF: against a slow reading of ggml's structs, and against MLX's own."""

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from node.engine.gguf import tensors as gguf_tensors
from node.engine.gguf.blocks import values
from node.engine.gguf.convert import ImportOptions, import_gguf
from node.engine.gguf.reader import TENSOR_TYPES, GgufError, GgufFile
from node.engine.gguf.tensors import Target, dense, targets
from tests.mlx.gguf.test_convert import METADATA, TOKENS, gguf_bytes

pytestmark = pytest.mark.mlx

SIZES = {name: (count, size) for name, count, size in TENSOR_TYPES.values() if count > 1}
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Where a block's float16 numbers lie: its scale, then its bias or the scale of its biases."""
KEPT = {"Q4_0": 4, "Q4_1": 4, "Q4_K": 4, "Q5_0": 5, "Q5_1": 5, "Q5_K": 5, "Q8_0": 8}
Array = Any


def random_blocks(kind: str, count: int) -> bytes:
    """Blocks of random bytes, but for their float16 numbers, which are finite."""
    random = np.random.default_rng(sum(kind.encode()) + count)
    raw = random.integers(0, 256, (count, SIZES[kind][1]), dtype=np.uint8)
    for at in HALVES[kind]:
        numbers = random.normal(scale=0.02, size=(count, 1)).astype("<f2")
        raw[:, at : at + 2] = numbers.view(np.uint8)
    return raw.tobytes()


def k_scale(packed: bytes, group: int) -> tuple[int, int]:
    """Scale and minimum of a group of Q4_K and Q5_K."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    low = packed[group + 4]
    return (
        low & 15 | packed[group - 4] >> 6 << 4,
        low >> 4 | packed[group] >> 6 << 4,
    )


def small_value(kind: str, block: bytes, i: int) -> float:
    """Value `i` of a block of 32."""
    d, *rest = (struct.unpack_from("<e", block, at)[0] for at in HALVES[kind])
    if kind == "Q8_0":
        return float(d * struct.unpack_from("<b", block, 2 + i)[0])
    quant = block[-16:][i % 16] >> 4 * (i // 16) & 15
    if kind in ("Q5_0", "Q5_1"):
        (fifths,) = struct.unpack("<I", block[-20:-16])
        quant |= (fifths >> i & 1) << 4
        return float(d * quant + rest[0]) if rest else float(d * (quant - 16))
    return float(d * quant + rest[0]) if rest else float(d * (quant - 8))


def k_value(kind: str, block: bytes, i: int) -> float:
    """Value `i` of a block of 256."""
    d, *mins = (struct.unpack_from("<e", block, at)[0] for at in HALVES[kind])
    half, within, lane = i // 128, i % 128, i % 32
    match kind:
        case "Q2_K":
            scales, quants = block[:16], block[16:80]
            quant = quants[32 * half + lane] >> 2 * (within // 32) & 3
            return float(d * (scales[i // 16] & 15) * quant - mins[0] * (scales[i // 16] >> 4))
        case "Q3_K":
            high, quants, scales = block[:32], block[32:96], block[96:108]
            quant = quants[32 * half + lane] >> 2 * (within // 32) & 3
            quant -= 0 if high[lane] >> i // 32 & 1 else 4
            group = i // 16
            scale = scales[group % 8] >> 4 * (group // 8) & 15
            scale |= (scales[8 + group % 4] >> 2 * (group // 4) & 3) << 4
            return float(d * (scale - 32) * quant)
        case "Q6_K":
            low, high = block[:128], block[128:192]
            quant = low[64 * half + within % 64] >> 4 * (within // 64) & 15
            quant |= (high[32 * half + lane] >> 2 * (within // 32) & 3) << 4
            return float(d * struct.unpack_from("<b", block, 192 + i // 16)[0] * (quant - 32))
    scale, low_end = k_scale(block[4:16], i // 32)
    quant = block[-128:][i // 64 * 32 + lane] >> 4 * (i // 32 % 2) & 15
    if kind == "Q5_K":
        quant |= (block[16:48][lane] >> i // 32 & 1) << 4
    return float(d * scale * quant - mins[0] * low_end)


def slow_values(kind: str, data: bytes) -> Array:
    count, size = SIZES[kind]
    one = small_value if count == 32 else k_value
    blocks = [data[at : at + size] for at in range(0, len(data), size)]
    return np.array([one(kind, block, i) for block in blocks for i in range(count)], np.float32)


@pytest.mark.parametrize("kind", SIZES)
def test_the_values_are_those_of_the_struct_read_bit_by_bit(kind: str) -> None:
    data = random_blocks(kind, 16)
    assert len(data) == 16 * SIZES[kind][1]
    assert (values(data, kind) == slow_values(kind, data)).all()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K"])
def test_the_values_are_those_that_mlx_reads(tmp_path: Path, kind: str) -> None:
    data = random_blocks(kind, 64 * 512 // SIZES[kind][0])
    file = tmp_path / "one.gguf"
    file.write_bytes(gguf_bytes({"a": "b"}, {"t.weight": (kind, (64, 512), data)}))
    loaded = mx.load(str(file))
    assert isinstance(loaded, dict)
    theirs = loaded["t.weight"]
    if "t.scales" in loaded:
        scales, biases = (loaded[f"t.{part}"].astype(mx.float32) for part in ("scales", "biases"))
        theirs = mx.dequantize(theirs, scales, biases, group_size=32, bits=KEPT[kind])
    # MLX reads every second group of Q4_K with the scale and minimum of the group before it, ggml
    # (`dequantize_row_q4_K`) with its own; so only the first of two groups is the same in both.
    same = slice(0, 1 if kind == "Q4_K" else 2)
    ours, read = (
        np.array(each).reshape(-1, 2, 32)[:, same]
        for each in (values(data, kind), theirs.astype(mx.float32))
    )
    assert np.allclose(read, ours, rtol=2**-10, atol=2**-24)


WIDTH, LAYERS = 256, 2
CONFIG: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": len(TOKENS),
    "tie_word_embeddings": True,
}
WANTED = targets(CONFIG)
KINDS = dict(zip((name for name in WANTED if "_norm" not in name), [*SIZES, *SIZES], strict=False))


def mixed_model(folder: Path) -> Path:
    """A model whose tensors have all types in turn."""
    tensors = {}
    for name, target in WANTED.items():
        count = int(np.prod(target.shape))
        if name in KINDS:
            kind = KINDS[name]
            tensors[name] = (kind, target.shape, random_blocks(kind, count // SIZES[kind][0]))
        else:
            tensors[name] = ("F32", target.shape, np.ones(count, "<f4").tobytes())
    changes = {
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": 2 * WIDTH,
        "llama.rope.dimension_count": 64,
    }
    file = folder / "mixed.gguf"
    file.write_bytes(gguf_bytes(METADATA | changes, tensors))
    return file


def imported(source: Path, name: str, *, keep_quantized: bool) -> tuple[Path, dict[str, mx.array]]:
    dest = source.parent / name
    import_gguf(source, dest, ImportOptions(name, "float32", keep_quantized), lambda _: None)
    loaded = mx.load(str(dest / "model.safetensors"))
    assert isinstance(loaded, dict)
    return dest, loaded


def test_a_file_of_many_types_is_the_same_plain_and_kept(tmp_path: Path) -> None:
    source = mixed_model(tmp_path)
    _, plain = imported(source, "plain", keep_quantized=False)
    folder, kept = imported(source, "kept", keep_quantized=True)
    quantization = json.loads((folder / "config.json").read_text())["quantization"]
    assert set(KINDS.values()) == set(SIZES)
    for name, target in WANTED.items():
        module, bits = target.module, KEPT.get(KINDS.get(name, ""))
        weight = kept[f"{module}.weight"]
        assert (f"{module}.scales" in kept) == (bits is not None)
        if bits is not None:
            own = quantization.get(module, quantization)
            assert (own["group_size"], own["bits"], own["mode"]) == (32, bits, "affine")
            scales, biases = kept[f"{module}.scales"], kept[f"{module}.biases"]
            weight = mx.dequantize(weight, scales, biases, group_size=32, bits=bits)
        assert mx.array_equal(weight, plain[f"{module}.weight"]).item()


def test_mlx_lm_computes_the_same_with_kept_blocks(tmp_path: Path) -> None:
    utils = pytest.importorskip("mlx_lm.utils")
    source, ids = mixed_model(tmp_path), mx.array([[5, 9, 60, 33]])
    logits = []
    for keep_quantized in (False, True):
        folder, _ = imported(source, f"kept-{keep_quantized}", keep_quantized=keep_quantized)
        model, _ = utils.load_model(folder)
        logits.append(model(ids))
    assert mx.allclose(logits[0], logits[1], rtol=1e-3, atol=1e-3).item()


@pytest.mark.parametrize("keep_quantized", [False, True])
def test_pieces_of_one_row_make_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_quantized: bool
) -> None:
    source = mixed_model(tmp_path)
    _, whole = imported(source, "whole", keep_quantized=keep_quantized)
    monkeypatch.setattr(gguf_tensors, "PIECE_VALUES", 1)
    _, pieced = imported(source, "pieced", keep_quantized=keep_quantized)
    assert whole.keys() == pieced.keys()
    assert all(mx.array_equal(whole[name], pieced[name]).item() for name in whole)


def test_decoding_a_large_tensor_takes_the_memory_of_a_piece(tmp_path: Path) -> None:
    shape = (2**14, 2**10)
    data = random_blocks("Q6_K", 2**8) * (2**24 // 2**16)
    source = tmp_path / "large.gguf"
    source.write_bytes(gguf_bytes({"a": "b"}, {"t": ("Q6_K", shape, data)}))
    with GgufFile(source) as file:
        tracemalloc.start()
        loaded = dense("bfloat16")(file, file.tensors["t"], Target("t", shape))
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert loaded["t.weight"].shape == shape
    assert peak_bytes < 2**20 * 16


@pytest.mark.parametrize(
    ("number", "label"),
    [(9, "Q8_1"), (15, "Q8_K"), (20, "IQ4_NL"), (24, "I8"), (26, "I32"), (28, "F64"), (99, "99")],
)
def test_names_a_type_that_it_cannot_read(tmp_path: Path, number: int, label: str) -> None:
    data = gguf_bytes({"a": "b"}, {"t": ("F32", (4, 8), bytes(128))})
    at = data.index(struct.pack("<IQQ", 2, 8, 4)) + 20
    file = tmp_path / "model.gguf"
    file.write_bytes(data[:at] + struct.pack("<I", number) + data[at + 4 :])
    with pytest.raises(GgufError, match=f"type (number )?{label}, which cannot be imported"):
        GgufFile(file)
