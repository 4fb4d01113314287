"""Which tokens of a prompt the positions of its chain stand for."""

from array import array
from collections.abc import Sequence
from itertools import chain as chained

from node.prompt.template.item_ends import Place, Places, Stretch
from node.protocol.prefix import Chain

SLACK_LENGTH = 32
"""So many characters before a cut inside a message, tokens are the same whatever follows it."""


def bind(chain: Chain, places: Places | None) -> "array[int]":
    """For each position of the chain, how many tokens at least all prompts begin with alike that
    go through it; ascending. `places`: of the prompt of the same body, where they are known."""
    counts = array("I", [0]) * len(chain)
    if places is None:
        return counts
    done = least = 0
    stops = chained([chain.preamble], chain.items)
    for number, (stop, place) in enumerate(
        zip(stops, chained([places.preamble], places.items), strict=False)
    ):
        if stop == done:
            continue
        begin = chain.sizes[done - 1] if done else 0
        if not number:
            # Tools come first, and where those are in the prompt is not known.
            begin = chain.sizes[stop - 1] - place.form_bytes
        inner = [size - begin for size in chain.sizes[done : stop - 1]]
        for at, length in enumerate(_lengths(inner, place, places), start=done):
            least = max(least, places.tokens_within(length))
            counts[at] = least
        least = max(least, places.tokens_within(place.end))
        counts[stop - 1] = least
        done = stop
    for at in range(done, len(chain)):
        counts[at] = least
    return counts


def _lengths(offsets: Sequence[int], place: Place, places: Places) -> list[int]:
    """For ascending offsets in bytes of a place's form, how many characters of the text all share
    that have the bytes before."""
    lengths = [0] * len(offsets)
    for stretch in place.stretches:
        inner = [offset - stretch.ahead_bytes for offset in offsets]
        first = next((i for i, offset in enumerate(inner) if offset > 0), len(inner))
        lengths[first:] = _characters(inner[first:], stretch, places.text)
    return lengths


def _characters(offsets: Sequence[int], stretch: Stretch, text: str) -> list[int]:
    """As `_lengths`, within one stretch."""
    part = text[stretch.begin : stretch.end]
    if part.isascii():
        # All of it, or no text at all, where all stretches are like this one.
        last = stretch.end - stretch.begin
        return [max(0, stretch.begin + min(offset, last) - SLACK_LENGTH) for offset in offsets]
    data = part.encode("utf-8", "surrogatepass")
    lengths, done, length = [], 0, stretch.begin
    for offset in offsets:
        end = min(offset, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
        length += len(data[done:end].decode("utf-8", "surrogatepass"))
        done = end
        lengths.append(max(0, length - SLACK_LENGTH))
    return lengths
