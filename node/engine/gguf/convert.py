"""Imports a GGUF file as an MLX model folder: `python -m node.engine.gguf.convert SOURCE DEST`.

It runs in a process of its own, so that its memory is freed. Each line on its standard output is a
JSON object: `{"fraction": F}` while it works, then `{"done": FOLDER}` or `{"error": SENTENCE}`.
Exit codes: 0 imported, 1 not. DEST appears only when it is complete.

Only the architecture `llama` is supported. Similar ones differ in the order of the q and k rows or
have tensors of their own, so their import would be silently wrong.
"""

import argparse
import contextlib
import json
import math
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.engine.gguf.reader import GgufError, GgufFile
from node.engine.gguf.tensors import (
    DTYPES,
    check_tensors,
    dense,
    packed,
    quantization,
    rope_factors,
    targets,
    write_weights,
    written_bytes,
)
from node.engine.gguf.tokenizer import special_ids, write_tokenizer
from node.models.model_files import partial_folder, write_name

MAX_LAYERS = 1000
MAX_WIDTH = 2**20
LLAMA3_CONTEXT_TOKENS = 8192
"""The context that Llama 3.1 and later were first trained with; not stored in GGUF."""

KEEP_HELP = (
    "keep 4-, 5- and 8-bit blocks as they are; Q2_K, Q3_K and Q6_K do not fit MLX's format and "
    "become plain weights (a Q4_K_M file has some of them)"
)

_NEUTRAL = {
    "expert_count": 0,
    "attention.sliding_window": 0,
    "logit_scale": 1,
    "embedding_scale": 1,
    "residual_scale": 1,
    "attention.scale": 0,
}
"""Keys of variants that this import does not convert, and the value that means: not a variant."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Options of an import."""

    name: str
    """The model's name as shown."""
    dtype: str
    """Type of the weights; of the scales if blocks are kept."""
    keep_quantized: bool = False


def default_dtype() -> str:
    """Returns float32 on CPUs (MLX is many times slower there with other types), and bfloat16 on a
    Mac."""
    return "bfloat16" if platform.system() == "Darwin" else "float32"


def import_gguf(
    source: Path, dest: Path, options: ImportOptions, progress: Callable[[float], None]
) -> None:
    """Writes `source` as an MLX folder `dest`. Raises `GgufError` with a sentence; then, as after
    any interruption before the last step, `dest` does not exist."""
    if dest.exists():
        raise GgufError(f"{dest} exists already.")
    partial = partial_folder(dest)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        with GgufFile(source) as file:
            _write(file, partial, options, progress)
        write_name(partial, options.name, f"gguf:{source.name}")
        partial.rename(dest)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _write(
    file: GgufFile, folder: Path, options: ImportOptions, progress: Callable[[float], None]
) -> None:
    config = make_config(file, options.dtype)
    wanted = targets(config)
    check_tensors(file, wanted)
    kept = quantization(file, wanted) if options.keep_quantized else None
    if kept is not None:
        config["quantization"] = config["quantization_config"] = kept
    _check_room(file, folder, options)
    write_tokenizer(file.metadata, folder, config["max_position_embeddings"])
    convert = packed(options.dtype) if options.keep_quantized else dense(options.dtype)
    write_weights(file, wanted, folder, convert, progress)
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    generation = {key: config[key] for key in ids if config[key] is not None}
    _write_json(folder / "generation_config.json", generation)
    _write_json(folder / "config.json", config)


