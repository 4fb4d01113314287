"""Reads the rules of a client's Lark grammar, in llguidance's dialect or Lark's own."""

import re
from collections.abc import Sequence
from json import JSONDecodeError, JSONDecoder
from typing import NamedTuple

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


class Token(NamedTuple):
    kind: str
    """One of `text` (a string, a pattern, a token of the vocabulary, or a reference to such),
    `name`, `directive` and `sign`."""
    text: str


class NotUnderstood(Exception):
    """The grammar uses syntax that is not supported here."""


class Rule(NamedTuple):
    """The definition of a name."""

    body: list[Token]
    is_plain: bool
    """True if nothing before the colon changes what the rule matches."""


class LarkGrammar(NamedTuple):
    rules: dict[str, Rule]
    directives: list[list[Token]]
    """Each directive with the tokens that follow it."""


def read_grammar(text: str) -> LarkGrammar:
    """Splits a grammar into rules and directives. Raises `NotUnderstood`."""
    tokens = _tokens(text)
    grammar = LarkGrammar({}, [])
    body: list[Token] = []
    at = 0
    while at < len(tokens):
        kind, name = tokens[at]
        behind = _behind_head(tokens, at) if kind == "name" else 0
        if behind:
            body = []
            grammar.rules[name] = Rule(body, tokens[at + 1].text != "[")
            at = behind
            continue
        if kind == "directive":
            # The tokens behind a directive belong to no rule.
            body = []
            grammar.directives.append(body)
        body.append(tokens[at])
        at += 1
    return grammar


def _tokens(grammar: str) -> list[Token]:
    tokens, at, decoder = [], 0, JSONDecoder()
    while at < len(grammar):
        found = _TOKEN.match(grammar, at)
        if found is None or found.lastgroup is None:
            raise NotUnderstood
        kind, at = found.lastgroup, found.end()
        if kind == "json":
            try:
                _, at = decoder.raw_decode(grammar, at)
            except (JSONDecodeError, RecursionError):
                raise NotUnderstood from None
            kind = "directive" if "llguidance" in found[0] else "text"
        if kind == "sign" and found[0] in "?!" and _begins_line(grammar, found.start()):
            # Before a rule's name the sign is about syntax trees.
            continue
        if kind != "skipped":
            tokens.append(Token(kind, found[0]))
    return tokens


def _behind_head(tokens: Sequence[Token], at: int) -> int:
    """Returns the index of a name's definition if the name is defined at this index, else 0."""
    at += 1
    if at < len(tokens) and tokens[at][1] == "[":
        while at < len(tokens) and tokens[at][1] != "]":
            at += 1
        at += 1
    if at + 1 < len(tokens) and tokens[at][1] == ".":
        at += 2
    return at + 1 if at < len(tokens) and tokens[at][1] == ":" else 0


def _begins_line(text: str, at: int) -> bool:
    return not text[text.rfind("\n", 0, at) + 1 : at].strip()
