"""Grammars that hold an output: text of llguidance's dialect of Lark, put together from pieces.

Each method gives an expression that can stand in a rule. A marker that the vocabulary has as a
token of its own is written as that token, since no other spelling of it counts, and since text
then never holds it.
"""

import json
import re
from collections.abc import Mapping, Sequence

from node.parsing.held_schema import held_schema


class Lark:
    """The rules of one grammar."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        """`tokens`: ids of the vocabulary's added tokens by their text."""
        self._tokens = tokens
        self._rules: list[str] = []
        self._names: dict[str, str] = {}
        longest_first = sorted(filter(None, tokens), key=len, reverse=True)
        self._markers = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def text(self, text: str) -> str:
        """Exactly this text, which may hold markers."""
        return " ".join(self._pieces(text)) or '""'

    def json(self, schema: object, param: str) -> str:
        """A JSON value that fits the schema, with little white space. Raises `NotHeld` with
        `param` for a schema that cannot be held."""
        return self.rule("%json " + json.dumps(held_schema(schema, param), ensure_ascii=False))

    def regex(self, pattern: str) -> str:
        """Text that matches all of the pattern, of the syntax of Rust's regex crate."""
        escaped = re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern).replace("\n", r"\n")
        return self._named(f"/{escaped}/", upper=True)

    def until(self, closer: str) -> str:
        """Any text that does not hold the closer, and the closer."""
        first, *rest = self._pieces(closer)
        if first.startswith("<["):
            return " ".join((self.regex(r"(.|\n)*"), first, *rest))
        # A closer of text and tokens: its first text ends what comes before.
        name = f"t{len(self._rules)}"
        self._rules.append(f"{name}[suffix={first}]: /(.|\\n)*/")
        return " ".join((name, *rest))

    def rule(self, expression: str) -> str:
        """The name of a rule for the expression."""
        return self._named(expression, upper=False)

    def one_of(self, expressions: Sequence[str]) -> str:
        """Any of at least one."""
        return self.rule(" | ".join(expressions))

    def optional(self, expression: str) -> str:
        return f"({expression})?"

    def many(self, expression: str, separator: str = "") -> str:
        """One or more, with the expression `separator` between them."""
        each = self.rule(expression)
        return f"{each} ({separator} {each})*" if separator else f"{each}+"

    def grammar(self, start: str) -> str:
        """The text of the grammar of what `start` says."""
        return "\n".join((f"start: {start}", *self._rules, ""))

    def _pieces(self, text: str) -> list[str]:
        pieces, at = [], 0
        for found in self._markers.finditer(text):
            if found.start() > at:
                pieces.append(_quoted(text[at : found.start()]))
            pieces.append(f"<[{self._tokens[found[0]]}]>")
            at = found.end()
        if at < len(text):
            pieces.append(_quoted(text[at:]))
        return pieces

    def _named(self, body: str, *, upper: bool) -> str:
        name = self._names.get(body)
        if name is None:
            name = f"{'T' if upper else 'r'}{len(self._rules)}"
            self._names[body] = name
            self._rules.append(f"{name}: {body}")
        return name


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
