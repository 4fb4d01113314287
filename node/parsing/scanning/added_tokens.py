"""Tracks the added tokens in an output's text. Markup counts only if it came as an added token, and
special tokens are not text."""

from bisect import bisect_left
from typing import NamedTuple


class TokenFamily(NamedTuple):
    """The tokens that begin and end one kind of block."""

    begins: frozenset[str]
    ends: frozenset[str]
    drops_ends: bool
    """True if an end without its start is dropped from the content even when the token is not
    special."""


class _Token(NamedTuple):
    text: str
    special: bool


class AddedTokens:
    """The added tokens of one output. Positions are those of `Source`."""

    def __init__(self, markers: frozenset[str]) -> None:
        """Each of `markers` counts as markup only if it came as an added token."""
        self.kept: frozenset[str] = frozenset()
        """Special tokens that are kept as text."""
        self._markers = markers
        self._families: tuple[TokenFamily, ...] = ()
        self._unpaired: list[int] = []
        """Number of starts that are text and have no end yet, one for each family."""
        self._tokens: dict[int, _Token] = {}
        """Tokens by the position where they begin."""
        self._begins: list[int] = []
        """Positions of the tokens, ascending."""

    def __contains__(self, at: int) -> bool:
        return at in self._tokens

    def pair(self, *families: TokenFamily) -> None:
        """Sets the families of tokens. A start that is text makes its end and the special tokens
        between them text too."""
        self._families = families
        self.mark_edge()

    def add(self, at: int, text: str, *, special: bool) -> None:
        """Adds a token that begins at a position behind all earlier tokens."""
        self._begins.append(at)
        self._tokens[at] = _Token(text, special)

    def counts(self, at: int, marker: str) -> bool:
        """True if the marker found at this position is markup."""
        # If the vocabulary has the marker as an added token, only that token is markup; the same
        # characters spelled by other tokens are text about it.
        return marker not in self._markers or (
            at in self._tokens and self._tokens[at].text == marker
        )

    def mark_edge(self) -> None:
        """Forgets the open starts at markup: no start before the markup has its end behind it."""
        self._unpaired = [0] * len(self._families)

    def begin_text(self, begin: str) -> None:
        """Counts a block's opening marker as text, whether it came as a token or not."""
        for number, family in enumerate(self._families):
            self._unpaired[number] += begin in family.begins

    def text_between(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Returns the spans (begin, end) of a piece of text without the tokens that are not text.
        Call it once for each piece, in the order of the text."""
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

    def drop_before(self, end: int) -> None:
        """Drops the tokens before a position; nothing asks for them again."""
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
                # If the start of a block is text, its end is text too.
                if self._unpaired[number]:
                    self._unpaired[number] -= 1
                    return False
                return family.drops_ends or is_none
        return is_none and not any(self._unpaired)
