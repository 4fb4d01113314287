"""Model folders with small tokenizers of several kinds, made here."""

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
    """A byte-level BPE, as of GPT-2 and its successors."""
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


def prepending() -> Tokenizer:
    """A BPE that puts a space before each piece of text and spells what it does not know in bytes,
    as of Llama 2."""
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    learning = Tokenizer(models.BPE(unk_token="<unk>"))
    learning.normalizer = normalizer
    learned = json.loads(_trained(learning, list("<|>▁"), specials=False).to_str())["model"]
    vocabulary = learned["vocab"]
    for number in range(256):
        vocabulary[f"<0x{number:02X}>"] = len(vocabulary)
    merges = [tuple(pair) for pair in learned["merges"]]
    model = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    _add_specials(tokenizer)
    return tokenizer


def _trained(tokenizer: Tokenizer, alphabet: list[str], *, specials: bool) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=["<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator([_TEXT] * 4, trainer)
    if specials:
        _add_specials(tokenizer)
    return tokenizer


def _add_specials(tokenizer: Tokenizer) -> None:
    # The names of real ones may begin alike, and only the longest counts.
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIALS])
    tokenizer.add_special_tokens([AddedToken("<|end|>s", normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<|rest|>", rstrip=True, normalized=False)])


def made_folder(folder: Path, tokenizer: Tokenizer, template: str | None) -> Path:
    """A model folder with that tokenizer and chat template, and without weights."""
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder
