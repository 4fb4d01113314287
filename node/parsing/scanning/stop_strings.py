"""Finds stop strings in text that arrives in pieces."""


class StopMatcher:
    """Passes text up to the first stop string, however the text is cut into pieces.

    The first stop string is the one that ends first; among those that end together, the one that
    begins first.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=0)
        self._buffered = ""
        self.found: str | None = None
        """The stop string that was found."""

    def feed(self, text: str) -> tuple[str, bool]:
        """Returns (text to emit, True if a stop string was found).

        The longest suffix that could begin a stop string is buffered. After a find the matcher must
        not be fed again.
        """
        if not self._stops:
            return text, False
        text = self._buffered + text
        hit = self._first(text)
        if hit is not None:
            self._buffered = ""
            self.found = text[hit[1] : hit[0]]
            return text[: hit[1]], True
        cut = len(text) - self._suffix(text)
        self._buffered = text[cut:]
        return text[:cut], False

    def flush(self) -> str:
        """Returns the buffered text, which began a stop string that never came."""
        buffered, self._buffered = self._buffered, ""
        return buffered

    def _first(self, text: str) -> tuple[int, int] | None:
        """Returns (end, start) of the first stop string."""
        starts = ((stop, text.find(stop)) for stop in self._stops)
        return min(((at + len(stop), at) for stop, at in starts if at >= 0), default=None)

    def _suffix(self, text: str) -> int:
        """Returns the length of the longest suffix that begins a stop string without completing
        it."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            suffix = text[-length:]
            if any(stop.startswith(suffix) for stop in self._stops):
                return length
        return 0
