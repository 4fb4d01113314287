"""Import of GGUF files: exact tensors, exact tokens, and one message for what cannot be right."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tokenizers import Tokenizer

from node.engine.gguf.convert import ImportOptions, import_gguf, llama3_factors, main
from node.engine.gguf.reader import TENSOR_TYPES, GgufError, GgufFile
from node.models.store import read_entry

pytestmark = pytest.mark.mlx

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 96, 4, 2, 16, 2
TYPES = {name: number for number, (name, _, _) in TENSOR_TYPES.items()}
Array = Any


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(item: Any) -> bytes:
    """A metadata value with its type."""
    match item:
        case bool():
            return struct.pack("<I?", 7, item)
        case int():
            return struct.pack("<II", 4, item)
        case float():
            return struct.pack("<If", 6, item)
        case str():
            return struct.pack("<I", 8) + text(item)
        case [str(), *_]:
            body = b"".join(text(one) for one in item)
            return struct.pack("<IIQ", 9, 8, len(item)) + body
        case _:
            return struct.pack(f"<IIQ{len(item)}i", 9, 5, len(item), *item)


def gguf_bytes(
    metadata: dict[str, Any], tensors: dict[str, tuple[str, tuple[int, ...], bytes]]
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, item in metadata.items():
        head += text(key) + value(item)
    body = b""
    for name, (kind, shape, data) in tensors.items():
        dimensions = shape[::-1]
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *dimensions)
        head += struct.pack("<IQ", TYPES[kind], len(body))
        body += data + bytes(-len(data) % 32)
    return head + bytes(-len(head) % 32) + body


ALPHABET = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]
TOKENS = ["<s>", "</s>", "<|user|>", *ALPHABET, "he", "ll", "hell"]
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": LAYERS,
    "llama.context_length": 512,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": INNER,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": HEAD_DIM,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 4] + [1] * (len(TOKENS) - 3),
    "tokenizer.ggml.merges": ["h e", "l l", "he ll"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": "{{ messages[0].content }}",
}
SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (len(TOKENS), HIDDEN),
    "output_norm.weight": (HIDDEN,),
}
for _layer in range(LAYERS):
    SHAPES |= {
        f"blk.{_layer}.attn_norm.weight": (HIDDEN,),
        f"blk.{_layer}.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
        f"blk.{_layer}.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        f"blk.{_layer}.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        f"blk.{_layer}.attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
        f"blk.{_layer}.ffn_norm.weight": (HIDDEN,),
        f"blk.{_layer}.ffn_gate.weight": (INNER, HIDDEN),
        f"blk.{_layer}.ffn_up.weight": (INNER, HIDDEN),
        f"blk.{_layer}.ffn_down.weight": (HIDDEN, INNER),
    }


def floats() -> dict[str, Array]:
    random = np.random.default_rng(7)
    return {name: random.normal(size=shape).astype("<f4") for name, shape in SHAPES.items()}


def tensors_of(arrays: dict[str, Array]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: ("F32", array.shape, array.tobytes()) for name, array in arrays.items()}


def write(folder: Path, *, without: str = "", tensors: Any = None, **changes: Any) -> Path:
    metadata = {**METADATA, **{key.replace("__", "."): item for key, item in changes.items()}}
    metadata.pop(without, None)
    file = folder / "model.gguf"
    file.write_bytes(gguf_bytes(metadata, tensors_of(floats()) if tensors is None else tensors))
    return file


def convert(source: Path, dtype: str = "float32", *, keep_quantized: bool = False) -> Path:
    dest = source.parent / "out"
    import_gguf(source, dest, ImportOptions("tiny", dtype, keep_quantized), lambda _: None)
    return dest


def load(folder: Path) -> dict[str, mx.array]:
    loaded = mx.load(str(folder / "model.safetensors"))
    assert isinstance(loaded, dict)
    return loaded


def test_writes_a_whole_model_folder(tmp_path: Path) -> None:
    folder = convert(write(tmp_path))
    assert sorted(path.name for path in folder.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "mlx-fleet.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    entry = read_entry(folder)
    assert (entry.name, entry.context_tokens) == ("tiny", 512)
    config = json.loads((folder / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5
    assert config["tie_word_embeddings"] is True
    assert (config["bos_token_id"], config["eos_token_id"]) == (0, 1)


def test_puts_the_rows_of_q_and_k_back_in_order(tmp_path: Path) -> None:
    arrays = floats()
    loaded = load(convert(write(tmp_path)))
    name = "model.layers.1.self_attn."
    assert len(loaded) == len(SHAPES)
    v_proj = np.array(loaded[name + "v_proj.weight"])
    assert (v_proj == arrays["blk.1.attn_v.weight"]).all()
    for proj, heads in (("q", HEADS), ("k", KV_HEADS)):
        original = np.array(loaded[f"{name}{proj}_proj.weight"])
        # llama.cpp puts row j of a head's first half before row j of its second half.
        halves = original.reshape(heads, 2, HEAD_DIM // 2, HIDDEN)
        interleaved = np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(-1, HIDDEN)
        assert (interleaved == arrays[f"blk.1.attn_{proj}.weight"]).all()


def quantized(kind: str, shape: tuple[int, ...]) -> tuple[bytes, Array]:
    """Random blocks of a type, and the values that they stand for, computed one by one."""
    random = np.random.default_rng(len(kind) + shape[0])
    rows: list[float] = []
    data = b""
    for _ in range(int(np.prod(shape)) // 32):
        scale, low = (float(np.float16(number)) for number in random.normal(size=2))
        if kind == "Q8_0":
            quants = random.integers(-127, 128, 32)
            data += struct.pack("<e32b", scale, *quants)
            rows += [scale * int(quant) for quant in quants]
            continue
        quants = random.integers(0, 16, 32)
        packed = [int(quants[i]) | int(quants[i + 16]) << 4 for i in range(16)]
        if kind == "Q4_0":
            data += struct.pack("<e16B", scale, *packed)
            rows += [scale * (int(quant) - 8) for quant in quants]
        else:
            data += struct.pack("<ee16B", scale, low, *packed)
            rows += [scale * int(quant) + low for quant in quants]
    return data, np.array(rows, dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_reads_quantized_blocks_exactly_and_can_keep_them(tmp_path: Path, kind: str) -> None:
    tensors = tensors_of(floats())
    for name in ("blk.0.ffn_down.weight", "blk.0.attn_q.weight"):
        tensors[name] = (kind, SHAPES[name], quantized(kind, SHAPES[name])[0])
    source = write(tmp_path, tensors=tensors)
    dense = load(convert(source))
    expected = quantized(kind, SHAPES["blk.0.ffn_down.weight"])[1]
    assert (np.array(dense["model.layers.0.mlp.down_proj.weight"]) == expected).all()
    (tmp_path / "out").rename(tmp_path / "dense")
    folder = convert(source, keep_quantized=True)
    packed, config = load(folder), json.loads((folder / "config.json").read_text())
    bits = 8 if kind == "Q8_0" else 4
    assert config["quantization"] == {"group_size": 32, "bits": bits, "mode": "affine"}
    for module in ("model.layers.0.mlp.down_proj", "model.layers.0.self_attn.q_proj"):
        unpacked = mx.dequantize(
            packed[f"{module}.weight"],
            packed[f"{module}.scales"],
            packed[f"{module}.biases"],
            group_size=32,
            bits=bits,
        )
        assert mx.array_equal(unpacked, dense[f"{module}.weight"]).item()


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_reads_half_precision(tmp_path: Path, kind: str) -> None:
    dtype = mx.float16 if kind == "F16" else mx.bfloat16
    array = mx.array(floats()["output_norm.weight"]).astype(dtype)
    tensors = tensors_of(floats())
    tensors["output_norm.weight"] = (kind, (HIDDEN,), np.array(array.view(mx.uint16)).tobytes())
    loaded = load(convert(write(tmp_path, tensors=tensors)))
    assert mx.array_equal(loaded["model.norm.weight"], array.astype(mx.float32)).item()


def test_rounds_once_to_the_wanted_type(tmp_path: Path) -> None:
    loaded = load(convert(write(tmp_path), "bfloat16"))
    expected = mx.array(floats()["output_norm.weight"]).astype(mx.bfloat16)
    assert loaded["model.norm.weight"].dtype == mx.bfloat16
    assert mx.array_equal(loaded["model.norm.weight"], expected).item()


def test_the_tokenizer_merges_and_knows_its_special_tokens(tmp_path: Path) -> None:
    folder = convert(write(tmp_path))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoding = tokenizer.encode("<|user|>hello 12</s>")
    assert encoding.tokens == ["<|user|>", "hell", "o", "Ġ", "1", "2", "</s>"]
    assert tokenizer.decode(encoding.ids) == "<|user|>hello 12"
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("<s>", "</s>")
    assert "pad_token" not in config


def test_adds_the_first_token_where_the_model_wants_it(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "tokenizer__ggml__pre": "llama-bpe",
        "tokenizer__ggml__add_bos_token": True,
    }
    folder = convert(write(tmp_path, **changes))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("he 1234").tokens == ["<s>", "he", "Ġ", "1", "2", "3", "4"]


def test_a_second_end_token_ends_answers_too(tmp_path: Path) -> None:
    folder = convert(write(tmp_path, tokenizer__ggml__eot_token_id=2))
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [1, 2]


def test_finds_the_parameters_of_llama_3_in_its_factors(tmp_path: Path) -> None:
    factors = np.array(llama3_factors(8.0, 10_000.0, HEAD_DIM), dtype="<f4")
    assert factors[0] == 1
    assert factors[-1] == 8
    tensors = tensors_of(floats() | {"rope_freqs.weight": factors})
    config = json.loads((convert(write(tmp_path, tensors=tensors)) / "config.json").read_text())
    assert config["rope_scaling"]["rope_type"] == "llama3"
    assert config["rope_scaling"]["factor"] == 8.0


def test_the_factors_are_those_that_mlx_lm_computes() -> None:
    rope_utils = pytest.importorskip("mlx_lm.models.rope_utils")
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    rope = rope_utils.initialize_rope(64, 500_000.0, False, scaling, 131_072)
    plain = 500_000.0 ** (np.arange(0, 64, 2) / 64)
    assert np.allclose(
        np.array(rope._freqs) / plain, llama3_factors(32.0, 500_000.0, 64), rtol=1e-4
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"general__architecture": "qwen2"}, "'qwen2' cannot be imported"),
        ({"tokenizer__ggml__model": "llama"}, "only byte-level BPE"),
        ({"tokenizer__ggml__pre": "default"}, "the way of 'default'"),
        ({"llama__expert_count": 8}, "expert_count"),
        ({"llama__rope__scaling__type": "yarn"}, "'yarn'"),
        ({"llama__rope__dimension_count": 8}, "dimension_count"),
        ({"llama__feed_forward_length": 128}, "has the shape"),
        ({"llama__attention__head_count": 0}, "head_count is 0"),
        ({"llama__block_count": 4}, "lacks the tensor blk.2."),
        ({"llama__block_count": 1}, "which the llama architecture does not know"),
        ({"llama__block_count": 10**9}, "block_count"),
        ({"without": "llama.context_length"}, "context_length is None"),
        ({"tokenizer__ggml__eos_token_id": 9999}, "eos_token_id"),
        ({"tokenizer__ggml__merges": ["h z"]}, "merge"),
    ],
)
def test_refuses_with_a_message_and_leaves_nothing(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(GgufError, match=sentence):
        convert(write(tmp_path, **changes))
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_refuses_factors_that_are_not_llama_3s(tmp_path: Path) -> None:
    factors = np.array([1, 2, 3, 4, 5, 6, 7, 8], dtype="<f4")
    tensors = tensors_of(floats() | {"rope_freqs.weight": factors})
    with pytest.raises(GgufError, match="not Llama 3's"):
        convert(write(tmp_path, tensors=tensors))


def test_names_a_quantization_that_it_cannot_read(tmp_path: Path) -> None:
    data = write(tmp_path).read_bytes()
    needle = text("output_norm.weight") + struct.pack("<IQ", 1, HIDDEN)
    at = data.index(needle) + len(needle)
    (tmp_path / "model.gguf").write_bytes(data[:at] + struct.pack("<I", 20) + data[at + 4 :])
    with pytest.raises(GgufError, match="type IQ4_NL"):
        GgufFile(tmp_path / "model.gguf")


def test_every_cut_of_the_header_is_refused_with_a_message(tmp_path: Path) -> None:
    data = gguf_bytes({"a": "b", "c": ["d", "e"], "f": 1.0}, {"t": ("F32", (4, 8), bytes(128))})
    file = tmp_path / "model.gguf"
    for length in range(len(data)):
        file.write_bytes(data[:length])
        with pytest.raises(GgufError):
            GgufFile(file)
    file.write_bytes(data)
    with GgufFile(file) as whole:
        assert whole.metadata["c"] == ["d", "e"]


def test_absurd_lengths_cost_no_memory(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    huge = 2**62
    heads = [
        struct.pack("<IQQ", 3, huge, 0),
        struct.pack("<IQQ", 3, 0, huge),
        struct.pack("<IQQQ", 3, 0, 1, huge),
        struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 8, huge),
        struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 9, 1),
        struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQQIQ", 2, huge, 64, 0, 0),
        struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 8, 0, huge),
        struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 33, 8, 0),
        struct.pack(">IQQ", 3, 0, 0),
    ]
    for head in heads:
        file.write_bytes(b"GGUF" + head + bytes(64))
        with pytest.raises(GgufError):
            GgufFile(file)


def test_the_command_answers_in_json_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, dest = write(tmp_path), tmp_path / "dest"
    assert main([str(source), str(dest), "--dtype", "float32"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1] == {"done": str(dest)}
    assert lines[-2] == {"fraction": 1.0}
    assert main([str(source), str(dest)]) == 1
    assert "exists already" in json.loads(capsys.readouterr().out)["error"]
    source.write_text("not a model")
    assert main([str(source), str(tmp_path / "other")]) == 1
    assert "is not a GGUF file" in json.loads(capsys.readouterr().out)["error"]
    assert main([str(tmp_path / "none"), str(tmp_path / "other")]) == 1


def test_the_wheel_of_smollm2_becomes_the_reference_conversion(tmp_path: Path) -> None:
    source, reference = os.environ.get("MLX_FLEET_GGUF"), os.environ.get("MLX_FLEET_SMOLLM2")
    if not source or not reference:
        pytest.skip("needs MLX_FLEET_GGUF (the file) and MLX_FLEET_SMOLLM2 (the folder)")
    dest = tmp_path / "out"
    import_gguf(Path(source), dest, ImportOptions("smollm2", "float32"), lambda _: None)
    ours, theirs = load(dest), load(Path(reference))
    assert ours.keys() == theirs.keys()
    assert all(mx.array_equal(ours[name], theirs[name]).item() for name in theirs)
    texts = ["Hello world 123 4567  \n\n\tfoo's bar<|im_end|>x", "日本語 ½ ²³ naïve"]
    tokenizers = [
        Tokenizer.from_file(str(path / "tokenizer.json")) for path in (dest, Path(reference))
    ]
    for sample in texts:
        assert tokenizers[0].encode(sample).ids == tokenizers[1].encode(sample).ids
