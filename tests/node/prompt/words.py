"""Requests, and a model folder whose tokens are whole words."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from node.ipc.generate import SamplingParams
from node.prompt.prompt import Prompt
from node.request import Message, TextRequest
from tests.node.tokenizers import made_folder

WORDS = ["[UNK]", "[BOS]", "<system>", "<developer>", "<user>", "<assistant>", "a", "b", "c"]
TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'c' %}{{ raise_exception('No c, please.') }}"
    "{% endif %}<{{ m.role }}> {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def words_folder(folder: Path, template: str | None) -> Path:
    """A model folder with a tokenizer of whole words."""
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[BOS] $A", special_tokens=[("[BOS]", 1)]
    )
    return made_folder(folder, tokenizer, template)


def asking(**fields: Any) -> TextRequest:
    known = {"sampling": SamplingParams(), "stops": (), "max_tokens": None, "stream": False}
    return TextRequest("m", **{**known, **fields})


def chat(*messages: tuple[Any, Any]) -> TextRequest:
    return asking(messages=tuple(Message(role, content) for role, content in messages))


def completion(prompt: str | tuple[int, ...], **fields: Any) -> TextRequest:
    return asking(prompt=prompt, prompt_field="prompt", **fields)


def words(prompt: Prompt) -> str:
    return " ".join(WORDS[token] for token in prompt.tokens)
