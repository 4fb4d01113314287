"""Refusals of requests that an engine cannot run, as sentences for the client."""

from collections.abc import Callable

from node.engine.cache.parts import Tokens
from node.engine.decoding.chunking import USUAL_OUTPUT_TOKENS
from node.ipc.generate import GenerateRequest
from node.ipc.messages import Loaded, MemoryLease, Refused
from node.parsing.registry import layout_for
from node.protocol.overflow import Overflow

_PROMPT = "messages"
"""Name of the prompt's field in a refusal; the agent replaces it by that of each dialect."""
SMALL_SHARE = 1 / 8
"""Share of the live KV that one request may take while memory is very short."""
_MIB = 1024**2


def refusal(
    request: GenerateRequest, tokens: Tokens, info: Loaded, *, is_running: bool
) -> Refused | None:
    """Returns the refusal of a request that the model of `info` cannot run, or None. `tokens` is
    its prompt."""
    vocab_size = info.vocab_size
    bias = [token for token, _ in request.sampling.logit_bias]
    if is_running:
        return Refused(request.uid, "A request with this id is running.")
    if (refused := refused_length(request, info)) is not None:
        return refused
    if not 0 <= tokens.min() <= tokens.max() < vocab_size:
        return Refused(request.uid, "The prompt has ids beyond the vocabulary.", _PROMPT)
    if request.max_tokens is not None and request.max_tokens < 1 and not request.warm:
        return Refused(request.uid, "max_tokens must be at least 1.", "max_tokens")
    if (refused := refused_choices(request, info)) is not None:
        return refused
    if bias and not 0 <= min(bias) <= max(bias) < vocab_size:
        reason = f"logit_bias names ids beyond the vocabulary of {vocab_size} tokens."
        return Refused(request.uid, reason, "logit_bias")
    return unknown_format(request)


def refused_length(request: GenerateRequest, info: Loaded) -> Refused | None:
    """Returns the refusal of an empty prompt, or of one that leaves no room for a response."""
    overflow = Overflow(len(request.tokens), info.context_tokens)
    if not overflow.prompt_tokens:
        return Refused(request.uid, "The prompt is empty.", _PROMPT)
    if overflow.prompt_tokens < overflow.context_tokens:
        return None
    return Refused(request.uid, overflow.openai, _PROMPT, overflow)


def refused_size(request: GenerateRequest, longest_tokens: int) -> Refused | None:
    """Returns the refusal of a prompt whose KV never fits into memory, which has room for a row of
    `longest_tokens`."""
    prompt_tokens = len(request.tokens)
    if prompt_tokens < longest_tokens:
        return None
    reason = too_large(prompt_tokens, longest_tokens)
    return Refused(request.uid, reason, _PROMPT, Overflow(prompt_tokens, longest_tokens))


def refused_under_pressure(
    request: GenerateRequest, live_bytes: Callable[[int], int], lease: MemoryLease
) -> Refused | None:
    """Returns the temporary refusal of a request whose KV is not small while the machine is very
    short of memory. `live_bytes` gives the bytes of a row by its tokens. `max_tokens` counts up to
    a usual output only: many programs send the same large value with every request."""
    if request.warm:
        reason = "The machine is short of memory, and keeps no prompt until some is free again."
        return Refused(request.uid, reason, is_short=True)
    output_tokens = min(request.max_tokens or USUAL_OUTPUT_TOKENS, USUAL_OUTPUT_TOKENS)
    needed_bytes = request.choices * live_bytes(len(request.tokens) + output_tokens)
    most_bytes = int(lease.live_kv_bytes * SMALL_SHARE)
    if lease.total_bytes <= 0 or needed_bytes <= most_bytes:
        return None
    reason = (
        "The machine is short of memory, and until some is free again only small requests are "
        f"served: the KV of this one takes {needed_bytes / _MIB:.0f} MiB, and up to "
        f"{most_bytes / _MIB:.0f} MiB are accepted. Send it again later, or a shorter prompt."
    )
    return Refused(request.uid, reason, is_short=True)


def refused_choices(request: GenerateRequest, info: Loaded) -> Refused | None:
    """Returns the refusal of more choices than the engine has rows, or of several choices for a
    prompt that is only stored."""
    if request.warm and request.choices > 1:
        return Refused(request.uid, "A prompt that is only stored has no choices.", "n")
    if request.choices <= info.max_rows:
        return None
    reason = (
        f"n is {request.choices}, and this model computes {info.max_rows} choices at a time: see "
        "--max-rows."
    )
    return Refused(request.uid, reason, "n")


def unknown_format(request: GenerateRequest) -> Refused | None:
    """Returns the refusal of a request with an output format that this version does not know."""
    output = request.output
    if output is None:
        return None
    try:
        layout_for(output.reasoning, output.tool_calls)
    except KeyError as error:
        return Refused(request.uid, f"There is no output format {error}.")
    return None


def too_large(prompt_tokens: int, longest_tokens: int) -> str:
    """Returns the message for a prompt whose KV never fits into memory."""
    return (
        f"{Overflow(prompt_tokens, longest_tokens).openai} The KV of more does not fit into the "
        "memory that this model was given: raise --memory-limit, or unload another model."
    )
