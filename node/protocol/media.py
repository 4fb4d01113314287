"""Placeholders for pictures, sounds and files, which no model here accepts: a line of text.

Router and agent make the same line, and the same in every turn, so that a session's prompts share a
prefix.
"""

from collections.abc import Mapping, Sequence
from typing import Any

_NOUNS: Mapping[str, str] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "computer_screenshot": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "output_audio": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
    "file": "file",
    "input_file": "file",
    "container_upload": "file",
    "document": "document",
}
"""Nouns by the type of a part or a block in any dialect."""


def noun_of(kind: object) -> str | None:
    """The noun for a part of this type; None for a type that is no media."""
    return _NOUNS.get(kind) if isinstance(kind, str) else None


def line_of(noun: str) -> str:
    """The placeholder for media of this kind."""
    return f"[{noun} left out: this model takes text only]"


def document_text(block: Mapping[str, Any]) -> str:
    """The text that a prompt shows for a block of type `document`: title, context, and its text or
    the placeholder."""
    texts = [block.get("title"), block.get("context"), *_source_texts(block.get("source"))]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def is_text_document(block: Mapping[str, Any]) -> bool:
    """True if a prompt shows the whole document."""
    source = block.get("source")
    if not isinstance(source, Mapping) or source.get("type") != "content":
        return isinstance(source, Mapping) and source.get("type") == "text"
    content = source.get("content")
    blocks = content if isinstance(content, list) else ()
    return all(isinstance(each, Mapping) and each.get("type") == "text" for each in blocks)


def search_result_text(block: Mapping[str, Any]) -> str:
    """The text that a prompt shows for a block of type `search_result`."""
    texts = [block.get("title"), block.get("source"), *_block_texts(block.get("content"))]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def _source_texts(source: object) -> Sequence[object]:
    if isinstance(source, Mapping) and source.get("type") == "text":
        return [source.get("data")]
    if isinstance(source, Mapping) and source.get("type") == "content":
        content = source.get("content")
        return [content] if isinstance(content, str) else _block_texts(content)
    return [line_of("document")]


def _block_texts(blocks: object) -> Sequence[object]:
    if not isinstance(blocks, list):
        return ()
    given = (block for block in blocks if isinstance(block, Mapping))
    return [
        block.get("text") if block.get("type") == "text" else line_of("document") for block in given
    ]
