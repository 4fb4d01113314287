"""The paths of the API, as those ask for them who have set another base URL."""

VERSION = "/v1"
_BELOW = frozenset(
    (
        *("/chat/completions", "/completions", "/responses", "/messages"),
        *("/messages/count_tokens", "/models", "/requests"),
    )
)
"""Of `VERSION`, what clients ask for."""
_RULE = f"OpenAI's clients take a base URL that ends in {VERSION}, Anthropic's the URL without it"


def hint(path: str) -> str:
    """One more sentence about a path at which there is nothing; empty where none helps."""
    whole = VERSION + path
    if path in _BELOW or path.startswith("/models/"):
        return f" {whole[:200]} is there: {_RULE}."
    doubled = path.removeprefix(VERSION)
    if doubled != path and doubled.startswith(f"{VERSION}/"):
        return f" {doubled[:200]} may be there: {_RULE}."
    return ""
