"""The `ollama` package (npm) against an agent."""

from pathlib import Path
from typing import Any

import pytest

from tests.clients.node_packages import installed, run
from tests.clients.scenario import (
    FAMILIES,
    FUNCTIONS,
    MODEL,
    QUESTION,
    RESULTS,
    SESSION,
    Answer,
    Family,
    serving,
)


@pytest.fixture(scope="module")
def program() -> Path:
    return installed(Path(__file__).parent / "ollama_js", "Ollama's client")


def _parsed(step: dict[str, Any]) -> Answer:
    assert step["done"] == "stop" and step["tokens"] > 0
    calls = tuple((name, arguments) for name, arguments in step["calls"])
    return Answer(step["reasoning"], step["text"], calls)


@pytest.mark.parametrize("family", FAMILIES[:2], ids=lambda family: family.name)
async def test_a_session_with_tools_is_understood(
    tmp_path: Path, program: Path, family: Family
) -> None:
    async with serving(tmp_path, family) as agent:
        result = await run(
            program,
            {
                "host": f"http://127.0.0.1:{agent.port}",
                "key": agent.token,
                "model": MODEL,
                "question": QUESTION,
                "results": RESULTS,
                "tools": FUNCTIONS,
            },
        )
    for way in ("collected", "streamed"):
        assert [_parsed(step) for step in result[way]] == list(SESSION)
    assert result["models"] == result["running"] == [f"{MODEL}:latest"]
    assert result["capabilities"] == ["completion", "tools", "thinking"]
    assert result["unknown"]["status"] == 404
    assert "no model 'nope'" in result["unknown"]["message"]
