"""LangChain's ChatOllama with `bind_tools` against an agent."""

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

_TOOLS = [
    {"title": tool.name, "description": tool.description, **tool.parameters} for tool in TOOLS
]


@pytest.fixture(scope="module")
def chat_model() -> Any:
    """The class ChatOllama; its import takes seconds."""
    reason = "LangChain is not installed: pip install --group clients"
    return pytest.importorskip("langchain_ollama", reason=reason).ChatOllama


def _parsed(message: Any) -> Answer:
    assert message.response_metadata["done_reason"] == "stop"
    assert message.usage_metadata["output_tokens"] > 0
    calls = tuple((call["name"], call["args"]) for call in message.tool_calls)
    return Answer(message.additional_kwargs.get("reasoning_content", ""), message.content, calls)


async def _asked(model: Any, messages: list[Any], *, streams: bool) -> Any:
    if not streams:
        return await model.ainvoke(messages)
    whole = None
    async for chunk in model.astream(messages):
        whole = chunk if whole is None else whole + chunk
    return whole


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("family", FAMILIES[:2], ids=lambda family: family.name)
async def test_a_session_with_tools_is_understood(
    tmp_path: Path, chat_model: Any, family: Family, streams: bool
) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    understood = []
    async with serving(tmp_path, family) as agent:
        model = chat_model(
            model=MODEL,
            base_url=f"http://127.0.0.1:{agent.port}",
            client_kwargs={"headers": {"Authorization": f"Bearer {agent.token}"}},
            reasoning=True,
        )
        try:
            with_tools = model.bind_tools(_TOOLS)
            for _ in SESSION:
                message = await _asked(with_tools, messages, streams=streams)
                understood.append(_parsed(message))
                messages.append(message)
                messages += [
                    {"role": "tool", "content": RESULTS[call["name"]], "tool_call_id": call["id"]}
                    for call in message.tool_calls
                ]
        finally:
            # It has no way to close its clients.
            model._client._client.close()
            await model._async_client._client.aclose()
    assert understood == list(SESSION)
