"""Hints for requests whose path comes from a wrong base URL."""

VERSION = "/v1"
_BELOW = frozenset(
    (
        *("/chat/completions", "/completions", "/responses", "/messages"),
        *("/messages/count_tokens", "/models", "/requests"),
    )
)
"""Paths below `VERSION` that clients request."""
_RULE = f"OpenAI's clients take a base URL that ends in {VERSION}, Anthropic's the URL without it"


def hint(path: str) -> str:
    """A sentence to add to the error for an unknown path; empty if there is nothing to suggest."""
    whole = VERSION + path
    if path in _BELOW or path.startswith("/models/"):
        return f" {whole[:200]} is there: {_RULE}."
    doubled = path.removeprefix(VERSION)
    if doubled != path and doubled.startswith(f"{VERSION}/"):
        return f" {doubled[:200]} may be there: {_RULE}."
    return ""
