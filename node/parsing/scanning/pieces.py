"""Text built from many pieces, in little more memory than it takes as one string."""

_JOINED = 256
"""Number of pieces that are joined into one, since each piece takes memory of its own."""


class Pieces:
    """A text made of pieces. Adding a piece costs time in proportion to its length alone."""

    def __init__(self) -> None:
        self._joined: list[str] = []
        self._recent: list[str] = []
        """The pieces since the last join."""

    def add(self, text: str) -> None:
        self._recent.append(text)
        if len(self._recent) == _JOINED:
            self._joined.append("".join(self._recent))
            self._recent.clear()

    def take(self) -> str:
        """Returns all of the text and clears it."""
        text = "".join((*self._joined, *self._recent))
        self._joined.clear()
        self._recent.clear()
        return text

    def pop(self) -> str:
        """Removes and returns the last stored piece. There must be one."""
        return (self._recent or self._joined).pop()

    def end(self, length: int) -> tuple[str, int]:
        """Returns (the end of the text, its length): at least `length` characters if the text has
        as many."""
        found: list[str] = []
        have = 0
        for kept in (self._recent, self._joined):
            for piece in reversed(kept):
                if have >= length:
                    break
                found.append(piece)
                have += len(piece)
        return "".join(reversed(found)), have

    def clear(self) -> None:
        self._joined.clear()
        self._recent.clear()
