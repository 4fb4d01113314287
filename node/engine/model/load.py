"""Loads a model folder into memory: weights, vocabulary, and facts from its configuration.

Everything is loaded and evaluated in the calling thread: MLX streams belong to a thread, so another
thread could not evaluate a remaining lazy array.
"""

import json
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from node.engine.base import LoadError
from node.engine.model.detokenizer import Vocabulary
from node.engine.model.weights import UnsupportedModel, load_network
from serving.terminal.error_text import error_text

_CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_ctx",
    "model_max_length",
)
_UNKNOWN_CONTEXT = 8192
"""Used if no file names a context length, as with purely recurrent models."""
_CONTEXT_LIMIT = 1 << 30
"""Tokenizers without a known length write 1e30."""
_SLICES = 20
_NAMES = 3
"""Number of tensors that an error names."""
_LOAD_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError)


@dataclass(frozen=True)
class LoadedModel:
    """Weights in memory, and the facts that an engine needs."""

    network: Any
    vocabulary: Vocabulary
    end_tokens: frozenset[int]
    context_tokens: int
    vocab_size: int
    """Width of the logits, which may exceed the tokenizer's vocabulary."""
    weight_bytes: int


def load_folder(folder: Path, progress: Callable[[float], None]) -> LoadedModel:
    """Loads a model folder; of a checkpoint with other parts, only those for text. Reports progress
    from 0 to 1. Raises `LoadError`."""
    _raise_file_limit()
    config = _read_config(folder)
    tokenizer = _read_tokenizer(folder)
    _check_shards(folder)
    try:
        network = load_network(folder)
        weight_bytes = _evaluate(network, progress)
        vocab_size = _logits_width(network)
    except UnsupportedModel as error:
        raise LoadError(f"{error}.") from error
    except _LOAD_ERRORS as error:
        raise LoadError(f"The weights of {folder} cannot be loaded: {_line(error)}.") from error
    progress(1.0)
    return LoadedModel(
        network=network,
        vocabulary=Vocabulary(tokenizer),
        end_tokens=_end_tokens(folder, config, tokenizer),
        context_tokens=_context_tokens(folder, config),
        vocab_size=vocab_size,
        weight_bytes=weight_bytes,
    )


def _raise_file_limit() -> None:
    """Raises the limit of open files to the allowed maximum: importing mlx_lm lowers it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _read_json(path: Path) -> dict[str, Any]:
    """Returns the contents of a JSON object file; empty if there is no such file."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise LoadError(f"{path.name} of {path.parent} cannot be read: {error}.") from error
    if not isinstance(value, dict):
        raise LoadError(f"{path.name} of {path.parent} is not a JSON object.")
    return value


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise LoadError(f"There is no model folder {folder}.")
    config = _read_json(folder / "config.json")
    if not config:
        raise LoadError(f"{folder} has no config.json.")
    if not isinstance(config.get("model_type"), str):
        raise LoadError(f"config.json of {folder} names no model_type.")
    text = config.get("text_config")
    if config.get("model_file") or (isinstance(text, dict) and text.get("model_file")):
        raise LoadError(f"{folder} brings code of its own, which is never run.")
    return config


def _read_tokenizer(folder: Path) -> Tokenizer:
    """Returns the Rust tokenizer. A broken tokenizer.json raises bare `Exception`, which the worker
    handles."""
    path = folder / "tokenizer.json"
    if path.exists():
        return Tokenizer.from_file(str(path))
    try:
        loaded = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        return loaded.backend_tokenizer
    except (OSError, ValueError, ImportError, AttributeError) as error:
        raise LoadError(f"The tokenizer of {folder} cannot be read: {_line(error)}.") from error


def _check_shards(folder: Path) -> None:
    """Raises `LoadError` if a file of weights is missing; mlx_lm would name only the parameters."""
    if not any(folder.glob("model*.safetensors")):
        raise LoadError(f"{folder} has no model*.safetensors.")
    index = _read_json(folder / "model.safetensors.index.json")
    shards = index.get("weight_map") or {}
    missing = sorted({name for name in shards.values() if not (folder / name).exists()})
    if missing:
        raise LoadError(f"{folder} lacks {', '.join(missing)}.")


def _evaluate(network: Any, progress: Callable[[float], None]) -> int:
    """Reads all weights into memory, slice by slice; returns their size in bytes."""
    parameters: Any = tree_flatten(network.parameters())
    arrays: list[mx.array] = [array for _, array in parameters]
    step = max(1, len(arrays) // _SLICES)
    for start in range(0, len(arrays), step):
        mx.eval(arrays[start : start + step])
        progress(start / len(arrays))
    # Arrays such as rope frequencies are attributes, not parameters.
    mx.eval([value for module in network.modules() for value in _private_arrays(module)])
    return sum(array.nbytes for array in arrays)


def _private_arrays(module: Any) -> list[mx.array]:
    values = [*module.values(), *vars(module).values()]
    return [value for value in values if isinstance(value, mx.array)]


def _logits_width(network: Any) -> int:
    """Returns the width of the logits from the graph of one token, which is not computed: weights
    of incompatible shapes fail here."""
    logits = network(mx.array([[0]]), cache=make_prompt_cache(network))
    return int(logits.shape[-1])


def _line(error: Exception) -> str:
    """Returns an error's message on one line, without its full stop. A list of names that begins on
    its second line is cut after `_NAMES`."""
    first, *names = (str(error).strip() or error_text(error)).splitlines()
    shown = ", ".join(name.strip(" ,.") for name in names[:_NAMES])
    if not first.rstrip().endswith(":") or not shown:
        return first.rstrip(".: ")
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"{first.rstrip()} {shown}{more}"


def _end_tokens(folder: Path, config: dict[str, Any], tokenizer: Tokenizer) -> frozenset[int]:
    """Returns the ids that end an output: those of generation_config.json, else config.json; and
    the tokenizer's."""
    generation = _read_json(folder / "generation_config.json")
    nested = config.get("text_config") or {}
    for source in (generation, config, nested):
        found = source.get("eos_token_id")
        if found is not None:
            break
    ids = set(found) if isinstance(found, list) else {found}
    token = _read_json(folder / "tokenizer_config.json").get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    if content:
        ids.add(tokenizer.token_to_id(content))
    return frozenset(number for number in ids if isinstance(number, int))


def _context_tokens(folder: Path, config: dict[str, Any]) -> int:
    tokenizer_config = _read_json(folder / "tokenizer_config.json")
    for source in (config, config.get("text_config") or {}, tokenizer_config):
        for key in _CONTEXT_KEYS:
            value = source.get(key)
            if isinstance(value, int) and 0 < value < _CONTEXT_LIMIT:
                return value
    return _UNKNOWN_CONTEXT
