"""The part of an output's text that is not finished with: appended in pieces, read from left to
right, and given back if it was read in vain.

Text that was read and may be given back is kept in pieces, so that appending costs time in
proportion to the new piece alone.
"""

from node.parsing.scanning.added_tokens import AddedTokens
from node.parsing.scanning.pieces import Pieces


class TextBuffer:
    """A buffer of text with its added tokens. Positions are characters since the start of the
    output."""

    def __init__(self, token_markers: frozenset[str] = frozenset()) -> None:
        """Each of `token_markers` counts as markup only if it came as an added token."""
        self.tokens = AddedTokens(token_markers)
        """The added tokens in the text."""
        self.text = ""
        """The text that comes next, with some of the text read before it."""
        self.begin = 0
        """Position of the first character of `text`."""
        self.at = 0
        """Position up to which the text was read."""
        self._past = Pieces()
        """Text before `text` that may be given back."""

    @property
    def end(self) -> int:
        """Position up to which text has arrived."""
        return self.begin + len(self.text)

    def append(self, text: str) -> None:
        read = self.at - self.begin
        if not read:
            self.text += text
            return
        self._past.add(self.text[:read])
        self.text = self.text[read:] + text
        self.begin = self.at

    def append_token(self, text: str, *, special: bool) -> None:
        """Appends an added token of the vocabulary."""
        if text:
            self.tokens.add(self.end, text, special=special)
            self.append(text)

    def drop_read(self) -> None:
        """Drops the text that was read; it cannot be given back."""
        self._past.clear()
        # The rest is copied, so only when it is the shorter part.
        read = self.at - self.begin
        if 2 * read >= len(self.text):
            self.text = self.text[read:]
            self.begin = self.at
        self.tokens.drop_before(self.at)

    def rewind(self, at: int) -> None:
        """Gives back the text that was read from a position on."""
        while at < self.begin:
            piece = self._past.pop()
            self.text = piece + self.text
            self.begin -= len(piece)
        self.at = at

    def slice(self, begin: int, end: int) -> str:
        """Returns the text between two positions, none of which may have been dropped."""
        if begin >= self.begin:
            return self.text[begin - self.begin : end - self.begin]
        past, length = self._past.end(self.begin - begin)
        at = self.begin - length
        return (past + self.text)[begin - at : end - at]
