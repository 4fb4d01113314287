"""Tokenizes a long text slice by slice.

While it works, a tokenizer needs some hundred times the memory of its text, and it cannot be
stopped. So a long text is tokenized in slices. What follows a slice changes only the tokens at its
end. So the next slice begins before that end, behind a token from which on the tokenizer finds the
same tokens without the text before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SLICE_LENGTH = 32 * 1024
"""Most characters that are tokenized at once, if the text can be split."""
END_LENGTH = 2048
"""Characters at a slice's end whose tokens may depend on what follows."""
GLANCE_LENGTH = 64
"""Characters behind a candidate split that are tokenized to reject most wrong ones."""
ATTEMPTS = 32
"""Candidate splits that are tried in one slice."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The first tokens of a text from a given character on."""

    ids: Sequence[int]
    spans: Sequence[tuple[int, int]]
    """(begin, end) of each token, in characters from that character on."""
    length: int
    """Characters that the tokens cover."""


class Slicer:
    """Splits texts for a `tokenizers.Tokenizer`."""

    def __init__(self, backend: Any, lookahead: int) -> None:
        """`lookahead`: characters of the longest token that is matched before a text is split."""
        self._backend = backend
        self._end_length = max(END_LENGTH, lookahead)

    def whole(self, text: str) -> Slice:
        """Tokenizes all of the text, without special tokens that are not in it."""
        # Not encode(), which does not release the interpreter's lock.
        (encoding,) = self._backend.encode_batch([text], add_special_tokens=False)
        return Slice(encoding.ids, encoding.offsets, len(text))

    def first(self, text: str, begin: int) -> Slice | None:
        """Returns the slice that begins at character `begin`, which is the whole rest of the text
        if that is no longer than a slice. None if there is no place to split."""
        if len(text) - begin <= SLICE_LENGTH:
            return self.whole(text[begin:])
        piece = text[begin : begin + SLICE_LENGTH]
        found = self.whole(piece)
        count = len(found.ids)
        while count and found.spans[count - 1][1] > SLICE_LENGTH - self._end_length:
            count -= 1
        for at in range(count, max(0, count - ATTEMPTS), -1):
            if self._parts(piece, found, at):
                return Slice(found.ids[:at], found.spans[:at], found.spans[at - 1][1])
        return None

    def _parts(self, piece: str, found: Slice, at: int) -> bool:
        """True if the tokens from index `at` on are those of the text from there on."""
        begin = found.spans[at - 1][1]
        if found.spans[at][0] < begin:
            # A character of several tokens.
            return False
        glance = self.whole(piece[begin : begin + GLANCE_LENGTH])
        if not glance.ids or glance.ids[0] != found.ids[at]:
            return False
        behind = self.whole(piece[begin:])
        # Some tokenizers exclude the space before a word from its span, unless the text begins with
        # it.
        ends = [begin + end for _, end in behind.spans]
        return behind.ids == found.ids[at:] and ends == [end for _, end in found.spans[at:]]
