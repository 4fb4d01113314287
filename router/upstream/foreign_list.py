"""Reads the list of models of a third-party server."""

import msgspec

from node.protocol.bounds import NAME_CHARS
from node.protocol.names import is_name
from router.errors import NodeRefused

MAX_FOREIGN_MODELS = 1000
_LIST_COMMAS = 100_000
"""Most commas in a list of models. Decoding blocks the event loop, for a time that depends on the
number of values."""
_NAME_BYTES = 2 + 12 * NAME_CHARS
"""Longest JSON of a name, with each character as two escapes."""


class ForeignModels(msgspec.Struct):
    """A third-party server's list of models; Ollama sends null if it has none."""

    data: list[msgspec.Raw] | None


class _ForeignModel(msgspec.Struct):
    id: msgspec.Raw


def listed_names(body: bytes, url: str) -> list[str]:
    """Returns the ids in a list of models, at most `MAX_FOREIGN_MODELS`; ids that are not valid
    names are skipped. Raises `NodeRefused`, which names the list's URL."""
    if body.count(b",") > _LIST_COMMAS:
        raise NodeRefused(f"{url} lists more than {_LIST_COMMAS:,} values.")
    try:
        listed = msgspec.json.decode(body, type=ForeignModels).data or []
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NodeRefused(f"{url} does not list models.") from error
    names = [_name(entry) for entry in listed[:MAX_FOREIGN_MODELS]]
    return list(dict.fromkeys(name for name in names if name is not None))


def _name(entry: msgspec.Raw) -> str | None:
    """Returns the name in an entry of a list of models, if it has a valid one."""
    try:
        written = msgspec.json.decode(entry, type=_ForeignModel).id
        if len(memoryview(written)) > _NAME_BYTES:
            return None
        name = msgspec.json.decode(written, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return name if is_name(name) else None
