"""Estimates of a request's length before its prompt is made."""

from node.prompt.prompt import RenderRequest
from node.prompt.template.item_ends import length_of
from node.request import TextRequest

MESSAGE_LENGTH = 32
"""Characters that a message adds to its text."""


def is_longer(request: TextRequest, length: int) -> bool:
    """True if the prompt has more than `length` characters, roughly."""
    if request.messages is None:
        return len(request.prompt or "") > length
    for message in request.messages:
        if length < 0:
            return True
        length -= length_of(message) + MESSAGE_LENGTH
    return length < 0


def may_overflow(render_request: RenderRequest) -> bool:
    """True if the prompt may be longer than the model's context, given that a token has at least
    one character."""
    context_tokens = render_request.context_tokens
    return context_tokens is not None and is_longer(render_request.request, context_tokens)
