"""Paths that clients request, their dialects, and hints for paths that come from a wrong base
URL."""

from enum import StrEnum

DEFAULT_PORT = 8801
"""Port of a node agent."""
VERSION = "/v1"
VERSION_PREFIX = f"{VERSION}/"
PATH_CHAT = f"{VERSION}/chat/completions"
PATH_COMPLETIONS = f"{VERSION}/completions"
PATH_RESPONSES = f"{VERSION}/responses"
PATH_MESSAGES = f"{VERSION}/messages"
PATH_COUNT_TOKENS = f"{PATH_MESSAGES}/count_tokens"
"""Generates nothing, so nodes keep no usage record of it."""
PATH_MODELS = f"{VERSION}/models"
PATH_REQUESTS = f"{VERSION}/requests"
OLLAMA_PREFIX = "/api/"
PATH_OLLAMA_CHAT = f"{OLLAMA_PREFIX}chat"
PATH_OLLAMA_GENERATE = f"{OLLAMA_PREFIX}generate"
PATH_OLLAMA_TAGS = f"{OLLAMA_PREFIX}tags"
PATH_OLLAMA_SHOW = f"{OLLAMA_PREFIX}show"
PATH_OLLAMA_PS = f"{OLLAMA_PREFIX}ps"
PATH_OLLAMA_VERSION = f"{OLLAMA_PREFIX}version"
PATH_OLLAMA_PULL = f"{OLLAMA_PREFIX}pull"

_BELOW = frozenset(
    path.removeprefix(VERSION)
    for path in (
        *(PATH_CHAT, PATH_COMPLETIONS, PATH_RESPONSES, PATH_MESSAGES),
        *(PATH_COUNT_TOKENS, PATH_MODELS, PATH_REQUESTS),
    )
)
"""The paths as clients request them whose base URL lacks `VERSION`."""
_RULE = (
    f"OpenAI's clients take a base URL that ends in {VERSION}, Anthropic's and Ollama's the URL "
    "without it"
)


class ApiDialect(StrEnum):
    """Dialect of a path's responses, errors and events."""

    OPENAI = "openai"
    RESPONSES = "responses"
    """OpenAI's envelope with other events."""
    ANTHROPIC = "anthropic"
    OLLAMA = "ollama"
    """JSON lines instead of events, and errors that are a text."""


def dialect_of(path: str) -> ApiDialect:
    """Returns the dialect of a path."""
    if f"{path}/".startswith(f"{PATH_MESSAGES}/"):
        return ApiDialect.ANTHROPIC
    if f"{path}/".startswith(f"{PATH_RESPONSES}/"):
        return ApiDialect.RESPONSES
    if path.startswith(OLLAMA_PREFIX):
        return ApiDialect.OLLAMA
    return ApiDialect.OPENAI


def hint(path: str) -> str:
    """A sentence to add to the error for an unknown path; empty if there is nothing to suggest."""
    whole = VERSION + path
    if path in _BELOW or path.startswith("/models/"):
        return f" {whole[:200]} is there: {_RULE}."
    doubled = path.removeprefix(VERSION)
    if doubled != path and doubled.startswith((VERSION_PREFIX, OLLAMA_PREFIX)):
        return f" {doubled[:200]} may be there: {_RULE}."
    return ""
