"""Builds a grammar that constrains an output, in llguidance's dialect of Lark.

Each method returns an expression that can be used in a rule. A marker that the vocabulary has as a
token of its own is written as that token: no other spelling of it counts, and text never contains
it.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from node.parsing.constraints.schema import SOME_WHITE_SPACE, UnsupportedConstraint, schema_text


class Text(NamedTuple):
    """A text, defined by patterns in the syntax of Rust's regex crate."""

    matches: tuple[str, ...] = ()
    """Patterns that the text matches, all of them; empty for any text."""
    without: tuple[str, ...] = ()
    """Patterns that the text does not match."""


class Lark:
    """The rules of one grammar."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        """`tokens` are the ids of the vocabulary's added tokens by their text."""
        self._tokens = tokens
        self._rules: list[str] = []
        self._names: dict[str, str] = {}
        longest_first = sorted(filter(None, tokens), key=len, reverse=True)
        self._markers = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def text(self, text: str) -> str:
        """Returns exactly this text, which may contain markers."""
        return " ".join(self._pieces(text)) or '""'

    def prefer(self, texts: Sequence[str]) -> str:
        """Returns the first text that begins with a token of its own; if none does, the first."""
        return next((text for text in texts if self._markers.match(text)), texts[0])

    def is_token(self, text: str) -> bool:
        """True if the vocabulary has the whole text as one token."""
        return text in self._tokens

    def space(self) -> str:
        """Returns a little optional white space, as between the tokens of JSON."""
        return self.optional(self.regex(SOME_WHITE_SPACE))

    def json(self, schema: object, param: str) -> str:
        """Returns a JSON value that fits the schema, with little white space. Raises
        `UnsupportedConstraint` with `param` for a schema that is not supported."""
        return self.rule(f"%json {schema_text(schema, param)}")

    def regex(self, pattern: str) -> str:
        """Returns text that matches the whole pattern, in the syntax of Rust's regex crate."""
        return self._named(_slashed(pattern), upper=True) if pattern else self.text("")

    def until(self, closer: str) -> str:
        """Returns any text that does not contain the closer, followed by the closer."""
        first, *rest = self._pieces(closer)
        if first.startswith("<["):
            return " ".join((self.regex(_ANY), first, *rest))
        if rest:
            # Text never contains the token that comes next, so the text that ends with this piece
            # is all the text before that token.
            begin = re.escape(json.loads(first))
            return " ".join((self.regex(f"{_ANY}{begin}"), *rest))
        name = self._names.get(f"[{first}]")
        if name is None:
            name = self._names[f"[{first}]"] = f"t{len(self._rules)}"
            self._rules.append(f"{name}[suffix={first}]: /{_ANY}/")
        return name

    def text_of(self, texts: Sequence[Text], forbidden: str = "") -> str:
        """Returns text that is one of `texts` and does not contain `forbidden`."""
        choice = " | ".join(f"({_matching(text)})" for text in texts)
        body = f"({choice}) & ~{_slashed(holding(forbidden))}" if forbidden else choice
        return self._named(body, upper=True)

    def text_until(
        self,
        texts: Sequence[Text],
        closer: str,
        forbidden: Sequence[str] = (),
        without: Sequence[str] = (),
    ) -> str:
        """Returns text that is one of `texts`, contains neither the closer nor any of `forbidden`,
        and matches none of the patterns `without`; followed by the closer."""
        first, *rest = self._pieces(closer)
        choice = " | ".join(f"({_matching(text)})" for text in texts)
        # One pattern instead of several, since the library limits the work that patterns cause.
        body = f"({choice}) & ~{_slashed('|'.join((*without, holding(closer, *forbidden))))}"
        if first.startswith("<["):
            return " ".join((self._named(body, upper=True), first, *rest))
        if rest:
            # The text in front of a token is lexed together with the text before it.
            body = self._named(f"{self._named(body, upper=True)} {first}", upper=True)
            return " ".join((body, *rest))
        name = self._names.get(f"[{first}] {body}")
        if name is None:
            name = self._names[f"[{first}] {body}"] = f"t{len(self._rules)}"
            self._rules.append(f"{name}[suffix={first}]: {body}")
        return name

    def shared(self, key: str, expression: Callable[[], str]) -> str:
        """Returns the name of the rule for a key. Its expression is made once, and may refer to the
        same key."""
        name = self._names.get(f"={key}")
        if name is None:
            count, names = len(self._rules), dict(self._names)
            name = self._names[f"={key}"] = f"s{len(self._names)}"
            try:
                self._rules.append(f"{name}: {expression()}")
            except UnsupportedConstraint:
                # Rules made for the failed expression may refer to it.
                del self._rules[count:]
                self._names = names
                raise
        return name

    def rule(self, expression: str) -> str:
        """Returns the name of a rule for the expression."""
        return self._named(expression, upper=False)

    def one_of(self, expressions: Sequence[str]) -> str:
        """Returns a choice of at least one expression."""
        return self.rule(" | ".join(expressions))

    def optional(self, expression: str) -> str:
        return f"({expression})?"

    def many(self, expression: str, separator: str = "") -> str:
        """Returns one or more of the expression, with the expression `separator` between them."""
        each = self.rule(expression)
        return f"{each} ({separator} {each})*" if separator else f"{each}+"

    def grammar(self, start: str) -> str:
        """Returns the grammar's text, with `start` as the expression of the whole output."""
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
    """Escapes a character that cannot stand between slashes on one line."""
    last = found[0][-1]
    if last == "/":
        return r"\/"
    return found[0] if last.isprintable() else f"\\x{ord(last):02x}"


def holding(*texts: str) -> str:
    """Returns the pattern of texts that contain one of the given texts."""
    return rf"{_ANY}({'|'.join(map(re.escape, texts))}){_ANY}"


def _matching(text: Text) -> str:
    matches = map(_slashed, text.matches or (_ANY,))
    return " & ".join((*matches, *(f"~{_slashed(each)}" for each in text.without)))


def _slashed(pattern: str) -> str:
    """Returns a pattern as it is written in a grammar."""
    # Two adjacent slashes would begin a comment.
    return f"/{_TO_ESCAPE.sub(_escape, pattern)}/" if pattern else '""'


def _quoted(text: str) -> str:
    # Control characters are escaped, since the library does not accept them between quotes.
    return json.dumps(text).replace("\x7f", r"\u007f")
