"""How long a request is before anything is made of it."""

from node.prompt.prompt import RenderRequest
from node.prompt.template.item_ends import length_of
from node.request import TextRequest

MESSAGE_LENGTH = 32
"""What a message adds, in characters."""


def is_longer(request: TextRequest, length: int) -> bool:
    """Whether its prompt has more characters, about."""
    if request.messages is None:
        return len(request.prompt or "") > length
    for message in request.messages:
        if length < 0:
            return True
        length -= length_of(message) + MESSAGE_LENGTH
    return length < 0


def may_overflow(asked: RenderRequest) -> bool:
    """Whether the prompt may be longer than the model's context, as long as a character is no more
    than a token."""
    context_tokens = asked.context_tokens
    return context_tokens is not None and is_longer(asked.request, context_tokens)
