"""Whether a client's Lark grammar has a text that ends, which the library does not ask.

What is not understood here counts as a text that ends: nothing is refused for it.
"""

import re
from collections.abc import Mapping, Sequence
from json import JSONDecodeError, JSONDecoder

_TOKEN = re.compile(
    r"""
    (?P<skipped> \s+ | //[^\n]* | \#[^\n]* )
    | (?P<text> "(?:\\.|[^"\\\n])*"i? | /(?:\\.|[^/\\\n])+/[a-z]* | <[^<>\s]+> )
    | (?P<name> [A-Za-z_](?:[A-Za-z0-9_]|-(?!>))* )
    | (?P<json> %(?:json|regex|llguidance) \s* (?=\{) )
    | (?P<directive> %[a-z]+ )
    | (?P<sign> -> | :: | [0-9]+ | . )
    """,
    re.VERBOSE,
)
_MOST_STEPS = 300_000
"""Expressions that are looked at: some tenths of a second."""
_DEEPEST = 64
"""Brackets in brackets."""

_Token = tuple[str, str]
"""Its kind, a group of `_TOKEN`, and its text."""


class _NotUnderstood(Exception):
    """The grammar says something that is of no rule known here."""


def can_end(grammar: str) -> bool:
    """Whether the rule `start` of a grammar that compiles has a text that ends."""
    try:
        return "start" in _Search(_definitions(_tokens(grammar))).ending()
    except _NotUnderstood:
        return True


def _tokens(grammar: str) -> list[_Token]:
    tokens, at, decoder = [], 0, JSONDecoder()
    while at < len(grammar):
        found = _TOKEN.match(grammar, at)
        if found is None or found.lastgroup is None:
            raise _NotUnderstood
        kind, at = found.lastgroup, found.end()
        if kind == "json":
            try:
                _, at = decoder.raw_decode(grammar, at)
            except (JSONDecodeError, RecursionError):
                raise _NotUnderstood from None
            kind = "directive" if "llguidance" in found[0] else "text"
        if kind != "skipped":
            tokens.append((kind, found[0]))
    return tokens


def _definitions(tokens: Sequence[_Token]) -> dict[str, list[_Token]]:
    """What stands behind the colon of each name."""
    bodies: dict[str, list[_Token]] = {}
    body: list[_Token] = []
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        behind = _behind_head(tokens, at) if kind == "name" else 0
        if behind:
            body = bodies[text] = []
            at = behind
            continue
        if kind == "directive":
            # What follows it is of no rule.
            body = []
        body.append(tokens[at])
        at += 1
    return bodies


def _behind_head(tokens: Sequence[_Token], at: int) -> int:
    """Where what a name stands for begins, if it is defined here; else 0."""
    at += 1
    if at < len(tokens) and tokens[at][1] == "[":
        while at < len(tokens) and tokens[at][1] != "]":
            at += 1
        at += 1
    if at + 1 < len(tokens) and tokens[at][1] == ".":
        at += 2
    return at + 1 if at < len(tokens) and tokens[at][1] == ":" else 0


class _Search:
    """For the rules that have texts that end."""

    def __init__(self, bodies: Mapping[str, list[_Token]]) -> None:
        self._bodies = bodies
        # A terminal has no name of a rule in it, nor its own.
        self._ending = {name for name in bodies if name.lstrip("_")[:1].isupper()}
        self._steps = 0
        self._body: list[_Token] = []
        self._at = 0

    def ending(self) -> set[str]:
        """Their names. Raises `_NotUnderstood`."""
        open_names = [name for name in self._bodies if name not in self._ending]
        before = -1
        while len(self._ending) != before:
            before = len(self._ending)
            for name in open_names:
                if name not in self._ending and self._ends(self._bodies[name]):
                    self._ending.add(name)
        return self._ending

    def _ends(self, body: list[_Token]) -> bool:
        self._body, self._at = body, 0
        ends = self._options(0)
        if self._at < len(body):
            raise _NotUnderstood
        return ends

    def _options(self, depth: int) -> bool:
        """Whether one of several expressions ends."""
        if depth > _DEEPEST:
            raise _NotUnderstood
        ends = self._sequence(depth)
        while self._accept("|"):
            # The place moves on whatever is known already.
            ends = self._sequence(depth) or ends
        return ends

    def _sequence(self, depth: int) -> bool:
        ends = True
        while self._at < len(self._body) and self._body[self._at][1] not in ("|", ")", "]"):
            ends = self._item(depth) and ends
        return ends

    def _item(self, depth: int) -> bool:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise _NotUnderstood
        kind, text = self._body[self._at]
        self._at += 1
        if kind == "text":
            ends = True
        elif kind == "name":
            ends = text in self._ending or text not in self._bodies
        elif text == "->":
            self._at += 1
            return True
        elif text in ("(", "["):
            ends = self._options(depth + 1) or text == "["
            if not self._accept(")" if text == "(" else "]"):
                raise _NotUnderstood
        else:
            raise _NotUnderstood
        return self._may_be_none() or ends

    def _may_be_none(self) -> bool:
        """Reads how often what came before is said; whether it need not be."""
        none = False
        while self._at < len(self._body) and self._body[self._at][1] in ("?", "*", "+", "{"):
            sign = self._body[self._at][1]
            self._at += 1
            if sign == "{":
                count = self._body[self._at][1] if self._at < len(self._body) else ""
                none = none or not count.strip("0") or count == ","
                while not self._accept("}"):
                    self._at += 1
                    if self._at >= len(self._body):
                        raise _NotUnderstood
            none = none or sign in "?*"
        return none

    def _accept(self, sign: str) -> bool:
        is_next = self._at < len(self._body) and self._body[self._at][1] == sign
        self._at += is_next
        return is_next
