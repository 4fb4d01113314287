"""Converts the tensors of a llama-architecture GGUF to MLX: names, row order, blocks."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from node.engine.gguf.blocks import unpack, values
from node.engine.gguf.reader import GgufError, GgufFile, TensorInfo

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
GROUP_SIZE = 32
"""Values that share a scale in every GGUF block type that MLX can compute with."""
PIECE_VALUES = 2**20
"""Values that are decoded at once: numpy uses a few times as much memory beside a tensor."""
SHARD_BYTES = 4 * 1024**3
ROPE_FACTORS = "rope_freqs.weight"
"""Not a weight: the frequency factors with which Llama 3.1 and later extend their context."""

_KEPT_BITS = {"Q4_0": 4, "Q4_1": 4, "Q4_K": 4, "Q5_0": 5, "Q5_1": 5, "Q5_K": 5, "Q8_0": 8}
"""Types that MLX's affine format represents exactly. Q2_K, Q3_K and Q6_K have a scale for 16
values; MLX's smallest group has 32."""
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
    """One module of the MLX model, and the expected form of its tensor."""

    module: str
    shape: tuple[int, ...]
    permuted_heads: int = 0
    """Heads whose rows llama.cpp has interleaved; 0 for all but q and k."""


Convert = Callable[[GgufFile, TensorInfo, Target], dict[str, mx.array]]
"""Converts a tensor of the file to the named tensors of the model."""


def targets(config: dict[str, Any]) -> dict[str, Target]:
    """Returns targets by GGUF tensor name, for every tensor that a model of this config has."""
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
    """Raises `GgufError` unless the file has exactly the tensors of its architecture: a model
    without one of them would be silently wrong."""
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
    """Returns the `quantization` entry of a config whose blocks are kept; None if there are
    none."""
    bits = {
        target.module: _KEPT_BITS[file.tensors[name].type_name]
        for name, target in wanted.items()
        if _keepable(file.tensors[name])
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
    convert: Convert,
    progress: Callable[[float], None],
) -> None:
    """Writes all tensors as safetensors shards of about 4 GiB and their index; at most one shard is
    in memory."""
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


def dense(dtype: str) -> Convert:
    """Converts to plain weights, exactly in float32 and then rounded once."""

    def convert(file: GgufFile, info: TensorInfo, target: Target) -> dict[str, mx.array]:
        pieces = []
        for data in file.pieces(info, PIECE_VALUES):
            rows = values(data, info.type_name).reshape(-1, info.shape[-1])
            pieces.append(mx.array(rows).astype(DTYPES[dtype]))
            mx.eval(pieces[-1])
        whole = mx.concatenate(pieces).reshape(info.shape)
        return {f"{target.module}.weight": _unpermuted(whole, target)}

    return convert


def packed(dtype: str) -> Convert:
    """Keeps quantized blocks in MLX's layout if that represents them exactly; `dtype` is that of
    the scales and of tensors that cannot be kept."""
    plain = dense(dtype)

    def convert(file: GgufFile, info: TensorInfo, target: Target) -> dict[str, mx.array]:
        if not _keepable(info):
            return plain(file, info, target)
        bits, columns = _KEPT_BITS[info.type_name], info.shape[-1]
        pieces: dict[str, list[mx.array]] = {"weight": [], "scales": [], "biases": []}
        for data in file.pieces(info, PIECE_VALUES):
            quants, scales, biases = unpack(data, info.type_name)
            pieces["weight"].append(mx.array(_words(quants.reshape(-1, columns), bits)))
            for part, numbers in (("scales", scales), ("biases", biases)):
                rows = mx.array(numbers.reshape(-1, columns // GROUP_SIZE))
                pieces[part].append(rows.astype(DTYPES[dtype]))
                mx.eval(pieces[part][-1])
        return {
            f"{target.module}.{part}": _unpermuted(mx.concatenate(rows), target)
            for part, rows in pieces.items()
        }

    return convert


def written_bytes(file: GgufFile, dtype: str, *, keep_quantized: bool) -> int:
    """Returns the size that the weights will have on disk."""
    total_bytes = 0
    for info in file.tensors.values():
        count, each_bytes = math.prod(info.shape), DTYPES[dtype].size
        if keep_quantized and _keepable(info):
            total_bytes += count * _KEPT_BITS[info.type_name] // 8
            count = count // GROUP_SIZE * 2
        total_bytes += count * each_bytes
    return total_bytes


def rope_factors(file: GgufFile) -> list[float] | None:
    """Returns the file's frequency factors, one for each pair of a head's dimensions; None if it
    has none."""
    info = file.tensors.get(ROPE_FACTORS)
    if info is None:
        return None
    if math.prod(info.shape) > PIECE_VALUES:
        raise GgufError(f"The tensor {ROPE_FACTORS} has the shape {info.shape}.")
    data = b"".join(file.pieces(info, PIECE_VALUES))
    factors: list[float] = values(data, info.type_name).tolist()
    return factors


def _keepable(info: TensorInfo) -> bool:
    """True if the tensor can stay quantized: one-dimensional ones (norms) have no quantized form in
    MLX."""
    return info.type_name in _KEPT_BITS and len(info.shape) == 2


def _words(quants: Any, bits: int) -> Any:
    """uint8 (rows, columns) to MLX's uint32 (rows, columns * bits / 32): a row is one stream of
    bits, the first value in the lowest."""
    eights = quants.reshape(-1, 8)
    stream = np.zeros(len(eights), dtype="<u8")
    for index in range(8):
        stream |= eights[:, index].astype("<u8") << np.uint64(bits * index)
    narrow = stream.view("u1").reshape(-1, 8)[:, :bits]
    return np.ascontiguousarray(narrow).reshape(-1).view("<u4").reshape(len(quants), -1)


def _unpermuted(rows: mx.array, target: Target) -> mx.array:
    """Restores the row order of the original model. llama.cpp interleaves the two halves of each
    head's rotary pairs; rows are outputs, so packed rows move whole."""
    if not target.permuted_heads:
        return rows
    pairs = rows.reshape(target.permuted_heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


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
