"""Converts between a custom tool's input, which is text, and the arguments of the function by which
the model calls it: the text is their only member."""

import json
import re
from collections.abc import Mapping
from typing import Any

INPUT = "input"
"""Name of the function's only argument."""
PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}

_LONGEST_BEGIN = 64
"""Most characters before the text that the prefix of a call's arguments may have."""
_BEGIN = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_HEX, _HIGH, _LOW = r"[0-9a-fA-F]{4}", r"[dD][89abAB]", r"[dD][c-fC-F]"
_CHARACTERS = re.compile(
    r'(?:[^"\\]+|\\[^u]'
    rf"|\\u(?!{_HIGH}){_HEX}"
    rf"|\\u{_HIGH}[0-9a-fA-F]{{2}}"
    # A surrogate pair is whole with its second half; a lone first half needs something else behind
    # it.
    rf"(?:\\u{_LOW}[0-9a-fA-F]{{2}}|(?=[^\\]|\\[^u]|\\u(?!{_LOW}){_HEX})))*"
)
"""Matches the characters of a JSON string up to the last one that is complete."""


def arguments_of(text: str) -> str:
    """Returns the arguments of a call whose input is this text."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def input_of(arguments: str) -> str:
    """Returns the input of a call whose arguments are complete."""
    reader = CustomInputReader()
    return reader.feed(arguments) + reader.rest()


class CustomInputReader:
    """Extracts the input from the JSON of a call's arguments as it streams in, in pieces of any
    length.

    A model whose output is not constrained may generate arguments of another form. Their only
    string is then the input, or else their text as it is.
    """

    def __init__(self) -> None:
        self._buffer = ""
        """Received, but not returned yet."""
        self._others: list[str] = []
        """Pieces received of arguments of another form."""
        self._is_inside = False
        """True while the input's own characters are being read."""
        self._has_ended = False
        """True after the end of the input; anything behind it is dropped."""

    def feed(self, piece: str) -> str:
        """Returns the input that is complete with this piece; may be empty."""
        if self._has_ended:
            return ""
        if self._others:
            self._others.append(piece)
            return ""
        self._buffer += piece
        if not self._is_inside and not self._begin():
            return ""
        found = _CHARACTERS.match(self._buffer)
        end = found.end() if found else 0
        text, self._buffer = self._buffer[:end], self._buffer[end:]
        self._has_ended = self._buffer.startswith('"')
        return _decoded(text)

    @property
    def is_whole(self) -> bool:
        """True if the arguments have been received up to the end of the input."""
        buffered = "".join(self._others) or self._buffer
        return self._has_ended or (not self._is_inside and _is_json(buffered))

    def rest(self) -> str:
        """Returns the rest of the input at the end of the call."""
        if self._is_inside:
            return ""
        buffered = "".join(self._others) or self._buffer
        try:
            given = json.loads(buffered)
        except (ValueError, RecursionError):
            return buffered
        values = list(given.values()) if isinstance(given, dict) else [given]
        if isinstance(given, dict) and isinstance(given.get(INPUT), str):
            values = [given[INPUT]]
        return _whole(values[0]) if len(values) == 1 and isinstance(values[0], str) else buffered

    def _begin(self) -> bool:
        """Returns True if the input has begun."""
        found = _BEGIN.match(self._buffer)
        if found is not None:
            self._buffer = self._buffer[found.end() :]
            self._is_inside = True
        elif len(self._buffer) > _LONGEST_BEGIN:
            self._others.append(self._buffer)
        return self._is_inside


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _decoded(text: str) -> str:
    return _whole(json.loads(f'"{text}"', strict=False)) if text else ""


def _whole(text: str) -> str:
    """Replaces lone surrogates, which cannot be encoded in a response."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
