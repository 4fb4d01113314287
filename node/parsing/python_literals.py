"""Literals of Python, as models write them in calls."""

import json

from node.parsing.held_values import Flat, Place
from node.parsing.lark import Lark, Text
from node.parsing.literal_values import Language
from node.parsing.text_patterns import has_length, length_of, patterns_of

_PLAIN = r"[^'\"\\\x00-\x1f]"
"""Characters that stand for themselves between any quotes."""
_ESCAPE = r"\\['\"\\nrt]"
_QUOTES = ('"', "'")


class PythonLiterals(Language):
    # Some templates write nested values as JSON.
    words = {True: ("True", "true"), False: ("False", "false"), None: ("None", "null")}
    separator = ", "

    def __init__(self, closer: str) -> None:
        """`closer` ends the block of calls, so no string holds it; it may be empty."""
        self._closer = closer

    def spell_text(self, lark: Lark, flat: Flat, place: Place) -> str:
        length = length_of(flat) if has_length(flat) else "*"
        said = {key: value for key, value in flat.items() if not key.endswith("Length")}
        patterns = patterns_of(said, place)
        return " | ".join(self._between(lark, quote, patterns, length) for quote in _QUOTES)

    def spell_string(self, lark: Lark, value: str) -> str:
        if self._closer and self._closer in value:
            return ""
        # Escapes of JSON are those of Python too.
        return lark.text(json.dumps(value, ensure_ascii=False))

    def spell_key(self, lark: Lark, name: str, place: Place) -> str:
        return f"{self.spell_string(lark, name)} {lark.text(': ')}"

    def spell_any_key(self, lark: Lark) -> str:
        return f"{self._between(lark, _QUOTES[0], [], '*')} {lark.text(': ')}"

    def _between(self, lark: Lark, quote: str, patterns: list[str], length: str) -> str:
        """A string between quotes, with escapes where no pattern is to be matched."""
        other = "'" if quote == '"' else '"'
        unit = _PLAIN if patterns else f"({_PLAIN}|{other}|{_ESCAPE})"
        text = Text((f"{unit}{length}", *patterns))
        end = lark.text(quote)
        return f"{end} {lark.held([text], self._closer)} {end}"
