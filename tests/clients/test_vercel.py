"""The AI SDK of Vercel (npm) against an agent, through all its providers that speak to one."""

from pathlib import Path
from typing import Any

import pytest

from tests.clients.node_packages import installed, run
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


@pytest.fixture(scope="module")
def program() -> Path:
    return installed(Path(__file__).parent / "vercel", "the AI SDK")


def _parsed(step: dict[str, Any]) -> Answer:
    assert step["finish"] == ("tool-calls" if step["calls"] else "stop")
    assert step["tokens"] > 0
    calls = tuple((name, arguments) for name, arguments in step["calls"])
    return Answer(step["reasoning"], step["text"], calls)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_every_provider_calls_tools_and_answers(
    tmp_path: Path, program: Path, family: Family
) -> None:
    async with serving(tmp_path, family) as agent:
        result = await run(
            program,
            {
                "baseURL": f"http://127.0.0.1:{agent.port}/v1",
                "apiKey": agent.token,
                "model": MODEL,
                "question": QUESTION,
                "maxTokens": 4000,
                "results": RESULTS,
                "tools": [
                    {"name": t.name, "description": t.description, "parameters": t.parameters}
                    for t in TOOLS
                ],
            },
        )
    sessions = {
        provider: {way: [_parsed(step) for step in steps] for way, steps in ways.items()}
        for provider, ways in result.items()
    }
    for ways in sessions.values():
        assert ways["collected"] == ways["streamed"]
    streamed = {provider: ways["streamed"] for provider, ways in sessions.items()}
    # OpenAI's own provider reads no reasoning of chat completions.
    assert streamed == {
        "openai-compatible": list(SESSION),
        "openai.chat": without_reasoning(SESSION),
        "openai.responses": list(SESSION),
        "anthropic": list(SESSION),
    }
