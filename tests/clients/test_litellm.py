"""LiteLLM's client against an agent, as an OpenAI and as an Anthropic server."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.scenario import (
    FAMILIES,
    MODEL,
    QUESTION,
    RESULTS,
    SESSION,
    TOOLS,
    Answer,
    Family,
    serving,
)
from tests.node.serving import RunningAgent

# Of what it imports with its first call.
pytestmark = pytest.mark.filterwarnings("ignore:Items? .* using the `ReadOnly` qualifier")

_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.parameters),
        },
    }
    for tool in TOOLS
]


@pytest.fixture(scope="module")
def litellm() -> Any:
    """Its import takes ten seconds, and would fetch prices over the network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        return pytest.importorskip(
            "litellm", reason="LiteLLM is not installed: pip install --group clients"
        )


async def _answer(litellm: Any, request: dict[str, Any], how: str) -> Any:
    """The message, and why it ended."""
    if how == "streamed":
        stream = await litellm.acompletion(**request, stream=True)
        chunks = [chunk async for chunk in stream]
        answer = litellm.stream_chunk_builder(chunks)
    else:
        answer = await litellm.acompletion(**request)
    (choice,) = answer.choices
    assert choice.finish_reason == ("tool_calls" if choice.message.tool_calls else "stop")
    return choice.message


def _parsed(message: Any) -> Answer:
    functions = [call.function for call in message.tool_calls or ()]
    calls = tuple((each.name, json.loads(each.arguments)) for each in functions)
    return Answer(getattr(message, "reasoning_content", ""), message.content or "", calls)


async def _session(litellm: Any, request: dict[str, Any], how: str) -> list[Answer]:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    answers: list[Answer] = []
    while not answers or answers[-1].calls:
        message = await _answer(litellm, {**request, "messages": messages, "tools": _TOOLS}, how)
        answers.append(_parsed(message))
        messages.append(message)
        messages += [
            {
                "role": "tool",
                "tool_call_id": call.id,
                "name": call.function.name,
                "content": RESULTS[call.function.name],
            }
            for call in message.tool_calls or ()
        ]
    return answers


def _target(provider: str, agent: RunningAgent) -> dict[str, Any]:
    path = "" if provider == "anthropic" else "/v1"
    return {
        "model": f"{provider}/{MODEL}",
        "api_base": f"http://127.0.0.1:{agent.port}{path}",
        "api_key": agent.token,
        "max_tokens": 4000,
        "num_retries": 0,
    }


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_a_chat_calls_tools_and_answers(tmp_path: Path, litellm: Any, family: Family) -> None:
    ways = [(p, how) for p in ("openai", "anthropic") for how in ("collected", "streamed")]
    async with serving(tmp_path, family) as agent:
        sessions = {
            (provider, how): await _session(litellm, _target(provider, agent), how)
            for provider, how in ways
        }
        await litellm.close_litellm_async_clients()
    assert sessions == dict.fromkeys(ways, list(SESSION))
