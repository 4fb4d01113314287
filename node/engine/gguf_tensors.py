"""Turns a llama-architecture GGUF's tensors into MLX ones: names, row order, blocks."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from node.engine.gguf_file import GgufError, GgufFile, TensorInfo

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
GROUP_SIZE = 32
"""Values that share a scale in every readable GGUF block type."""
SHARD_BYTES = 4 * 1024**3
ROPE_FACTORS = "rope_freqs.weight"
"""Not a weight: the frequency factors that Llama 3.1 and later stretch their context with."""

_QUANTIZED_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class Target:
    """One module of the MLX model and what its tensor must look like."""

    module: str
    shape: tuple[int, ...]
    permuted_heads: int = 0
    """Heads whose rows llama.cpp has interleaved; 0 for all but q and k."""


def targets(config: dict[str, Any]) -> dict[str, Target]:
    """GGUF tensor name to target, for every tensor that a model of this config has."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    q_rows, kv_rows = heads * config["head_dim"], kv_heads * config["head_dim"]
    shapes = {
        "attn_norm": (hidden,),
        "attn_q": (q_rows, hidden),
        "attn_k": (kv_rows, hidden),
        "attn_v": (kv_rows, hidden),
        "attn_output": (hidden, q_rows),
        "ffn_norm": (hidden,),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    permuted = {"attn_q": heads, "attn_k": kv_heads}
    found = {
        "token_embd.weight": Target("model.embed_tokens", (config["vocab_size"], hidden)),
        "output_norm.weight": Target("model.norm", (hidden,)),
    }
    if not config["tie_word_embeddings"]:
        found["output.weight"] = Target("lm_head", (config["vocab_size"], hidden))
    for layer in range(config["num_hidden_layers"]):
        for name, module in _LAYER_NAMES.items():
            found[f"blk.{layer}.{name}.weight"] = Target(
                f"model.layers.{layer}.{module}", shapes[name], permuted.get(name, 0)
            )
    return found


def check_tensors(file: GgufFile, wanted: dict[str, Target]) -> None:
    """Raises `GgufError` unless the file has exactly the tensors of its architecture: a tensor
    left out would be a model that is silently wrong."""
    for name, target in wanted.items():
        info = file.tensors.get(name)
        if info is None:
            raise GgufError(f"The file lacks the tensor {name}.")
        if info.shape != target.shape:
            raise GgufError(
                f"The tensor {name} has the shape {info.shape}, not {target.shape} as the "
                "metadata says."
            )
    strange = sorted(file.tensors.keys() - wanted.keys() - {ROPE_FACTORS})
    if strange:
        raise GgufError(
            f"The file has a tensor {strange[0]}, which the llama architecture does not know."
        )


def quantization(file: GgufFile, wanted: dict[str, Target]) -> dict[str, Any] | None:
    """The `quantization` entry of a config whose blocks are kept; None if there are none."""
    bits = {
        target.module: _QUANTIZED_BITS[file.tensors[name].type_name]
        for name, target in wanted.items()
        if file.tensors[name].type_name in _QUANTIZED_BITS
    }
    if not bits:
        return None
    ((usual, _),) = Counter(bits.values()).most_common(1)
    entry: dict[str, Any] = {"group_size": GROUP_SIZE, "bits": usual, "mode": "affine"}
    for module, own in bits.items():
        if own != usual:
            entry[module] = {"group_size": GROUP_SIZE, "bits": own, "mode": "affine"}
    return entry


def write_weights(
    file: GgufFile,
    wanted: dict[str, Target],
    folder: Path,
    convert: Callable[[GgufFile, TensorInfo, Target], dict[str, mx.array]],
    progress: Callable[[float], None],
) -> None:
    """Writes all tensors as safetensors shards of about 4 GiB and their index; no more than one
    shard is in memory."""
    total_bytes = sum(file.tensors[name].size_bytes for name in wanted)
    shards: list[dict[str, int]] = []
    pending: dict[str, mx.array] = {}
    read_bytes = 0

    def flush() -> None:
        mx.save_safetensors(str(folder / _draft(len(shards))), pending, {"format": "mlx"})
        shards.append({name: tensor.nbytes for name, tensor in pending.items()})
        pending.clear()

    for name, target in wanted.items():
        converted = convert(file, file.tensors[name], target)
        mx.eval(converted)
        held_bytes = sum(tensor.nbytes for tensor in pending.values())
        if pending and held_bytes + sum(t.nbytes for t in converted.values()) > SHARD_BYTES:
            flush()
        pending.update(converted)
        read_bytes += file.tensors[name].size_bytes
        progress(read_bytes / total_bytes)
    flush()
    _write_index(folder, shards)


def dense(dtype: str) -> Callable[[GgufFile, TensorInfo, Target], dict[str, mx.array]]:
    """Converts to plain weights, exactly in float32 and then rounded once."""

    def convert(file: GgufFile, info: TensorInfo, target: Target) -> dict[str, mx.array]:
        values = _unpermuted(_floats(file.data(info), info), target)
        return {f"{target.module}.weight": mx.array(values).astype(DTYPES[dtype])}

    return convert


def packed(dtype: str) -> Callable[[GgufFile, TensorInfo, Target], dict[str, mx.array]]:
    """Keeps quantised blocks as they are, in MLX's layout; `dtype` is that of the scales."""
    plain = dense(dtype)

    def convert(file: GgufFile, info: TensorInfo, target: Target) -> dict[str, mx.array]:
        if info.type_name not in _QUANTIZED_BITS:
            return plain(file, info, target)
        rows = info.shape[0]
        quants, scales, biases = _blocks(file.data(info), info.type_name)
        if info.type_name != "Q8_0":
            # MLX packs neighbours into one byte, low half first; GGUF packs value i with i + 16.
            quants = quants[:, 0::2] | (quants[:, 1::2] << 4)
        words = np.ascontiguousarray(quants).view("<u4").reshape(rows, -1)
        parts = {
            "weight": mx.array(_unpermuted(words, target)),
            "scales": mx.array(_unpermuted(scales.reshape(rows, -1), target)),
            "biases": mx.array(_unpermuted(biases.reshape(rows, -1), target)),
        }
        for part in ("scales", "biases"):
            parts[part] = parts[part].astype(DTYPES[dtype])
        return {f"{target.module}.{part}": value for part, value in parts.items()}

    return convert


def rope_factors(file: GgufFile) -> list[float] | None:
    """The frequency factors that the file carries, one for each pair of a head's dimensions."""
    info = file.tensors.get(ROPE_FACTORS)
    if info is None:
        return None
    values: list[float] = _floats(file.data(info), info).reshape(-1).tolist()
    return values


def _blocks(data: bytes, type_name: str) -> tuple[Any, Any, Any]:
    """(quants as unsigned bytes, one row a block; float32 scales; float32 biases), so that
    value = quant * scale + bias."""
    if type_name == "Q8_0":
        raw = np.frombuffer(data, dtype=[("scale", "<f2"), ("quants", "i1", 32)])
        scales = raw["scale"].astype(np.float32)
        return raw["quants"].view(np.uint8) ^ 0x80, scales, scales * -128
    fields: list[Any] = [("scale", "<f2"), ("quants", "u1", 16)]
    if type_name == "Q4_1":
        fields.insert(1, ("bias", "<f2"))
    raw = np.frombuffer(data, dtype=fields)
    scales = raw["scale"].astype(np.float32)
    biases = raw["bias"].astype(np.float32) if type_name == "Q4_1" else scales * -8
    halves = raw["quants"]
    return np.concatenate([halves & 0x0F, halves >> 4], axis=1), scales, biases


def _floats(data: bytes, info: TensorInfo) -> Any:
    match info.type_name:
        case "F32":
            values = np.frombuffer(data, dtype="<f4")
        case "F16":
            values = np.frombuffer(data, dtype="<f2").astype(np.float32)
        case "BF16":
            values = (np.frombuffer(data, dtype="<u2").astype("<u4") << 16).view("<f4")
        case _:
            quants, scales, biases = _blocks(data, info.type_name)
            values = quants.astype(np.float32) * scales[:, None] + biases[:, None]
    return values.reshape(info.shape)


def _unpermuted(rows: Any, target: Target) -> Any:
    """Rows in the order of the original model. llama.cpp interleaves the two halves of each
    head's rotary pairs; rows are outputs, so packed rows move whole."""
    if not target.permuted_heads:
        return rows
    pairs = rows.reshape(target.permuted_heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _draft(index: int) -> str:
    return f"shard-{index}.safetensors"


def _final_names(count: int) -> Iterator[str]:
    if count == 1:
        yield "model.safetensors"
        return
    for index in range(count):
        yield f"model-{index + 1:05d}-of-{count:05d}.safetensors"


def _write_index(folder: Path, shards: list[dict[str, int]]) -> None:
    weight_map: dict[str, str] = {}
    for index, name in enumerate(_final_names(len(shards))):
        (folder / _draft(index)).rename(folder / name)
        weight_map.update(dict.fromkeys(shards[index], name))
    total_bytes = sum(size for shard in shards for size in shard.values())
    index_json = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps(index_json, indent=2, sort_keys=True) + "\n"
    )
