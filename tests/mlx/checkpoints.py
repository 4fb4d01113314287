"""Tiny random checkpoints of any type, with foreign parts, other prefixes and mixed bits."""

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from tests.mlx.tiny import CONTEXT_TOKENS, VOCAB_SIZE

TEXT: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": CONTEXT_TOKENS,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
LLAMA = {**TEXT, "model_type": "llama"}
GEMMA3_TEXT = {
    **TEXT,
    "model_type": "gemma3_text",
    "sliding_window": 32,
    "sliding_window_pattern": 2,
    "query_pre_attn_scalar": 16,
}
GEMMA3 = {"model_type": "gemma3", "vocab_size": VOCAB_SIZE, "text_config": GEMMA3_TEXT}
QWEN3_VL = {"model_type": "qwen3_vl", "text_config": {**TEXT, "model_type": "qwen3_vl_text"}}
QWEN3_5_TEXT = {
    **TEXT,
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [1, 1, 0],
    },
}
QWEN3_5 = {"model_type": "qwen3_5", "text_config": QWEN3_5_TEXT}


def make_network(config: dict[str, Any]) -> Any:
    """A random network of mlx_lm's class for the config, always the same one."""
    module: Any = import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(3)
    network = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(config))))
    mx.eval(network.parameters())
    return network


def arrays(network: Any) -> dict[str, mx.array]:
    parameters: Any = tree_flatten(network.parameters())
    return dict(parameters)


def write(
    folder: Path,
    tokenizer: Path,
    config: dict[str, Any],
    weights: dict[str, mx.array],
    rename: Callable[[str], str] = lambda name: name,
) -> Path:
    """A model folder with the tokenizer of the folder `tokenizer`."""
    folder.mkdir()
    shutil.copy(tokenizer / "tokenizer.json", folder)
    (folder / "config.json").write_text(json.dumps(config))
    named = {rename(name): array for name, array in weights.items()}
    assert len(named) == len(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), named, metadata={"format": "mlx"})
    return folder


def foreign(*names: str, values: int = 1000) -> dict[str, mx.array]:
    """Float32 tensors that text has no use for."""
    return {name: mx.ones((values,)) for name in names}


def logits(network: Any) -> mx.array:
    """Returns the logits of a prompt of eight tokens, in float32."""
    found: mx.array = network(mx.arange(8)[None]).astype(mx.float32)
    return found
