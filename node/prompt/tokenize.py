"""Token ids of long texts that begin like earlier ones: only what is new is tokenised.

A session's prompt repeats all that came before it. A tokeniser splits a text at special tokens
before anything else, so what precedes one has the same token ids whatever follows.
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
"""A text of fewer characters is tokenised at once and not kept."""
KEPT_LENGTH = 8 * 1024**2
"""Characters of all kept texts together; each costs about three bytes."""
TAIL_LENGTH = 64
"""A kept text that another one repeats but for its last so many characters is not kept."""
PROBE_LENGTH = 64
SAMPLE_LENGTH = 8 * 1024
"""Characters of a text by which its number of tokens is guessed."""
UNSURE_SHARE, UNSURE_TOKENS = 16, 16
"""A piece that is cut anywhere is taken to have at most a 16th and 16 tokens more by itself than in
the whole: what is cut is spelled with other tokens."""


class TooManyTokens(Exception):
    """A text has more tokens than the caller takes."""

    def __init__(self, tokens: int) -> None:
        """`tokens`: how many, or a guess where they were not all counted."""
        super().__init__(f"some {tokens} tokens")
        self.tokens = tokens


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A text and its tokens, one item for each token in `ids` and `ends`."""

    text: str
    ids: "array[int]"
    ends: "array[int]"
    """Ascending: how many characters of the text a token and those before it cover."""
    specials: "array[int]"
    """Ascending indices of the special tokens that part the text."""
    special_starts: "array[int]"
    """Where in the text they begin."""

    def tokens_within(self, length: int) -> int:
        """How many tokens lie wholly in the first `length` characters."""
        return bisect_right(self.ends, length)


class PromptEncoder:
    """One tokeniser of the tokenizers library, without the special tokens that it would add.
    Safe to use from several threads."""

    def __init__(self, backend: Any) -> None:
        """`backend` is a `tokenizers.Tokenizer` that neither pads nor truncates."""
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        # One that takes the space before it, or is found in normalised text, hangs on its left.
        self._specials: dict[int, str] = {
            number: token.content
            for number, token in added.items()
            if token.special and not (token.lstrip or token.single_word or token.normalized)
        }
        # Where an added token may begin, as many characters decide whether and which.
        self._lookahead = max((len(token.content) for token in added.values()), default=0)
        self._slicer = Slicer(backend, self._lookahead)
        self._kept: list[Encoded] = []
        """The one used last is at the end."""
        self._lock = threading.Lock()

    @cached_property
    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens that the tokeniser would put before and behind a text."""
        bare, whole = (
            tuple(self._backend.encode("a", add_special_tokens=adds).ids) for adds in (False, True)
        )
        for begin in range(len(whole) - len(bare) + 1):
            if whole[begin : begin + len(bare)] == bare:
                return whole[:begin], whole[begin + len(bare) :]
        return (), ()

    @cached_property
    def token_bytes(self) -> TokenBytes | None:
        """As of `token_bytes`."""
        return token_bytes(self._backend)

    def check(self, text: str, most_tokens: int) -> None:
        """Raises `TooManyTokens` where the text's length alone tells that it has more."""
        if len(text) > most_tokens and self.token_bytes is not None:
            least = self.token_bytes.least_tokens(text)
            if least > most_tokens:
                sample = text[:SAMPLE_LENGTH]
                raise TooManyTokens(
                    max(least, len(self._slicer.whole(sample).ids) * len(text) // len(sample))
                )

    def encode(self, text: str, most_tokens: int | None = None) -> Encoded:
        """The text's tokens, the same as without any memory of earlier texts. Raises
        `TooManyTokens` for more than `most_tokens`, and then has not tokenised much more."""
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
        """Takes over what `base`, which begins with the same `shared` characters, has before a
        special token, and tokenises the rest. Raises `TooManyTokens`."""
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
        """All that is left of a text that cannot be parted there. Raises `TooManyTokens` before
        that is tokenised."""
        text, count = made.text, len(made.ids)
        for at in range(begin, len(text), SLICE_LENGTH):
            if most_tokens is None:
                break
            found = len(self._slicer.whole(text[at : at + SLICE_LENGTH]).ids)
            count += max(found - found // UNSURE_SHARE - UNSURE_TOKENS, 0)
            _check_count(count, min(at + SLICE_LENGTH, len(text)), text, most_tokens)
        return self._slicer.whole(text[begin:])

    def _add(self, made: Encoded, begin: int, piece: Slice) -> None:
        """Puts the tokens of a piece of the text behind those that are there."""
        text, names, done = made.text, self._specials, len(made.ids)
        found = [
            i
            for i, number in enumerate(piece.ids)
            # The one for unknown characters has its own name in the text, or parts nothing.
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
    """Raises `TooManyTokens` where the first `length` characters of the text have too many."""
    if most_tokens is not None and count > most_tokens:
        raise TooManyTokens(count * len(text) // length)


def common_length(first: str, second: str) -> int:
    """How many characters the texts begin with alike."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    # Alike up to `low`, not up to `high`.
    while high - low > 1:
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _nearest(text: str, kept: list[Encoded]) -> tuple[Encoded | None, int]:
    """The kept text that begins like `text` for longest, and for how many characters."""
    best, shared = None, 0
    for each in reversed(kept):
        probe = slice(shared, shared + PROBE_LENGTH)
        # Most of the others part from it earlier, and need no full comparison.
        if shared < len(text) and each.text[probe] == text[probe]:
            length = common_length(text, each.text)
            if length > shared:
                best, shared = each, length
    return best, shared