def make_config(file: GgufFile, dtype: str) -> dict[str, Any]:
    """Returns the model's config.json. Raises `GgufError` for anything that it cannot express
    exactly."""
    metadata = file.metadata
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise GgufError(f"The architecture {architecture!r} cannot be imported; only llama can.")
    for key, neutral in _NEUTRAL.items():
        if metadata.get(f"llama.{key}", neutral) != neutral:
            raise GgufError(f"The model is a variant of llama that has {key}; it is not supported.")
    heads = _whole(metadata, "attention.head_count", MAX_WIDTH)
    hidden = _whole(metadata, "embedding_length", MAX_WIDTH)
    head_dim = _whole(metadata, "attention.key_length", MAX_WIDTH, hidden // heads)
    tokens = metadata.get("tokenizer.ggml.tokens")
    ids = special_ids(metadata)
    eos = [ids[role] for role in ("eos_token", "eot_token") if role in ids]
    theta = _number(metadata, "rope.freq_base", 10_000.0)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": _whole(metadata, "feed_forward_length", MAX_WIDTH),
        "num_hidden_layers": _whole(metadata, "block_count", MAX_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": _whole(metadata, "attention.head_count_kv", heads, heads),
        "head_dim": head_dim,
        "max_position_embeddings": _whole(metadata, "context_length", 2**31),
        "rms_norm_eps": _shortest(_number(metadata, "attention.layer_norm_rms_epsilon")),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(file, theta, head_dim),
        "vocab_size": len(tokens) if isinstance(tokens, list) else 0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": ids.get("bos_token"),
        "eos_token_id": eos[0] if len(set(eos)) == 1 else list(dict.fromkeys(eos)) or None,
        "pad_token_id": ids.get("pad_token"),
        "torch_dtype": dtype,
    }
    _check_heads(metadata, config)
    return config


def _check_heads(metadata: dict[str, Any], config: dict[str, Any]) -> None:
    head_dim, heads = config["head_dim"], config["num_attention_heads"]
    if head_dim % 2 or heads % config["num_key_value_heads"]:
        raise GgufError("The metadata's head counts do not go together.")
    for key in ("attention.value_length", "rope.dimension_count"):
        if _whole(metadata, key, MAX_WIDTH, head_dim) != head_dim:
            raise GgufError(f"The model has a {key} other than its heads' width; unsupported.")


def _rope_scaling(file: GgufFile, theta: float, head_dim: int) -> dict[str, Any] | None:
    kind = file.metadata.get("llama.rope.scaling.type", "none")
    factors = rope_factors(file)
    linear = _number(file.metadata, "rope.scale_linear", 1.0)
    if kind not in ("none", "linear") or (kind == "linear" and factors is not None):
        raise GgufError(f"The model scales its positions by {kind!r}; only linear is supported.")
    if kind == "linear" or linear != 1:
        factor = _number(file.metadata, "rope.scaling.factor", linear)
        return {"type": "linear", "rope_type": "linear", "factor": factor}
    return None if factors is None else _llama3_scaling(factors, theta, head_dim)


def _llama3_scaling(factors: list[float], theta: float, head_dim: int) -> dict[str, Any] | None:
    """Returns the parameters of Llama 3's scaling if they give exactly these factors."""
    factor = _shortest(max(factors))
    if factor == 1:
        return None
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": LLAMA3_CONTEXT_TOKENS,
    }
    expected = llama3_factors(factor, theta, head_dim)
    same = len(expected) == len(factors) and all(
        math.isclose(one, other, rel_tol=1e-4) for one, other in zip(expected, factors, strict=True)
    )
    if not same:
        raise GgufError("The model stretches its positions in a way that is not Llama 3's.")
    return scaling


def llama3_factors(factor: float, theta: float, head_dim: int) -> list[float]:
    """Returns the divisor of each rotary frequency in Llama 3: 1 for short waves, `factor` for long
    ones, with a smooth transition between a quarter of the first context and the whole."""
    found = []
    for index in range(0, head_dim, 2):
        turns = LLAMA3_CONTEXT_TOKENS / (2 * math.pi * theta ** (index / head_dim))
        smooth = min(max((turns - 1.0) / 3.0, 0.0), 1.0)
        found.append(1 / ((1 - smooth) / factor + smooth))
    return found


def _check_room(file: GgufFile, folder: Path, options: ImportOptions) -> None:
    needed_bytes = written_bytes(file, options.dtype, keep_quantized=options.keep_quantized)
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise GgufError(
            f"The model needs {needed_bytes / 1e9:.1f} GB on disk, but {free_bytes / 1e9:.1f} GB "
            "are free."
        )


def _whole(metadata: dict[str, Any], key: str, most: int, default: int | None = None) -> int:
    value = metadata.get(f"llama.{key}", default)
    if type(value) is not int or not 1 <= value <= most:
        raise _impossible(key, value)
    return value


def _number(metadata: dict[str, Any], key: str, default: float | None = None) -> float:
    value = metadata.get(f"llama.{key}", default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _impossible(key, value)
    if not math.isfinite(value) or value <= 0:
        raise _impossible(key, value)
    return float(value)


def _impossible(key: str, value: object) -> GgufError:
    shown = repr(value)[:100]
    return GgufError(f"The metadata's llama.{key} is {shown}, which is not a valid number.")


def _shortest(value: float) -> float:
    """Returns the decimal number that a 32-bit float was made from."""
    return float(f"{value:.6g}")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def _print_message(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Runs the import; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m node.engine.gguf.convert")
    parser.add_argument("source", type=Path)
    parser.add_argument("dest", type=Path)
    parser.add_argument("--name", help="the model's name; default: the folder's")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default=default_dtype())
    parser.add_argument("--keep-quantized", action="store_true", help=KEEP_HELP)
    given = parser.parse_args(arguments)
    options = ImportOptions(given.name or given.dest.name, given.dtype, given.keep_quantized)
    try:
        import_gguf(
            given.source, given.dest, options, lambda part: _print_message({"fraction": part})
        )
    except GgufError as error:
        _print_message({"error": str(error)})
        return 1
    except (OSError, RuntimeError) as error:
        # MLX raises RuntimeError where a file cannot be written.
        with contextlib.suppress(BrokenPipeError):
            _print_message({"error": f"The model cannot be written: {error}."})
        return 1
    except KeyboardInterrupt:
        _print_message({"error": "The import was stopped."})
        return 1
    _print_message({"done": str(given.dest)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
