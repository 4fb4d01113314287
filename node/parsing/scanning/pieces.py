"""Text that is put together of many pieces, in little more memory than it takes as one."""

_JOINED = 256
"""So many pieces are kept as one: each takes memory of its own."""


class Pieces:
    """Adding one costs what it is long."""

    def __init__(self) -> None:
        self._joined: list[str] = []
        self._recent: list[str] = []
        """The last ones."""

    def add(self, text: str) -> None:
        self._recent.append(text)
        if len(self._recent) == _JOINED:
            self._joined.append("".join(self._recent))
            self._recent.clear()

    def take(self) -> str:
        """All of the text, which is forgotten here."""
        text = "".join((*self._joined, *self._recent))
        self._joined.clear()
        self._recent.clear()
        return text

    def pop(self) -> str:
        """The last of the pieces that are kept, of which there is one."""
        return (self._recent or self._joined).pop()

    def end(self, length: int) -> tuple[str, int]:
        """(the end of the text, how long it is): at least so long, if there is as much."""
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
