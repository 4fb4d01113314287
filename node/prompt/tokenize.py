"""Tokenizes long texts that share a prefix with earlier ones: only the new part is tokenized.

A session's prompt repeats all that came before. A tokenizer splits a text at special tokens before
anything else, so the text before one has the same token ids whatever follows.
"""

import threading
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from node.prompt.slices import SLICE_LENGTH, Slice, Slicer
from node.prompt.token_bytes import TokenBytes, token_bytes

SHORT_LENGTH = 1024
"""Characters below which a text is tokenized at once and not kept."""
KEPT_LENGTH = 8 * 1024**2
"""Most characters of all kept texts together; each costs about three bytes."""
TAIL_LENGTH = 64
"""A kept text is replaced by one that repeats all of it but its last so many characters."""
PROBE_LENGTH = 64
SAMPLE_LENGTH = 8 * 1024
"""Characters of a text from which its number of tokens is extrapolated."""
UNSURE_SHARE, UNSURE_TOKENS = 16, 16
"""A piece cut at an arbitrary place has at most a 16th plus 16 more tokens by itself than within
the whole text, since the cut word is spelled with other tokens."""


class TooManyTokens(Exception):
    """A text has more tokens than the caller accepts."""

    def __init__(self, tokens: int) -> None:
        """`tokens`: their number, or an estimate if they were not all counted."""
        super().__init__(f"some {tokens} tokens")
        self.tokens = tokens


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A text and its tokens, with one item for each token in `ids` and `ends`."""

    text: str
    ids: "array[int]"
    ends: "array[int]"
    """Ascending: characters of the text that a token and those before it cover."""
    specials: "array[int]"
    """Ascending indices of the special tokens that split the text."""
    special_starts: "array[int]"
    """Characters of the text before each of those special tokens."""

    def tokens_within(self, length: int) -> int:
        """Returns the number of tokens that lie wholly in the first `length` characters."""
        return bisect_right(self.ends, length)


class PromptEncoder:
    """One tokenizer of the tokenizers library, without the special tokens that it would add. Safe
    to use from several threads."""

    def __init__(self, backend: Any) -> None:
        """`backend` is a `tokenizers.Tokenizer` that neither pads nor truncates."""
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        # A special token that strips the space before it, or is matched in normalized text, depends
        # on the text before it.
        self._specials: dict[int, str] = {
            number: token.content
            for number, token in added.items()
            if token.special and not (token.lstrip or token.single_word or token.normalized)
        }
        # Characters behind a position that decide whether an added token begins there, and which.
        self._lookahead = max((len(token.content) for token in added.values()), default=0)
        self._slicer = Slicer(backend, self._lookahead)
        self._kept: list[Encoded] = []
        """Ordered by use; the most recently used one is last."""
        self._lock = threading.Lock()

    @cached_property
    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens that the tokenizer would put before and behind a text."""
        bare, whole = (
            tuple(self._backend.encode("a", add_special_tokens=adds).ids) for adds in (False, True)
        )
        for begin in range(len(whole) - len(bare) + 1):
            if whole[begin : begin + len(bare)] == bare:
                return whole[:begin], whole[begin + len(bare) :]
        return (), ()

    @cached_property
    def token_bytes(self) -> TokenBytes | None:
        """Byte lengths of the tokens, as the function `token_bytes` finds them."""
        return token_bytes(self._backend)

    def check(self, text: str, most_tokens: int) -> None:
        """Raises `TooManyTokens` if the text's length alone shows that it has more than
        `most_tokens`."""
        if len(text) > most_tokens and self.token_bytes is not None:
            least = self.token_bytes.least_tokens(text)
            if least > most_tokens:
                sample = text[:SAMPLE_LENGTH]
                raise TooManyTokens(
                    max(least, len(self._slicer.whole(sample).ids) * len(text) // len(sample))
                )

    def encode(self, text: str, most_tokens: int | None = None) -> Encoded:
        """Returns the text's tokens, which do not depend on earlier texts. Raises `TooManyTokens`
        for more than `most_tokens`, without tokenizing much more than those."""
        if most_tokens is not None:
            self.check(text, most_tokens)
        if len(text) < SHORT_LENGTH:
            return self._extend(text, None, 0, most_tokens)
        with self._lock:
            kept = list(self._kept)
        base, shared = _nearest(text, kept)
        if base is not None and shared == len(text) == len(base.text):
            self._keep(base, base)
            _check_count(len(base.ids), len(text), text, most_tokens)
            return base
        encoded = self._extend(text, base, shared, most_tokens)
        repeated = base is not None and shared >= len(base.text) - TAIL_LENGTH
        self._keep(encoded, base if repeated else None)
        return encoded

    def _extend(
        self, text: str, base: Encoded | None, shared: int, most_tokens: int | None
    ) -> Encoded:
        """Tokenizes the text, reusing the tokens of `base`, which shares its first `shared`
        characters, up to a special token. Raises `TooManyTokens`."""
        last = 0
        if base is not None and shared >= self._lookahead:
            last = bisect_right(base.special_starts, shared - self._lookahead) - 1
        made, done = Encoded(text, array("I"), array("I"), array("I"), array("I")), 0
        if base is not None and last > 0:
            cut, done = base.specials[last], base.special_starts[last]
            made = Encoded(
                text,
                base.ids[:cut],
                base.ends[:cut],
                base.specials[:last],
                base.special_starts[:last],
            )
        while True:
            piece = self._slicer.first(text, done) or self._undivided(made, done, most_tokens)
            self._add(made, done, piece)
            done += piece.length
            _check_count(len(made.ids), done, text, most_tokens)
            if done == len(text):
                return made

    def _undivided(self, made: Encoded, begin: int, most_tokens: int | None) -> Slice:
        """Tokenizes all of the rest of a text that cannot be split there. Raises `TooManyTokens`
        before that if estimates exceed the limit."""
        text, count = made.text, len(made.ids)
        for at in range(begin, len(text), SLICE_LENGTH):
            if most_tokens is None:
                break
            found = len(self._slicer.whole(text[at : at + SLICE_LENGTH]).ids)
            count += max(found - found // UNSURE_SHARE - UNSURE_TOKENS, 0)
            _check_count(count, min(at + SLICE_LENGTH, len(text)), text, most_tokens)
        return self._slicer.whole(text[begin:])

    def _add(self, made: Encoded, begin: int, piece: Slice) -> None:
        """Appends the tokens of a piece of the text."""
        text, names, done = made.text, self._specials, len(made.ids)
        found = [
            i
            for i, number in enumerate(piece.ids)
            # A token for unknown characters may have another text here, or splits nothing.
            if number in names and text.startswith(names[number], begin + piece.spans[i][0])
        ]
        made.ids.extend(piece.ids)
        made.ends.extend(begin + end for _, end in piece.spans)
        made.specials.extend(done + i for i in found)
        made.special_starts.extend(begin + piece.spans[i][0] for i in found)

    def _keep(self, encoded: Encoded, replaced: Encoded | None) -> None:
        with self._lock:
            kept = [each for each in self._kept if each is not replaced] + [encoded]
            length = sum(len(each.text) for each in kept)
            while length > KEPT_LENGTH and len(kept) > 1:
                length -= len(kept.pop(0).text)
            self._kept = kept


def _check_count(count: int, length: int, text: str, most_tokens: int | None) -> None:
    """Raises `TooManyTokens` if the first `length` characters of the text have too many tokens."""
    if most_tokens is not None and count > most_tokens:
        raise TooManyTokens(count * len(text) // length)


def common_length(first: str, second: str) -> int:
    """Returns the number of characters that the texts have in common at their beginning."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    # Equal up to `low`, different before `high`.
    while high - low > 1:
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _nearest(text: str, kept: list[Encoded]) -> tuple[Encoded | None, int]:
    """Returns the kept text that shares the longest prefix with `text`, and that prefix's length in
    characters."""
    best, shared = None, 0
    for each in reversed(kept):
        probe = slice(shared, shared + PROBE_LENGTH)
        # Most other texts differ earlier, and need no full comparison.
        if shared < len(text) and each.text[probe] == text[probe]:
            length = common_length(text, each.text)
            if length > shared:
                best, shared = each, length
    return best, shared
