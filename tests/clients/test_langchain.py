"""LangChain's ChatOpenAI with `bind_tools` against an agent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
    without_reasoning,
)
from tests.node.serving import RunningAgent

_TOOLS = [
    {"title": tool.name, "description": tool.description, **tool.parameters} for tool in TOOLS
]
_WAYS = ("collected", "streamed")


@pytest.fixture(scope="module")
def chat_model() -> Any:
    """The class ChatOpenAI; its import takes seconds."""
    reason = "LangChain is not installed: pip install --group clients"
    return pytest.importorskip("langchain_openai", reason=reason).ChatOpenAI


@asynccontextmanager
async def _model(chat_model: Any, agent: RunningAgent, **options: Any) -> AsyncIterator[Any]:
    """A model with the tools; `options` are further ones of ChatOpenAI."""
    model = chat_model(
        model=MODEL,
        base_url=f"http://127.0.0.1:{agent.port}/v1",
        api_key=agent.token,
        max_retries=0,
        stream_usage=True,
        **options,
    )
    try:
        yield model.bind_tools(_TOOLS)
    finally:
        # Models of the same server share its connections, which nothing else closes.
        await model.root_async_client.close()


async def _answer(model: Any, history: list[Any], how: str) -> Any:
    if how == "collected":
        return await model.ainvoke(history)
    total = None
    async for chunk in model.astream(history):
        total = chunk if total is None else total + chunk
    return total


def _parsed(message: Any) -> Answer:
    # The reasoning of a response is in its items.
    items = [] if isinstance(message.content, str) else message.content
    reasoning = "".join(
        part["text"] for each in items if each["type"] == "reasoning" for part in each["summary"]
    )
    assert message.invalid_tool_calls == []
    assert message.usage_metadata["output_tokens"] > 0
    return Answer(
        reasoning, message.text, tuple((c["name"], c["args"]) for c in message.tool_calls)
    )


async def _session(model: Any, how: str) -> list[Answer]:
    history: list[Any] = [{"role": "user", "content": QUESTION}]
    answers: list[Answer] = []
    while not answers or answers[-1].calls:
        message = await _answer(model, history, how)
        answers.append(_parsed(message))
        history.append(message)
        history += [
            {"role": "tool", "tool_call_id": call["id"], "content": RESULTS[call["name"]]}
            for call in message.tool_calls
        ]
    return answers


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_a_model_with_tools_calls_them_and_answers(
    tmp_path: Path, chat_model: Any, family: Family
) -> None:
    async with (
        serving(tmp_path, family) as agent,
        _model(chat_model, agent) as chat,
        _model(
            chat_model, agent, use_responses_api=True, reasoning={"summary": "auto"}
        ) as responses,
    ):
        chats = {how: await _session(chat, how) for how in _WAYS}
        answered = {how: await _session(responses, how) for how in _WAYS}
    # Of chat completions it reads no reasoning.
    assert chats == dict.fromkeys(_WAYS, without_reasoning(SESSION))
    assert answered == dict.fromkeys(_WAYS, list(SESSION))
