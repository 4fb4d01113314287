"""A tiny random llama with a tokenizer of its own, made in a fraction of a second without MLX.

Its text is noise, but the same noise every time, and it depends on the whole prompt.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

VOCAB_SIZE = 512
CONTEXT_TOKENS = 4096
HIDDEN = 64
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
INNER = 128
LAYERS = 2

SPECIAL_TOKENS = ["<|end|>", "<|im_start|>", "<|im_end|>"]

_CORPUS = """
A small ship left the harbour at dawn, and nobody on the quay knew where it was going. The baker
said north, the smith said south; the children, who had asked the sailors, said nothing at all.
def area(width, height):
    return width * height
{"city": "Oslo", "population": 717710, "coast": true}
Why do cats purr? Nobody is quite sure. One theory says that it helps their bones to heal.
"""

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny(folder: Path, markers: Sequence[str] = (), **config: Any) -> Path:
    """Writes the model into a new folder; `markers` are tokens of its vocabulary besides, `config`
    overrides entries of config.json."""
    folder.mkdir(parents=True)
    tokenizer = _make_tokenizer()
    tokenizer.add_special_tokens(list(markers))
    vocab_size = max(VOCAB_SIZE, tokenizer.get_vocab_size(with_added_tokens=True))
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "chat_template": _CHAT_TEMPLATE,
        },
    )
    _write_json(folder / "generation_config.json", {"eos_token_id": [2, 0]})
    _write_json(
        folder / "config.json",
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": vocab_size,
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "max_position_embeddings": CONTEXT_TOKENS,
            "tie_word_embeddings": False,
            "eos_token_id": 2,
            "torch_dtype": "float32",
            **config,
        },
    )
    save_file(_weights(vocab_size), folder / "model.safetensors", metadata={"format": "mlx"})
    return folder


def tiny_tokenizer(folder: Path) -> Tokenizer:
    """Returns the tokenizer of a model that `make_tiny` wrote."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1))


def _make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_CORPUS], trainer)
    return tokenizer


def _weights(vocab_size: int) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Matrices of variance 1 / fan-in. A strong head spreads the logits, so that rounding never
    decides which token is likeliest."""
    random = np.random.default_rng(7)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Any:
        values = random.standard_normal((rows, columns)) * scale / np.sqrt(columns)
        return values.astype(np.float32)

    ones = np.ones(HIDDEN, dtype=np.float32)
    weights = {
        "model.embed_tokens.weight": matrix(vocab_size, HIDDEN, 4.0),
        "model.norm.weight": ones,
        "lm_head.weight": matrix(vocab_size, HIDDEN, 3.0),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        weights |= {
            name + "input_layernorm.weight": ones,
            name + "post_attention_layernorm.weight": ones,
            name + "self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, HIDDEN, 2.0),
            name + "self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN, 2.0),
            name + "self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN, 2.0),
            name + "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_DIM, 2.0),
            name + "mlp.gate_proj.weight": matrix(INNER, HIDDEN),
            name + "mlp.up_proj.weight": matrix(INNER, HIDDEN),
            name + "mlp.down_proj.weight": matrix(HIDDEN, INNER),
        }
    return weights
