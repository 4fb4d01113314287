"""Whatever an alias may add, a node takes it: with every field of the caller for the same thing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from node.dialects.anthropic.body import read_count_tokens, read_messages
from node.dialects.chat.body import read_chat
from node.dialects.completions.completions import read_completion
from node.dialects.ollama.chat import read_ollama_chat
from node.dialects.ollama.generate import read_ollama_generate
from node.dialects.responses.body import read_responses
from node.errors import NodeError
from node.protocol.chain.prefix import read_fields
from node.protocol.paths import PATH_COUNT_TOKENS
from router.api.admin.alias_views import Defaults
from router.api.bodies import with_model
from router.routing.alias_defaults import with_defaults

MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}
EFFORTS = ("none", "minimal", "low", "high", "max")
PATHS: dict[str, tuple[Callable[[bytes], object], dict[str, Any]]] = {
    "/v1/chat/completions": (read_chat, MESSAGES),
    "/v1/completions": (read_completion, {"prompt": "hi"}),
    "/v1/responses": (read_responses, {"input": "hi"}),
    "/v1/messages": (read_messages, {**MESSAGES, "max_tokens": 9}),
    PATH_COUNT_TOKENS: (read_count_tokens, MESSAGES),
    "/api/chat": (lambda body: read_ollama_chat(body, str), MESSAGES),
    "/api/generate": (lambda body: read_ollama_generate(body, str), {"prompt": "hi"}),
}
DEFAULTS: dict[str, tuple[Any, ...]] = {
    "temperature": (0.0, 1.5, 2),
    "top_p": (0.0, 0.5, 1),
    "top_k": (-1, 0, 40),
    "min_p": (0.0, 0.1),
    "seed": (-5, 7),
    "repetition_penalty": (0.5, 1.1),
    "presence_penalty": (-2, 0.5),
    "frequency_penalty": (-2, 0.5),
    "max_tokens": (1, 500),
    "stop": ("END", ["a", "b"]),
    "reasoning_effort": EFFORTS,
    "enable_thinking": (True, False),
    "max_thinking_tokens": (0, 500),
    "chat_template_kwargs": ({"enable_thinking": False}, {"style": "short"}),
}
SENT: dict[str, tuple[Any, ...]] = {
    "temperature": (0.3, None),
    "max_completion_tokens": (5,),
    "reasoning_effort": (*EFFORTS, None),
    "reasoning": ({"effort": "low"}, {"effort": "none"}, {"max_tokens": 9}, {}, None),
    "enable_thinking": (True, False, None),
    "thinking": (
        {"type": "enabled", "budget_tokens": 90},
        {"type": "disabled"},
        {"type": "adaptive"},
        None,
    ),
    "output_config": ({"effort": "low"}, {}, None),
    "max_thinking_tokens": (0, 70),
    "thinking_budget": (60,),
    "chat_template_kwargs": ({"enable_thinking": True}, {"style": "long"}, {}, None),
    "think": (True, False, "low", None),
    "options": ({"temperature": 0.2, "stop": ["x"]}, {"num_predict": 3}, {}, None),
}
"""Values that callers send for the same things, each on some paths."""


def some_of(choices: dict[str, tuple[Any, ...]]) -> st.SearchStrategy[dict[str, Any]]:
    fields = {name: st.sampled_from(values) for name, values in choices.items()}
    return st.fixed_dictionaries({}, optional=fields)


def is_taken(read: Callable[[bytes], object], body: bytes) -> bool:
    try:
        read(body)
    except NodeError:
        return False
    return True


@pytest.mark.parametrize("path", PATHS)
@given(defaults=some_of(DEFAULTS), sent=some_of(SENT))
def test_a_body_that_a_node_accepts_is_accepted_with_defaults_too(
    path: str, defaults: dict[str, Any], sent: dict[str, Any]
) -> None:
    read, body = PATHS[path]
    try:
        allowed = Defaults(**defaults).given()
    except ValidationError:
        return
    whole = json.dumps({"model": "m", **body, **sent}).encode()
    if is_taken(read, whole):
        made = with_model(with_defaults(read_fields(whole), allowed, path), "m")
        read(made)
