"""JSON as models write it: strictly valid, or no JSON at all."""

import json
import re
from typing import Any, NoReturn


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode
_decode_lenient = json.JSONDecoder(parse_constant=_refuse_constant, strict=False).decode


def read_json(text: str) -> Any:
    """The value of a JSON text, in which strings may span lines. Raises `ValueError`."""
    try:
        return _decode_lenient(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def is_strict_json(text: str) -> bool:
    """Whether any JSON reader takes the text."""
    try:
        _decode(text)
        text.encode()
    except (ValueError, RecursionError):
        return False
    return True


def write_json(value: Any) -> str:
    """The JSON text of a value that `read_json` gave."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        # A lone surrogate, which only an escape can hold.
        return json.dumps(value)
    return text


_OUTSIDE = re.compile(r'["{}\[\]]|[^\s\w:,.+-]')
_INSIDE = re.compile(r'["\\]')


class JsonScan:
    """Finds where an object, a list or a string ends that comes in pieces."""

    def __init__(self) -> None:
        self.is_whole = False
        self._depth = 0
        self._is_inside = False
        """Of a string."""
        self._is_escaped = False
        """Whether the next character is, in a string."""

    def read(self, text: str, begin: int, end: int) -> int:
        """Up to where it was read: the value's end, or that of the text. Raises `ValueError` at a
        character that no JSON has outside of strings."""
        at = begin
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
            self._take(match[0])
            self.is_whole = self._depth == 0 and not self._is_inside
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
