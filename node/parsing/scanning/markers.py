"""Finds fixed marker texts in an output, however the output is cut into pieces."""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache


def _every(at: int, marker: str) -> bool:
    return True


class Markers:
    """A set of markers that are searched for together."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(sorted({text for text in texts if text}, key=lambda text: -len(text)))
        self._pattern = re.compile("|".join(map(re.escape, self.texts)) or "(?!)")
        self._begins = frozenset(
            text[:length] for text in self.texts for length in range(1, len(text))
        )
        self._longest = max(map(len, self.texts), default=0)

    def __or__(self, other: "Markers") -> "Markers":
        return Markers((*self.texts, *other.texts))

    def find(
        self,
        text: str,
        begin: int,
        end: int,
        *,
        ended: bool,
        counts: Callable[[int, str], bool] = _every,
    ) -> tuple[int, str]:
        """Returns (position of the first marker between `begin` and `end`, the marker). Among
        markers that begin at the same position the longest one is found; `counts(position, marker)`
        can reject a find.

        Without a find it returns (end of the text that cannot be part of a marker, ""); that is all
        of the text if no more comes (`ended`).
        """
        # With more text, a marker that begins there may turn out to come first, or to be a longer
        # one.
        partial = end if ended else self._partial_from(text, begin, end)
        at = begin
        while (match := self._pattern.search(text, at, end)) is not None:
            at = match.start()
            if at >= partial:
                break
            if counts(at, match[0]):
                return at, match[0]
            at += 1
        return partial, ""

    def _partial_from(self, text: str, begin: int, end: int) -> int:
        """Returns the position of the longest end of the text that a marker may begin with."""
        for at in range(max(begin, end - self._longest + 1), end):
            if text[at:end] in self._begins:
                return at
        return end


@lru_cache(maxsize=512)
def markers_of(texts: tuple[str, ...]) -> Markers:
    """Returns the `Markers` of the texts; equal texts share one object."""
    return Markers(texts)
