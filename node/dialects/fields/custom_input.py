"""The text that answers a custom tool, which the model gives as the only argument of a function."""

import json
import re
from collections.abc import Mapping
from typing import Any

INPUT = "input"
"""Name of the argument."""
PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}

_LONGEST_BEGIN = 64
"""Characters."""
_BEGIN = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_HEX, _HIGH, _LOW = r"[0-9a-fA-F]{4}", r"[dD][89abAB]", r"[dD][c-fC-F]"
_CHARACTERS = re.compile(
    r'(?:[^"\\]+|\\[^u]'
    rf"|\\u(?!{_HIGH}){_HEX}"
    rf"|\\u{_HIGH}[0-9a-fA-F]{{2}}"
    # A character of two codes is whole with the second; else something else has to follow.
    rf"(?:\\u{_LOW}[0-9a-fA-F]{{2}}|(?=[^\\]|\\[^u]|\\u(?!{_LOW}){_HEX})))*"
)
"""Of a JSON string, as far as each is whole."""


def arguments_of(text: str) -> str:
    """The arguments of a call that answered with this text."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def input_of(arguments: str) -> str:
    """The text of a call whose arguments are whole."""
    reader = InputReader()
    return reader.take(arguments) + reader.rest()


class InputReader:
    """Reads the text out of the JSON of a call's arguments as it comes, in pieces of any length.
    Arguments of another form, which a model may say that is not held, are the text as they are,
    or their only string."""

    def __init__(self) -> None:
        self._held = ""
        """What has come and is not told."""
        self._others: list[str] = []
        """What has come of arguments of another form."""
        self._is_inside = False
        """Of the text."""
        self._has_ended = False
        """The text; nothing of what follows is told."""

    def take(self, piece: str) -> str:
        """What of the text has come with the piece; may be nothing."""
        if self._has_ended:
            return ""
        if self._others:
            self._others.append(piece)
            return ""
        self._held += piece
        if not self._is_inside and not self._begin():
            return ""
        found = _CHARACTERS.match(self._held)
        end = found.end() if found else 0
        text, self._held = self._held[:end], self._held[end:]
        self._has_ended = self._held.startswith('"')
        return _decoded(text)

    @property
    def is_whole(self) -> bool:
        """Whether all of the arguments have come, as far as the text goes."""
        held = "".join(self._others) or self._held
        return self._has_ended or (not self._is_inside and _is_json(held))

    def rest(self) -> str:
        """What is left to tell at the end of the call."""
        if self._is_inside:
            return ""
        held = "".join(self._others) or self._held
        try:
            given = json.loads(held)
        except (ValueError, RecursionError):
            return held
        values = list(given.values()) if isinstance(given, dict) else [given]
        if isinstance(given, dict) and isinstance(given.get(INPUT), str):
            values = [given[INPUT]]
        return _whole(values[0]) if len(values) == 1 and isinstance(values[0], str) else held

    def _begin(self) -> bool:
        """Whether the text has begun."""
        found = _BEGIN.match(self._held)
        if found is not None:
            self._held = self._held[found.end() :]
            self._is_inside = True
        elif len(self._held) > _LONGEST_BEGIN:
            self._others.append(self._held)
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
    """Without halves of characters, which no answer can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
