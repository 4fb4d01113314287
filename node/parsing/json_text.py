"""JSON as models write it: read either strictly or with the mistakes that models make."""

import json
import math
import re
import sys
from json.encoder import encode_basestring
from typing import Any, NoReturn


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _shared(digits: str) -> float:
    """Returns a number that every JSON reader can represent. Raises `ValueError`."""
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits} is too large a number")
    return value


def _nearest(digits: str) -> float:
    """Returns the float that is nearest to the digits."""
    value = float(digits)
    return math.copysign(sys.float_info.max, value) if math.isinf(value) else value


def _whole(digits: str) -> int | float:
    """Returns an integer, or the nearest float if Python does not read so many digits."""
    try:
        return int(digits)
    except ValueError:
        return _nearest(digits)


def _once(members: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in members}) < len(members):
        raise ValueError("an object has two members of one name")


_check = json.JSONDecoder(
    object_pairs_hook=_once, parse_constant=_refuse_constant, parse_float=_shared
).decode
_decode_lenient = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_nearest, parse_int=_whole, strict=False
).decode

DEPTH = 128
"""Deepest nesting of brackets; JSON readers and Python's stack have limits of their own."""
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"|([{}\[\]])', re.DOTALL)
_LONE = r"u[dD][89a-fA-F][0-9a-fA-F]{2}"
_PAIR = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf"\\(?:{_PAIR}|({_LONE})|.)", re.DOTALL)
_REPLACEMENT = "\\ufffd"
_VALID_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')


def _without_halves(text: str) -> str:
    """Replaces escapes of single surrogates, which many readers refuse."""
    if "\\ud" not in text and "\\uD" not in text:
        return text
    return _ESCAPE.sub(lambda escape: _REPLACEMENT if escape[1] else escape[0], text)


def _with_backslashes(text: str) -> str:
    """Doubles every backslash that begins no escape: models forget to escape those of patterns and
    paths."""
    return _VALID_ESCAPE.sub(lambda escape: escape[0] if escape[1] else "\\\\", text)


def _refuse_deep(text: str) -> None:
    if text.count("{") + text.count("[") <= DEPTH:
        return
    depth = 0
    for match in _BRACKET.finditer(text):
        bracket = match[1]
        depth += (bracket in ("{", "[")) - (bracket in ("}", "]"))
        if depth > DEPTH:
            raise ValueError("the JSON is nested too deeply")


def read_json(text: str) -> Any:
    """Returns the value of a JSON text. Its strings may span lines and contain backslashes that
    begin no escape. Raises `ValueError`."""
    _refuse_deep(text)
    text = _without_halves(text)
    try:
        return _decode_lenient(text)
    except ValueError:
        if "\\" not in text:
            raise
        return _decode_lenient(_with_backslashes(text))


def is_strict_json(text: str) -> bool:
    """True if any JSON reader accepts the text. Some readers refuse an object with two members of
    one name."""
    try:
        _refuse_deep(text)
        _check(text)
        text.encode()
    except ValueError:
        return False
    return _without_halves(text) == text


def write_json(value: Any) -> str:
    """Returns the JSON text of a value that JSON can express."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        # Python's literals may contain single surrogates.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def write_characters(text: str) -> str:
    """Returns the text as it stands between the quotes of a JSON string."""
    if text.isascii():
        return encode_basestring(text)[1:-1]
    return write_json(text)[1:-1]


_OUTSIDE = re.compile(r'["{}\[\]]|[^\s\w:,.+-]')
_INSIDE = re.compile(r'["\\]')


class JsonScan:
    """Finds the end of an object, list or string that arrives in pieces."""

    def __init__(self) -> None:
        self.is_whole = False
        self.length = 0
        """Number of characters read, including the invalid one if `read` has failed."""
        self._depth = 0
        self._is_inside = False
        """True within a string."""
        self._is_escaped = False
        """True if the next character of the string is escaped."""

    def read(self, text: str, begin: int, end: int) -> int:
        """Returns the position up to which it read: the end of the value, or of the text. Raises
        `ValueError` at a character that JSON has only within strings."""
        at = begin
        before, self.length = self.length, self.length + end - begin
        while at < end and not self.is_whole:
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            pattern = _INSIDE if self._is_inside else _OUTSIDE
            match = pattern.search(text, at, end)
            if match is None:
                return end
            at = match.end()
            self.length = before + at - begin
            self._take(match[0])
            self.is_whole = self._depth == 0 and not self._is_inside
        self.length = before + at - begin
        return at

    def _take(self, mark: str) -> None:
        if mark == "\\":
            self._is_escaped = True
        elif mark == '"':
            self._is_inside = not self._is_inside
        elif mark in "{[":
            self._depth += 1
        elif mark in "}]":
            self._depth -= 1
        else:
            raise ValueError(f"{mark!r} is not JSON")
