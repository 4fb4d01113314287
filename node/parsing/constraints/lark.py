"""Grammars that hold an output: text of llguidance's dialect of Lark, put together from pieces.

Each method gives an expression that can stand in a rule. A marker that the vocabulary has as a
token of its own is written as that token, since no other spelling of it counts, and since text
then never holds it.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from node.parsing.constraints.schema import SOME_WHITE_SPACE, NotHeld, schema_text


class Text(NamedTuple):
    """Text by patterns of the syntax of Rust's regex crate."""

    matches: tuple[str, ...] = ()
    """It matches all of them; any text where there are none."""
    without: tuple[str, ...] = ()
    """It matches none of them."""


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

    def prefer(self, texts: Sequence[str]) -> str:
        """The first of them that begins with a token of its own; else the first."""
        return next((text for text in texts if self._markers.match(text)), texts[0])

    def is_token(self, text: str) -> bool:
        """Whether the vocabulary has all of the text as one token."""
        return text in self._tokens

    def space(self) -> str:
        """A little white space, or none, as between the tokens of JSON."""
        return self.optional(self.regex(SOME_WHITE_SPACE))

    def json(self, schema: object, param: str) -> str:
        """A JSON value that fits the schema, with little white space. Raises `NotHeld` with
        `param` for a schema that cannot be held."""
        return self.rule(f"%json {schema_text(schema, param)}")

    def regex(self, pattern: str) -> str:
        """Text that matches all of the pattern, of the syntax of Rust's regex crate."""
        return self._named(_slashed(pattern), upper=True) if pattern else self.text("")

    def until(self, closer: str) -> str:
        """Any text that does not hold the closer, and the closer."""
        first, *rest = self._pieces(closer)
        if first.startswith("<["):
            return " ".join((self.regex(_ANY), first, *rest))
        if rest:
            # Text never holds the token that comes next, so what ends with it is all before it.
            begin = re.escape(json.loads(first))
            return " ".join((self.regex(f"{_ANY}{begin}"), *rest))
        name = self._names.get(f"[{first}]")
        if name is None:
            name = self._names[f"[{first}]"] = f"t{len(self._rules)}"
            self._rules.append(f"{name}[suffix={first}]: /{_ANY}/")
        return name

    def held(self, texts: Sequence[Text], forbidden: str = "") -> str:
        """Text that is one of `texts` and does not hold what is forbidden."""
        held = " | ".join(f"({_held(text)})" for text in texts)
        body = f"({held}) & ~{_slashed(holding(forbidden))}" if forbidden else held
        return self._named(body, upper=True)

    def held_until(
        self,
        texts: Sequence[Text],
        closer: str,
        forbidden: Sequence[str] = (),
        without: Sequence[str] = (),
    ) -> str:
        """Text that is one of `texts`, holds neither the closer nor what is forbidden, and matches
        none of the patterns `without`; and the closer."""
        first, *rest = self._pieces(closer)
        held = " | ".join(f"({_held(text)})" for text in texts)
        # As one pattern: the library keeps count of what it makes of them.
        body = f"({held}) & ~{_slashed('|'.join((*without, holding(closer, *forbidden))))}"
        if first.startswith("<["):
            return " ".join((self._named(body, upper=True), first, *rest))
        if rest:
            # The text before a token is read with what comes before.
            body = self._named(f"{self._named(body, upper=True)} {first}", upper=True)
            return " ".join((body, *rest))
        name = self._names.get(f"[{first}] {body}")
        if name is None:
            name = self._names[f"[{first}] {body}"] = f"t{len(self._rules)}"
            self._rules.append(f"{name}[suffix={first}]: {body}")
        return name

    def shared(self, key: str, expression: Callable[[], str]) -> str:
        """The name of the rule that the key stands for. Its expression may have the same key in
        it, and is asked for once."""
        name = self._names.get(f"={key}")
        if name is None:
            count, names = len(self._rules), dict(self._names)
            name = self._names[f"={key}"] = f"s{len(self._names)}"
            try:
                self._rules.append(f"{name}: {expression()}")
            except NotHeld:
                # What was made for it may name it.
                del self._rules[count:]
                self._names = names
                raise
        return name

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


_ANY = r"(.|\n)*"
_TO_ESCAPE = re.compile(r"\\.|[/\x00-\x1f\x7f]", re.DOTALL)


def _escape(found: "re.Match[str]") -> str:
    """What of a pattern cannot stand between slashes on one line, as escapes."""
    last = found[0][-1]
    if last == "/":
        return r"\/"
    return found[0] if last.isprintable() else f"\\x{ord(last):02x}"


def holding(*texts: str) -> str:
    """The pattern of what has one of the texts in it."""
    return rf"{_ANY}({'|'.join(map(re.escape, texts))}){_ANY}"


def _held(text: Text) -> str:
    matches = map(_slashed, text.matches or (_ANY,))
    return " & ".join((*matches, *(f"~{_slashed(each)}" for each in text.without)))


def _slashed(pattern: str) -> str:
    """A pattern as it stands in a grammar."""
    # With nothing between them, slashes begin a comment.
    return f"/{_TO_ESCAPE.sub(_escape, pattern)}/" if pattern else '""'


def _quoted(text: str) -> str:
    # Written as escapes: the library takes no control characters between quotes.
    return json.dumps(text).replace("\x7f", r"\u007f")
