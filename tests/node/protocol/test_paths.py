"""Paths: their dialects, and hints for requests from a wrong base URL."""

import pytest

from node.errors import UnknownPath
from node.protocol.paths import ApiDialect, dialect_of, hint
from router.errors import UnknownPath as RouterUnknownPath

RULE = (
    "OpenAI's clients take a base URL that ends in /v1, Anthropic's and Ollama's the URL "
    "without it."
)


@pytest.mark.parametrize("kind", [UnknownPath, RouterUnknownPath])
def test_a_base_url_without_its_version_is_named(kind: type[UnknownPath]) -> None:
    assert kind.at("/chat/completions").message == (
        f"There is nothing at /chat/completions. /v1/chat/completions is there: {RULE}"
    )
    assert "/api/chat may be there: " in kind.at("/v1/api/chat").message
    assert "/v1/messages may be there: " in kind.at("/v1/v1/messages").message


@pytest.mark.parametrize(
    "path", ["/", "/nowhere", "/v1/nowhere", "/v1", "/v1/v1", "/v1/chat/completions", "/v1x/v1/a"]
)
def test_other_paths_get_no_hint(path: str) -> None:
    assert hint(path) == ""


def test_a_path_is_repeated_no_further_than_anybody_reads() -> None:
    assert len(hint("/models/" + "a" * 10_000)) < 400


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v1/chat/completions", ApiDialect.OPENAI),
        ("/v1/completions", ApiDialect.OPENAI),
        ("/v1/models", ApiDialect.OPENAI),
        ("/v1/messagesx", ApiDialect.OPENAI),
        ("/v1/responses", ApiDialect.RESPONSES),
        ("/v1/responses/resp_1/cancel", ApiDialect.RESPONSES),
        ("/v1/messages", ApiDialect.ANTHROPIC),
        ("/v1/messages/count_tokens", ApiDialect.ANTHROPIC),
        ("/v1/messages/nothing", ApiDialect.ANTHROPIC),
        ("/api/chat", ApiDialect.OLLAMA),
        ("/api/nothing", ApiDialect.OLLAMA),
        ("/api", ApiDialect.OPENAI),
    ],
)
def test_the_path_determines_the_dialect(path: str, dialect: ApiDialect) -> None:
    assert dialect_of(path) is dialect
