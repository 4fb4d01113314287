"""What an engine will not run, as sentences for the caller."""

from node.engine.cache.parts import Tokens
from node.generate import GenerateRequest
from node.parsing.registry import grammar_for
from node.types import Loaded, Refused


def refusal(
    request: GenerateRequest, tokens: Tokens, info: Loaded, *, is_running: bool
) -> Refused | None:
    """Why the model of `info` does not take the request, of which `tokens` are the prompt; None
    if it does."""
    vocab_size = info.vocab_size
    bias = [token for token, _ in request.sampling.logit_bias]
    if is_running:
        return Refused(request.uid, "A request with this id is running.")
    if not len(tokens):
        return Refused(request.uid, "The prompt is empty.", "messages")
    if len(tokens) >= info.context_tokens:
        reason = (
            f"The prompt has {len(tokens)} tokens; the model's context of "
            f"{info.context_tokens} leaves no room for an answer."
        )
        return Refused(request.uid, reason, "messages")
    if not 0 <= tokens.min() <= tokens.max() < vocab_size:
        return Refused(request.uid, "The prompt has ids beyond the vocabulary.", "messages")
    if request.max_tokens is not None and request.max_tokens < 1 and not request.warm:
        return Refused(request.uid, "max_tokens must be at least 1.", "max_tokens")
    if (refused := refused_choices(request, info)) is not None:
        return refused
    if bias and not 0 <= min(bias) <= max(bias) < vocab_size:
        reason = f"logit_bias names ids beyond the vocabulary of {vocab_size} tokens."
        return Refused(request.uid, reason, "logit_bias")
    return unknown_format(request)


def refused_choices(request: GenerateRequest, info: Loaded) -> Refused | None:
    """The refusal of more choices than rows, or of any for a prompt without an answer."""
    if request.warm and request.choices > 1:
        return Refused(request.uid, "A prompt that is only kept has no choices of answers.", "n")
    if request.choices <= info.max_rows:
        return None
    reason = (
        f"n is {request.choices}, and this model runs {info.max_rows} answers at a time: see "
        "--max-rows."
    )
    return Refused(request.uid, reason, "n")


def unknown_format(request: GenerateRequest) -> Refused | None:
    """The refusal of a request whose output format this version does not know."""
    output = request.output
    if output is None:
        return None
    try:
        grammar_for(output.reasoning, output.tool_calls)
    except KeyError as error:
        return Refused(request.uid, f"There is no output format {error}.")
    return None


def too_long(tokens: int, longest: int) -> str:
    """Why a prompt is refused that the memory can never hold."""
    return (
        f"The KV of {tokens} tokens does not fit into the memory that this model was given, which "
        f"holds {longest} tokens. Raise --memory-limit, or unload another model."
    )
