"""Sentences about limits, for the clients that meet them."""

from router.limits.account import Refusal, RequestSize


def refusal_text(owner: str, refusal: Refusal, size: RequestSize, wait_s: int | None) -> str:
    """Says which limit refuses the request, and what to do; `wait_s` is None if waiting does not
    help."""
    most = f"{refusal.most:,}"
    if refusal.limit == "concurrent_requests":
        return (
            f"{owner} may have {most} {_plural('request', refusal.most)} open at once, and has so "
            "many; try again when one has ended."
        )
    if refusal.limit == "requests_per_minute":
        requests = _plural("request", refusal.most)
        return f"{owner} may make {most} {requests} a minute; try again in {wait_s} s."
    period = "day" if refusal.limit == "tokens_per_day" else "minute"
    allowed = f"{owner} may use {most} {_plural('token', refusal.most)} a {period}"
    if wait_s is None:
        return f"{allowed}, and this request may take {_tokens(size)}; {_shorten(size)}."
    used = f"{refusal.used:,} are used or reserved, and this request may take {_tokens(size)}"
    if period == "day":
        return f"{allowed}; {used}. A new day begins at 00:00 UTC, in {_hours(wait_s)}."
    return f"{allowed}; {used}. Try again in {wait_s} s."


def _tokens(size: RequestSize) -> str:
    """The request's own tokens, as far as it states them."""
    if size.output_tokens is None:
        return f"{size.prompt_tokens:,} for its prompt"
    return f"{size.least_tokens:,}"


def _shorten(size: RequestSize) -> str:
    return "shorten the prompt" + ("" if size.output_tokens is None else " or lower `max_tokens`")


def _hours(seconds: int) -> str:
    hours, minutes = divmod(-(-seconds // 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _plural(word: str, number: int) -> str:
    return word if number == 1 else f"{word}s"
