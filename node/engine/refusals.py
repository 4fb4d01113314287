"""What an engine will not run, as sentences for the caller."""

from node.types import GenerateRequest, Loaded, Refused


def refusal(request: GenerateRequest, info: Loaded, *, is_running: bool) -> Refused | None:
    """Why the model of `info` does not take the request; None if it does."""
    tokens, vocab_size = request.tokens, info.vocab_size
    bias = [token for token, _ in request.sampling.logit_bias]
    if is_running:
        return Refused(request.uid, "A request with this id is running.")
    if not tokens:
        return Refused(request.uid, "The prompt is empty.", "messages")
    if len(tokens) >= info.context_tokens:
        reason = (
            f"The prompt has {len(tokens)} tokens; the model's context of "
            f"{info.context_tokens} leaves no room for an answer."
        )
        return Refused(request.uid, reason, "messages")
    if not 0 <= min(tokens) <= max(tokens) < vocab_size:
        return Refused(request.uid, "The prompt has ids beyond the vocabulary.", "messages")
    if request.max_tokens is not None and request.max_tokens < 1 and not request.warm:
        return Refused(request.uid, "max_tokens must be at least 1.", "max_tokens")
    if bias and not 0 <= min(bias) <= max(bias) < vocab_size:
        reason = f"logit_bias names ids beyond the vocabulary of {vocab_size} tokens."
        return Refused(request.uid, reason, "logit_bias")
    return None
