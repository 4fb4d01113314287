"""The tokens of a long text, slice by slice.

A tokeniser needs some hundred times the memory of its text while it works, and cannot be stopped.
So a long text is given to it in slices. What follows a slice changes the tokens of its end only,
and so the next slice begins before that, behind a token from which on the tokeniser finds the same
tokens though it sees nothing of what is before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SLICE_LENGTH = 32 * 1024
"""Most characters that are tokenised at once, where the text can be parted."""
END_LENGTH = 2048
"""Characters of a slice's end whose tokens what follows may change."""
GLANCE_LENGTH = 64
"""Characters behind a place by which most wrong ones are told."""
ATTEMPTS = 32
"""Places that are tried in one slice."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The first tokens of a text from some character on."""

    ids: Sequence[int]
    spans: Sequence[tuple[int, int]]
    """Of each, in characters from there on."""
    length: int
    """In characters."""


class Slicer:
    """Parts texts for a `tokenizers.Tokenizer`."""

    def __init__(self, backend: Any, lookahead: int) -> None:
        """`lookahead`: length of the longest token that is found before a text is split."""
        self._backend = backend
        self._end_length = max(END_LENGTH, lookahead)

    def whole(self, text: str) -> Slice:
        """All of the text, without special tokens that are not in it."""
        # Not encode(), which holds the interpreter's lock meanwhile.
        (encoding,) = self._backend.encode_batch([text], add_special_tokens=False)
        return Slice(encoding.ids, encoding.offsets, len(text))

    def first(self, text: str, begin: int) -> Slice | None:
        """The slice that begins at that character, which is the rest of a text that is no longer
        than a slice. None where there is no place to part it."""
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
        """Whether the tokens from number `at` on are those of the text from there on."""
        begin = found.spans[at - 1][1]
        if found.spans[at][0] < begin:
            # A character of several tokens.
            return False
        glance = self.whole(piece[begin : begin + GLANCE_LENGTH])
        if not glance.ids or glance.ids[0] != found.ids[at]:
            return False
        behind = self.whole(piece[begin:])
        # Some leave the space before a word out of its span, unless it is the text's first one.
        ends = [begin + end for _, end in behind.spans]
        return behind.ids == found.ids[at:] and ends == [end for _, end in found.spans[at:]]
