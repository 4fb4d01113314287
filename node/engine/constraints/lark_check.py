"""Checks that a client's Lark grammar matches some finite text, which the library does not check.

A grammar that this module does not understand passes, so that it is not refused.
"""

from collections.abc import Mapping

from node.parsing.constraints.lark_reader import NotUnderstood, Token, read_grammar

_MOST_STEPS = 300_000
"""Most expressions that are visited, which takes some tenths of a second."""
_DEEPEST = 64
"""Most levels of nested brackets."""


def can_end(grammar: str) -> bool:
    """True if the rule `start` of a valid grammar matches some finite text."""
    try:
        rules = read_grammar(grammar).rules
        return (
            "start" in _FiniteTextSearch({name: rule.body for name, rule in rules.items()}).ending()
        )
    except NotUnderstood:
        return True


class _FiniteTextSearch:
    """Finds the rules that match some finite text, by a fixed point over all rules."""

    def __init__(self, bodies: Mapping[str, list[Token]]) -> None:
        self._bodies = bodies
        # Terminals (upper case) do not refer to rules or to themselves, so they match some text.
        self._ending = {name for name in bodies if name.lstrip("_")[:1].isupper()}
        self._steps = 0
        self._body: list[Token] = []
        self._at = 0

    def ending(self) -> set[str]:
        """Returns the names of these rules. Raises `NotUnderstood`."""
        open_names = [name for name in self._bodies if name not in self._ending]
        before = -1
        while len(self._ending) != before:
            before = len(self._ending)
            for name in open_names:
                if name not in self._ending and self._ends(self._bodies[name]):
                    self._ending.add(name)
        return self._ending

    def _ends(self, body: list[Token]) -> bool:
        self._body, self._at = body, 0
        ends = self._options(0)
        if self._at < len(body):
            raise NotUnderstood
        return ends

    def _options(self, depth: int) -> bool:
        """True if one of several alternatives matches some finite text."""
        if depth > _DEEPEST:
            raise NotUnderstood
        ends = self._sequence(depth)
        while self._accept("|"):
            # Evaluated first, since it must advance the position in any case.
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
            raise NotUnderstood
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
                raise NotUnderstood
        else:
            raise NotUnderstood
        return self._allows_none() or ends

    def _allows_none(self) -> bool:
        """Reads the quantifiers of an item. True if they allow zero repetitions."""
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
                        raise NotUnderstood
            none = none or sign in "?*"
        return none

    def _accept(self, sign: str) -> bool:
        is_next = self._at < len(self._body) and self._body[self._at][1] == sign
        self._at += is_next
        return is_next
