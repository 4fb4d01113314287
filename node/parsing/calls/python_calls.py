"""Calls in Python's syntax: `f(a="v", n=1)`, alone or in a list. They are never evaluated.

Models write it loosely: constants in JSON's words, newlines within strings, quotes that should have
been escaped. A string therefore ends at the first quote that is followed by something that may
follow a string there; if that fails, at a later one.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

Value: TypeAlias = Any


class PythonCall(NamedTuple):
    name: str
    arguments: dict[str, Value]


class NotPythonCalls(Exception):
    """The text is not a list of calls."""


_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[\w.\-:/]+")
_KEY = re.compile(r"[\w.\-]+")
_WORD = re.compile(r"[A-Za-z]+")
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_QUOTE = re.compile(r"'''|\"\"\"|'|\"")
_QUOTED = re.compile(r"\\.?|['\"]", re.DOTALL)
_QUOTED_BY = {quote: re.compile(r"\\.|" + quote, re.DOTALL) for quote in ("'''", '"""', "'", '"')}
_CONSTANTS: Mapping[str, Value] = {"true": True, "false": False, "null": None, "none": None}

_AFTER_ARGUMENT = re.compile(r"\s*(?:\)|,\s*(?:[\w.\-]+\s*=|\)))")
_AFTER_ITEM = re.compile(r"\s*[,\]})]")
_AFTER_FIRST = re.compile(r"\s*[:,}]")
"""Text behind the first key of a dictionary, or the first item of a set."""
_AFTER_KEY = re.compile(r"\s*:")

_ESCAPE = re.compile(
    r"\\(?:([\\'\"abfnrtv\n])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))"
)
_ESCAPED: Mapping[str, str] = {
    **dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True)),
    "\\": "\\",
    "'": "'",
    '"': '"',
    "\n": "",
}
_FLAT_ITEM = re.compile(
    r"\s*+(?:(?P<quote>['\"])(?P<text>[^'\"\\]*+)(?P=quote)|(?P<number>-?(?:0|[1-9]\d{0,17}+)))"
    r"\s*+(?:,|(?=\]))"
)
"""An item as most are in long lists, which cannot be read in another way."""
_LONGEST_SEARCH = 1 << 16
"""Most characters searched in all for the ends of strings; the text itself is searched at least
twice."""
DEPTH = 64
"""Deepest nesting of brackets."""


