"""Finds the number of prompt tokens up to each position of the prefix hash chain."""

from array import array
from collections.abc import Sequence
from itertools import chain as chained

from node.prompt.template.item_ends import ItemSpan, PromptLayout, Stretch
from node.protocol.chain.prefix import Chain

SLACK_LENGTH = 32
"""Characters before a cut inside a message from which on the tokens may depend on what follows the
cut."""


def position_tokens(chain: Chain, layout: PromptLayout | None) -> "array[int]":
    """Returns for each position of the chain, ascending, a number of first tokens that all prompts
    through that position have in common; a lower bound. `layout` is the layout of the same body's
    prompt, None if unknown."""
    counts = array("I", [0]) * len(chain)
    if layout is None:
        return counts
    done = least = 0
    stops = chained([chain.preamble], chain.items)
    for number, (stop, span) in enumerate(
        zip(stops, chained([layout.preamble], layout.items), strict=False)
    ):
        if stop == done:
            continue
        begin = chain.sizes[done - 1] if done else 0
        if not number:
            # Tools come first, and where the prompt has them is unknown.
            begin = chain.sizes[stop - 1] - span.form_bytes
        inner = [size - begin for size in chain.sizes[done : stop - 1]]
        for at, length in enumerate(_lengths(inner, span, layout), start=done):
            least = max(least, layout.tokens_within(length))
            counts[at] = least
        least = max(least, layout.tokens_within(span.end))
        counts[stop - 1] = least
        done = stop
    for at in range(done, len(chain)):
        counts[at] = least
    return counts


def _lengths(offsets: Sequence[int], span: ItemSpan, layout: PromptLayout) -> list[int]:
    """Returns, for ascending byte offsets in an item's canonical form, the number of characters of
    the prompt's text that all prompts with the same bytes before the offset share."""
    lengths = [0] * len(offsets)
    for stretch in span.stretches:
        inner = [offset - stretch.ahead_bytes for offset in offsets]
        first = next((i for i, offset in enumerate(inner) if offset > 0), len(inner))
        lengths[first:] = _characters(inner[first:], stretch, layout.text)
    return lengths


def _characters(offsets: Sequence[int], stretch: Stretch, text: str) -> list[int]:
    """Like `_lengths`, within one stretch."""
    part = text[stretch.begin : stretch.end]
    if part.isascii():
        # The whole text, or no text at all if all stretches are ASCII.
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
