"""A rendered request."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from node.errors import BadRequest, ContextTooLong
from node.parsing.selection import Formats
from node.prompt.late_chain import LateChain
from node.prompt.template.item_ends import PromptLayout, whole_text_layout
from node.prompt.tokenize import TooManyTokens
from node.protocol.overflow import Overflow
from node.request import TextRequest


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered request; fields as in `GenerateRequest` and `OutputFormat`."""

    tokens: tuple[int, ...]
    boundaries: tuple[int, ...] = ()
    reusable_tokens: int | None = None
    dropped_output: tuple[int, ...] = ()
    formats: Formats = Formats()
    """Formats of the response; empty for a completion."""
    tail: str = ""
    layout: PromptLayout | None = field(default=None, compare=False, repr=False)
    """Layout of the body's items in the prompt, for the process that makes it; None if unknown."""
    positions: "array[int]" = field(default_factory=lambda: array("I"), compare=False)
    """Token counts of the positions of the request's chain, as `position_tokens` returns them;
    empty without a chain."""


@dataclass(frozen=True, slots=True)
class RenderRequest:
    """A prompt to be made."""

    request: TextRequest
    context_tokens: int | None = None
    """Context of the model that will respond; None for any length."""
    caller: str = ""
    """The client behind the router, as the router names it; empty without a router."""
    shared: bool = False
    """True: only the part that longer chats share."""
    chain: LateChain | None = None
    """The body's prefix hash chain, if its positions are needed."""


def text_prompt(
    tokens: tuple[int, ...], text: str = "", within: Callable[[int], int] | None = None
) -> Prompt:
    """Makes the prompt of a completion. `within` is `PromptLayout.tokens_within`, None if
    unknown."""
    if not tokens:
        raise BadRequest("The prompt is empty.", param="prompt")
    return Prompt(
        tokens, layout=None if within is None else whole_text_layout(text, len(text), within)
    )


def ids_prompt(tokens: tuple[int, ...]) -> Prompt:
    """Makes a prompt of token ids, each of which has four bytes in a prefix hash chain."""
    return Prompt(tokens, layout=whole_text_layout("", 4 * len(tokens), lambda length: length // 4))


Make = Callable[[TextRequest, int | None], Prompt]
"""Makes the prompt of a request within a limit of tokens. Raises `TooManyTokens`, or returns a
prompt that exceeds the limit after all."""


def within_context(make: Make, request: TextRequest, context_tokens: int | None) -> Prompt:
    """Returns the prompt made by `make`, if it leaves room for a token of the response. Raises
    `ContextTooLong`."""
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
