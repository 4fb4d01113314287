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

SHORT_LENGTH = 1024
"""A text of fewer characters is tokenised at once and not kept."""
KEPT_LENGTH = 8 * 1024**2
"""Characters of all kept texts together; each costs about three bytes."""
TAIL_LENGTH = 64
"""A kept text that another one repeats but for its last so many characters is not kept."""
PROBE_LENGTH = 64


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

    def encode(self, text: str) -> Encoded:
        """The text's tokens, the same as without any memory of earlier texts."""
        if len(text) < SHORT_LENGTH:
            return self._extend(text, None, 0)
        with self._lock:
            kept = list(self._kept)
        base, shared = _nearest(text, kept)
        if base is not None and shared == len(text) == len(base.text):
            self._keep(base, base)
            return base
        encoded = self._extend(text, base, shared)
        repeated = base is not None and shared >= len(base.text) - TAIL_LENGTH
        self._keep(encoded, base if repeated else None)
        return encoded

    def _extend(self, text: str, base: Encoded | None, shared: int) -> Encoded:
        """Takes over what `base`, which begins with the same `shared` characters, has before a
        special token, and tokenises the rest."""
        cut = start = last = 0
        if base is not None and shared >= self._lookahead:
            last = bisect_right(base.special_starts, shared - self._lookahead) - 1
            if last > 0:
                cut, start = base.specials[last], base.special_starts[last]
        # Not encode(), which holds the interpreter's lock meanwhile.
        (rest,) = self._backend.encode_batch([text[start:]], add_special_tokens=False)
        # One by one: the list of all offsets is made in one go, which holds that lock, too.
        numbers, span, names = rest.ids, rest.token_to_chars, self._specials
        found = [
            i
            for i, number in enumerate(numbers)
            # The one for unknown characters has its own name in the text, or parts nothing.
            if number in names and text.startswith(names[number], start + span(i)[0])
        ]
        ids = array("I", numbers)
        ends = array("I", [start + span(i)[1] for i in range(len(numbers))])
        specials = array("I", [cut + i for i in found])
        starts = array("I", [start + span(i)[0] for i in found])
        if base is None or not cut:
            return Encoded(text, ids, ends, specials, starts)
        return Encoded(
            text,
            base.ids[:cut] + ids,
            base.ends[:cut] + ends,
            base.specials[:last] + specials,
            base.special_starts[:last] + starts,
        )

    def _keep(self, encoded: Encoded, replaced: Encoded | None) -> None:
        with self._lock:
            kept = [each for each in self._kept if each is not replaced] + [encoded]
            length = sum(len(each.text) for each in kept)
            while length > KEPT_LENGTH and len(kept) > 1:
                length -= len(kept.pop(0).text)
            self._kept = kept


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
