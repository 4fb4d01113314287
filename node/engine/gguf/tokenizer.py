"""Writes a byte-level BPE tokenizer from a GGUF's metadata, in Hugging Face's file formats."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split
from tokenizers.processors import TemplateProcessing

from node.engine.gguf.reader import GgufError

_CONTROL, _USER_DEFINED = 3, 4

# Split patterns of the named pre-tokenizers before BPE. {n} is the number of digits in one piece.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{n}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA_PRE = ("llama-bpe", "llama3", "llama-v3")
_KNOWN_PRE = ("smollm", "gpt-2", "qwen2", *_LLAMA_PRE)
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def special_ids(metadata: dict[str, Any]) -> dict[str, int]:
    """Returns the token ids of the roles that the file defines: bos_token, eos_token, unk_token,
    pad_token, and eot_token if turns end with a token of their own. Raises `GgufError`."""
    count = len(_texts(metadata, "tokens"))
    found = {}
    for role, key in (*_ROLES.items(), ("eot_token", "eot_token_id")):
        value = metadata.get(f"tokenizer.ggml.{key}")
        # llama.cpp writes the largest number if a model has no such token.
        if value is None or value == 2**32 - 1:
            continue
        if not isinstance(value, int) or not 0 <= value < count:
            raise GgufError(f"The tokenizer's {key} is {value!r}, which is no token's id.")
        found[role] = value
    return found


def write_tokenizer(metadata: dict[str, Any], folder: Path, context_tokens: int) -> None:
    """Writes tokenizer.json, tokenizer_config.json and, if the file has a chat template,
    chat_template.jinja. Raises `GgufError`."""
    tokens = _texts(metadata, "tokens")
    roles = {role: tokens[token_id] for role, token_id in special_ids(metadata).items()}
    _tokenizer(metadata, tokens, roles).save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_tokens,
        "clean_up_tokenization_spaces": False,
    }
    config |= {role: roles[role] for role in _ROLES if role in roles}
    text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n")
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        (folder / "chat_template.jinja").write_text(template)


def _tokenizer(metadata: dict[str, Any], tokens: list[str], roles: dict[str, str]) -> Tokenizer:
    kind = metadata.get("tokenizer.ggml.model")
    pre = metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2":
        raise GgufError(
            f"The tokenizer is of the kind {kind!r}; only byte-level BPE (gpt2) can be imported."
        )
    if pre not in _KNOWN_PRE:
        raise GgufError(
            f"The tokenizer splits text the way of {pre!r}; known are {', '.join(_KNOWN_PRE)}."
        )
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise GgufError("The tokenizer has two tokens with the same text.")
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=_merges(metadata, vocab), ignore_merges=pre in _LLAMA_PRE)
    )
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, metadata, tokens)
    _add_edges(tokenizer, metadata, roles, pre)
    return tokenizer


def _pre_tokenizer(pre: str) -> PreTokenizer:
    if pre == "gpt-2":
        return ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "smollm":
        digits = Digits(individual_digits=True)
        return Sequence([digits, ByteLevel(add_prefix_space=False, use_regex=True)])
    regex = Regex(_WORDS.format(n="" if pre == "qwen2" else "{1,3}"))
    split = Split(regex, behavior="isolated", invert=False)
    return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])


def _merges(metadata: dict[str, Any], vocab: dict[str, int]) -> list[tuple[str, str]]:
    merges = []
    for merge in _texts(metadata, "merges"):
        left, _, right = merge.partition(" ")
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise GgufError(f"The tokenizer's merge {merge!r} is not of its own tokens.")
        merges.append((left, right))
    return merges


def _add_tokens(tokenizer: Tokenizer, metadata: dict[str, Any], tokens: list[str]) -> None:
    types = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, list) or len(types) != len(tokens):
        raise GgufError("The tokenizer does not give a type for each token.")
    added = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (_CONTROL, _USER_DEFINED) and token
    ]
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])


def _add_edges(
    tokenizer: Tokenizer, metadata: dict[str, Any], roles: dict[str, str], pre: str
) -> None:
    add_bos = metadata.get("tokenizer.ggml.add_bos_token", pre in _LLAMA_PRE)
    add_eos = metadata.get("tokenizer.ggml.add_eos_token", False)
    before = _edge(roles, "bos_token") if add_bos else []
    after = _edge(roles, "eos_token") if add_eos else []
    if not before and not after:
        return
    tokenizer.post_processor = TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *before, "$B:1", *after],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in {*before, *after}],
    )


def _edge(roles: dict[str, str], role: str) -> list[str]:
    token = roles.get(role)
    if token is None:
        raise GgufError(f"The tokenizer adds a {role} to each text, but names none.")
    # The template's own syntax: "$A", "token:1".
    if token.startswith("$") or ":" in token:
        raise GgufError(f"The tokenizer's {role} {token!r} cannot be added to texts.")
    return [token]


def _texts(metadata: dict[str, Any], key: str) -> list[str]:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise GgufError(f"The file has no list tokenizer.ggml.{key}.")
    return value