def read_calls(text: str) -> list[PythonCall]:
    """Returns the calls in the text, at least one. Raises `NotPythonCalls`."""
    ends: dict[int, int] = {}
    for _ in range(max(2, _LONGEST_SEARCH // (len(text) + 1))):
        reader = _PythonReader(text, ends)
        try:
            return reader.calls()
        except NotPythonCalls:
            if not reader.another_end():
                break
    raise NotPythonCalls(text)


class Quotes:
    """Tracks if a string is open at the end of the text read, provided that quotes are escaped
    correctly."""

    def __init__(self) -> None:
        self._quote = ""
        self._is_escaped = False

    @property
    def is_open(self) -> bool:
        return bool(self._quote)

    def read(self, text: str) -> None:
        begin = int(self._is_escaped and bool(text))
        self._is_escaped = self._is_escaped and not text
        for match in _QUOTED.finditer(text, begin):
            mark = match[0]
            if mark in ("'", '"') and self._quote in ("", mark):
                self._quote = "" if self._quote else mark
            self._is_escaped = mark == "\\"


class _String(NamedTuple):
    begin: int
    quote: str
    after: "re.Pattern[str]"
    """Matches the text that may follow the string."""


class _PythonReader:
    """Reads the text once, with the ends of strings as chosen so far."""

    def __init__(self, text: str, ends: dict[int, int]) -> None:
        """`ends` has the end of each string by its start."""
        self._text = text
        self._at = 0
        self._ends = ends
        self._strings: list[_String] = []

    def another_end(self) -> bool:
        """Chooses the next possible end of the last string that has one; False if none has."""
        while self._strings:
            string = self._strings.pop()
            end = self._find_end(string, self._ends.pop(string.begin) + 1)
            if end is not None:
                self._ends[string.begin] = end
                return True
        return False

    def calls(self) -> list[PythonCall]:
        self._space()
        if self._accept("["):
            calls = self._items("]", self._call)
        else:
            calls = [self._call()]
            while True:
                self._space()
                if self._accept(",") or self._accept(";"):
                    self._space()
                if self._at >= len(self._text):
                    break
                calls.append(self._call())
        self._space()
        if self._at < len(self._text) or not calls:
            raise NotPythonCalls
        return calls

    def _call(self) -> PythonCall:
        name = self._match(_NAME)
        self._space()
        self._expect("(")
        return PythonCall(name, dict(self._items(")", self._argument)))

    def _argument(self) -> tuple[str, Value]:
        name = self._match(_KEY)
        self._space()
        self._expect("=")
        self._space()
        return name, self._value(_AFTER_ARGUMENT, 0)

    def _value(self, after: "re.Pattern[str]", depth: int) -> Value:
        if depth > DEPTH:
            raise NotPythonCalls
        first = self._text[self._at : self._at + 1]
        if first and first in "'\"":
            return self._string(after)
        if self._accept("["):
            flat = self._flat_items()
            return flat + self._items("]", lambda: self._value(_AFTER_ITEM, depth + 1))
        if self._accept("("):
            return self._items(")", lambda: self._value(_AFTER_ITEM, depth + 1))
        if self._accept("{"):
            return self._braced(depth + 1)
        if (number := _NUMBER.match(self._text, self._at)) is not None:
            self._at = number.end()
            return _number(number[0])
        word = self._match(_WORD).lower()
        if word not in _CONSTANTS:
            raise NotPythonCalls
        return _CONSTANTS[word]

    def _flat_items(self) -> list[Value]:
        """Reads a list's items, with their separators, as long as they are simple."""
        items: list[Value] = []
        while (match := _FLAT_ITEM.match(self._text, self._at)) is not None:
            quote, text, number = match.groups()
            if number is not None:
                items.append(int(number))
            else:
                begin = match.start("text")
                if self._ends.setdefault(begin, match.end("text")) != match.end("text"):
                    # A later quote was chosen as its end.
                    break
                self._strings.append(_String(begin, quote, _AFTER_ITEM))
                items.append(text)
            self._at = match.end()
        return items

    def _braced(self, depth: int) -> Value:
        """Reads a dictionary, or a set, which becomes a list as in JSON."""
        self._space()
        if self._accept("}"):
            return {}
        first = self._value(_AFTER_FIRST, depth)
        self._space()
        if not self._accept(":"):
            return [first, *self._more_items("}", lambda: self._value(_AFTER_ITEM, depth))]
        member = self._member(first, depth)
        return dict([member, *self._more_items("}", lambda: self._pair(depth))])

    def _pair(self, depth: int) -> tuple[str, Value]:
        key = self._value(_AFTER_KEY, depth)
        self._space()
        self._expect(":")
        return self._member(key, depth)

    def _member(self, key: Value, depth: int) -> tuple[str, Value]:
        """Returns the member with its value, reading from behind the colon."""
        self._space()
        if isinstance(key, list | dict):
            raise NotPythonCalls
        return str(key), self._value(_AFTER_ITEM, depth)

    def _more_items(self, closer: str, read: Callable[[], Value]) -> list[Value]:
        """Reads the items behind the first."""
        self._space()
        if self._accept(","):
            return self._items(closer, read)
        self._expect(closer)
        return []

    def _items(self, closer: str, read: Callable[[], Value]) -> list[Value]:
        items: list[Value] = []
        while True:
            self._space()
            if self._accept(closer):
                return items
            items.append(read())
            self._space()
            if not self._accept(","):
                self._expect(closer)
                return items

    def _string(self, after: "re.Pattern[str]") -> str:
        quote = self._match(_QUOTE)
        string = _String(self._at, quote, after)
        end = self._ends.get(string.begin)
        if end is None:
            end = self._find_end(string, string.begin)
            if end is None:
                raise NotPythonCalls
            self._ends[string.begin] = end
        self._strings.append(string)
        self._at = end + len(quote)
        return _ESCAPE.sub(_unescape, self._text[string.begin : end])

    def _find_end(self, string: _String, begin: int) -> int | None:
        """Returns the position of a quote, at or behind `begin`, that may end the string."""
        for match in _QUOTED_BY[string.quote].finditer(self._text, begin):
            if match[0] == string.quote and string.after.match(self._text, match.end()):
                return match.start()
        return None

    def _space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _accept(self, literal: str) -> bool:
        found = self._text.startswith(literal, self._at)
        self._at += len(literal) * found
        return found

    def _expect(self, literal: str) -> None:
        if not self._accept(literal):
            raise NotPythonCalls

    def _match(self, pattern: "re.Pattern[str]") -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise NotPythonCalls
        self._at = match.end()
        return match[0]


def _number(text: str) -> int | float:
    digits = text.replace("_", "")
    try:
        # Dates are written with leading zeros.
        value = float(digits) if any(each in digits for each in ".eE") else int(digits)
    except ValueError:
        raise NotPythonCalls from None
    if not math.isfinite(value):
        raise NotPythonCalls
    return value


def _unescape(match: "re.Match[str]") -> str:
    if match[1]:
        return _ESCAPED[match[1]]
    code = int(match[2] or match[3] or match[4], 16)
    return chr(code) if code < 0x110000 else match[0]
