"""Model folders with small tokenisers of several kinds, made here."""

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SPECIALS = ["<|begin|>", "<|end|>", "<think>", "</think>"]
_TEXT = (
    "system user assistant the weather in Paris is fine today and the tool says so\n"
    "What is it like there? User: Assistant: hello   world\n\nthinking about it, a b c x y"
)


def byte_level(*, trim_offsets: bool = True, specials: bool = True) -> Tokenizer:
    """A byte-level BPE, as of GPT-2 and what came after it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    tokenizer.decoder = decoders.ByteLevel()
    return _trained(tokenizer, pre_tokenizers.ByteLevel.alphabet(), specials=specials)


def metaspace(*, scheme: str = "first") -> Tokenizer:
    """A BPE on words with their space, as of SentencePiece."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    return _trained(tokenizer, [chr(number) for number in range(32, 127)], specials=True)


def _trained(tokenizer: Tokenizer, alphabet: list[str], *, specials: bool) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=["<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator([_TEXT] * 4, trainer)
    if specials:
        # The names of real ones may begin alike, and only the longest counts.
        tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIALS])
        tokenizer.add_special_tokens([AddedToken("<|end|>s", normalized=False)])
        tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    return tokenizer


def made_folder(folder: Path, tokenizer: Tokenizer, template: str | None) -> Path:
    """A model folder with that tokeniser and chat template, and without weights."""
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder
