"""Cuts the tokens of a chat's prompt where the part ends that other prompts repeat."""

from bisect import bisect_left

from node.prompt.template.chat import Chat, NextTurn
from node.prompt.template.item_ends import Marks, PromptLayout, find_layout
from node.prompt.tokenize import Encoded
from node.request import TextRequest

HEADER_TOKENS = 8
"""Most tokens behind a special token for which a cut is moved right behind that token."""


def boundaries(encoded: Encoded, following: NextTurn, shared: int) -> tuple[int, ...]:
    counts = {encoded.tokens_within(end) for end in following.ends if end <= shared}
    front = following.marks.front
    if front is not None and front <= shared:
        count = reusable_tokens(encoded, front)
        before = max((each for each in counts if each <= count), default=0)
        if count - before > HEADER_TOKENS:
            # Tools are behind the system prompt, and shared together with it.
            counts = {each for each in counts if each > count} | {count}
    return tuple(sorted(counts - {0, len(encoded.ids)}))


def find_chat_layout(request: TextRequest, chat: Chat, encoded: Encoded) -> PromptLayout | None:
    if chat.following is None or request.messages is None:
        return None
    marks, messages = chat.following.marks, request.messages
    if request.continue_final:
        # The response is a part of the last message.
        messages = messages[:-1]
    ends = {
        number: end
        for number, end in marks.ends.items()
        if end <= chat.shared and number < len(messages)
    }
    front = None
    if marks.front is not None and marks.front <= chat.shared:
        count = reusable_tokens(encoded, marks.front)
        front = encoded.ends[count - 1] if count else 0
    return find_layout(messages, chat.text, Marks(ends, front), encoded.tokens_within)


def reusable_tokens(encoded: Encoded, shared: int) -> int:
    """Returns the number of first tokens that are the same for every text with the same first
    `shared` characters."""
    if shared == len(encoded.text):
        return len(encoded.ids)
    count = encoded.tokens_within(shared)
    # Other text follows, with which the last tokens may merge, but never a special one.
    parted = bisect_left(encoded.specials, count)
    if parted and count - encoded.specials[parted - 1] - 1 <= HEADER_TOKENS:
        return encoded.specials[parted - 1] + 1
    return count
