"""A rendered request, and what renders one."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from node.errors import BadRequest, ContextTooLong
from node.parsing.selection import Formats
from node.prompt.late_chain import LateChain
from node.prompt.template.item_ends import Places, whole_text
from node.prompt.tokenize import TooManyTokens
from node.protocol.overflow import Overflow
from node.request import TextRequest


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered request; the fields as in `GenerateRequest` and `OutputFormat`."""

    tokens: tuple[int, ...]
    boundaries: tuple[int, ...] = ()
    reusable_tokens: int | None = None
    dropped_answer: tuple[int, ...] = ()
    formats: Formats = Formats()
    """Of the answer; none for a completion."""
    tail: str = ""
    places: Places | None = field(default=None, compare=False, repr=False)
    """Of the body's items, where they are known; for who makes the prompt."""
    positions: "array[int]" = field(default_factory=lambda: array("I"), compare=False)
    """Of the chain that was asked about: as of `bind`."""


@dataclass(frozen=True, slots=True)
class RenderRequest:
    """A prompt to be made."""

    request: TextRequest
    context_tokens: int | None = None
    """Of the model that is to answer; None: of any length."""
    caller: str = ""
    """Whoever asks, as the router tells them apart; empty without a router."""
    shared: bool = False
    """Only what it shares with longer chats."""
    chain: LateChain | None = None
    """Of the body, where its positions are asked for."""


class Renderer(Protocol):
    """Makes token ids of a request's messages or prompt."""

    @property
    def formats(self) -> Formats:
        """Of answers to chats with tools."""

    def render(self, request: TextRequest, context_tokens: int | None = None) -> Prompt:
        """Raises `BadRequest` naming the field that cannot be rendered, and `ContextTooLong` where
        a context of so many tokens has no room for the prompt and an answer."""

    def render_shared(self, request: TextRequest, context_tokens: int | None = None) -> Prompt:
        """What the prompts of all requests begin with that begin with the same messages. Raises
        as `render`."""


def text_prompt(
    tokens: tuple[int, ...], text: str = "", within: Callable[[int], int] | None = None
) -> Prompt:
    """Of a completion. `within` as `Places.tokens_within`, if it is known."""
    if not tokens:
        raise BadRequest("The prompt is empty.", param="prompt")
    return Prompt(tokens, places=None if within is None else whole_text(text, len(text), within))


def ids_prompt(tokens: tuple[int, ...]) -> Prompt:
    """Of token ids, which have four bytes each in a chain."""
    return Prompt(tokens, places=whole_text("", 4 * len(tokens), lambda length: length // 4))


Make = Callable[[TextRequest, int | None], Prompt]
"""Makes the prompt of a request, which has no more than so many tokens. Raises `TooManyTokens`, or
gives one that is too long after all."""


def fitting(make: Make, request: TextRequest, context_tokens: int | None) -> Prompt:
    """The prompt that is made, with room for an answer behind it. Raises `ContextTooLong`."""
    if context_tokens is None:
        return make(request, None)
    try:
        prompt = make(request, context_tokens - 1)
    except TooManyTokens as exc:
        overflow = Overflow(exc.tokens, context_tokens)
    else:
        if len(prompt.tokens) < context_tokens:
            return prompt
        overflow = Overflow(len(prompt.tokens), context_tokens)
    raise ContextTooLong(overflow, param=request.prompt_field)
