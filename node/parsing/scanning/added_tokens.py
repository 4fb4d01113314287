"""Added tokens of the vocabulary in an output's text: what counts as markup only where it came as
one, and which of them are no text."""

from bisect import bisect_left
from typing import NamedTuple


class Family(NamedTuple):
    """Tokens that begin and end blocks of a kind."""

    begins: frozenset[str]
    ends: frozenset[str]
    drops_ends: bool
    """Whether an end without its begin is no content, even if the token is not special."""


class _Token(NamedTuple):
    text: str
    special: bool


class Tokens:
    """Positions are those of `Source`."""

    def __init__(self, markers: frozenset[str]) -> None:
        """Of `markers` only what came as an added token counts."""
        self.kept: frozenset[str] = frozenset()
        """Special tokens that are text where they stand in it."""
        self._markers = markers
        self._families: tuple[Family, ...] = ()
        self._unpaired: list[int] = []
        """Of each family, the begins that are text, and have no end yet."""
        self._tokens: dict[int, _Token] = {}
        """By where they begin."""
        self._begins: list[int] = []
        """Ascending."""

    def __contains__(self, at: int) -> bool:
        return at in self._tokens

    def pair(self, *families: Family) -> None:
        """Tells which tokens belong together. A begin that is text makes its end text, and what
        special tokens are between them."""
        self._families = families
        self.part()

    def add(self, at: int, text: str, *, special: bool) -> None:
        """One that begins at a position behind all others."""
        self._begins.append(at)
        self._tokens[at] = _Token(text, special)

    def counts(self, at: int, marker: str) -> bool:
        """Whether a marker that was found there is one."""
        # A vocabulary that has the marker as a token means the token; the same characters
        # spelled by others are talk about it.
        return marker not in self._markers or (
            at in self._tokens and self._tokens[at].text == marker
        )

    def part(self) -> None:
        """Markup parts what was told from what will be: nothing before it has its end behind."""
        self._unpaired = [0] * len(self._families)

    def begin_text(self, begin: str) -> None:
        """A marker that begins blocks is text, whether it came as a token or not."""
        for number, family in enumerate(self._families):
            self._unpaired[number] += begin in family.begins

    def text_between(self, begin: int, end: int) -> list[tuple[int, int]]:
        """(begin, end) of what is left of a piece of text without the tokens that are none. To be
        asked once for each piece, in the order of the text."""
        if not self._begins:
            return [(begin, end)]
        spans = []
        first = bisect_left(self._begins, begin)
        for at in self._begins[first : bisect_left(self._begins, end)]:
            token = self._tokens[at]
            if at + len(token.text) <= end and self._drops(token):
                spans.append((begin, at))
                begin = at + len(token.text)
        return [*spans, (begin, end)]

    def forget(self, end: int) -> None:
        """Those before a position are not asked for again."""
        if not self._begins:
            return
        count = bisect_left(self._begins, end)
        for at in self._begins[:count]:
            del self._tokens[at]
        del self._begins[:count]

    def _drops(self, token: _Token) -> bool:
        is_none = token.special and token.text not in self.kept
        for number, family in enumerate(self._families):
            if token.text in family.begins:
                self._unpaired[number] += 1
                return False
            if token.text in family.ends:
                # The end of a block that was none stays with its begin.
                if self._unpaired[number]:
                    self._unpaired[number] -= 1
                    return False
                return family.drops_ends or is_none
        return is_none and not any(self._unpaired)
