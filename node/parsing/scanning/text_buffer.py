"""The text of one output between what is told and what has not come: appended in pieces, read from
left to right, and given back where it was read in vain.

What was read and may be given back is kept in pieces, so that a piece of text costs what it is long
however much is kept.
"""

from node.parsing.scanning.pieces import Pieces


class TextBuffer:
    """Positions are absolute: characters since the output's begin."""

    def __init__(self) -> None:
        self.text = ""
        """What comes next, and some of what was read before it."""
        self.begin = 0
        """Where `text` begins."""
        self.at = 0
        """Up to where it was read."""
        self._past = Pieces()
        """What stands before `text` and may be given back."""

    @property
    def end(self) -> int:
        """Up to where text has come."""
        return self.begin + len(self.text)

    def append(self, text: str) -> None:
        read = self.at - self.begin
        if not read:
            self.text += text
            return
        self._past.add(self.text[:read])
        self.text = self.text[read:] + text
        self.begin = self.at

    def forget(self) -> None:
        """What was read is not given back any more."""
        self._past.clear()
        # The rest is copied: not before it is the shorter part.
        read = self.at - self.begin
        if 2 * read >= len(self.text):
            self.text = self.text[read:]
            self.begin = self.at

    def back(self, at: int) -> None:
        """Gives back what was read from a position on."""
        while at < self.begin:
            piece = self._past.pop()
            self.text = piece + self.text
            self.begin -= len(piece)
        self.at = at

    def slice(self, begin: int, end: int) -> str:
        """The text between two positions, of which none was forgotten."""
        if begin >= self.begin:
            return self.text[begin - self.begin : end - self.begin]
        past, length = self._past.end(self.begin - begin)
        at = self.begin - length
        return (past + self.text)[begin - at : end - at]
