"""What names a picture, a sound or another file within a message: its bytes, or its address."""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

_SOURCES = (
    "source",
    "url",
    "data",
    "image_url",
    "input_audio",
    "audio_url",
    "video_url",
    "video",
    "file",
    "file_data",
    "file_url",
    "file_id",
)
"""Where the dialects have it, one within the other."""


def media_digest(part: Mapping[str, Any]) -> bytes | None:
    """The SHA-256 of a part's content, as hexadecimal digits; None where it has none."""
    source: object = part
    while isinstance(source, Mapping):
        held: Mapping[str, Any] = source
        source = next((held[name] for name in _SOURCES if held.get(name)), None)
    if not isinstance(source, str):
        return None
    return hashlib.sha256(_content(source)).hexdigest().encode()


def _content(source: str) -> bytes:
    """The bytes of a data URL or of base64; else the address itself."""
    head, comma, data = source.partition(",") if source.startswith("data:") else ("", "", source)
    if comma and not head.endswith(";base64"):
        return unquote_to_bytes(data)
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return source.encode("utf-8", "surrogatepass")
