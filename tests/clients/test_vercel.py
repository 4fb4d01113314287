"""The AI SDK of Vercel (npm) against an agent, through all its providers that speak to one."""

import asyncio
import json
import re
import shutil
import subprocess
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

_SOURCE = Path(__file__).parent / "vercel"
_CACHE = Path(__file__).parents[2] / ".cache" / "clients" / "vercel"
_PACKAGES = ("package.json", "package-lock.json")
_LEAST_NODE = 20
_INSTALL_TIMEOUT_S = 90.0
_RUN_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def program() -> Path:
    """The program that runs the sessions, beside its packages, which are installed once."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("Node.js is not installed; the AI SDK needs it.")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"v(\d+)\.", version)
    if found is None or int(found[1]) < _LEAST_NODE:
        pytest.skip(f"Node.js {version.strip()} is too old; the AI SDK needs {_LEAST_NODE}.")
    if not _is_installed():
        _install(npm)
    shutil.copy(_SOURCE / "loop.mjs", _CACHE)
    return _CACHE / "loop.mjs"


def _is_installed() -> bool:
    """The lock is copied last, so it is there only beside all that it names."""
    lock = _CACHE / "package-lock.json"
    return lock.is_file() and lock.read_bytes() == (_SOURCE / "package-lock.json").read_bytes()


def _install(npm: str) -> None:
    staging = _CACHE.with_name("vercel-new")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for name in _PACKAGES:
        shutil.copy(_SOURCE / name, staging)
    done = subprocess.run(
        [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
        cwd=staging,
        capture_output=True,
        text=True,
        timeout=_INSTALL_TIMEOUT_S,
    )
    if done.returncode != 0:
        pytest.skip(f"npm could not install the AI SDK: {done.stderr.strip()[-300:]}")
    shutil.rmtree(_CACHE, ignore_errors=True)
    staging.rename(_CACHE)


async def _run(program: Path, request: dict[str, Any]) -> Any:
    process = await asyncio.create_subprocess_exec(
        "node",
        str(program),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_RUN_TIMEOUT_S):
            output, errors = await process.communicate(json.dumps(request).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return json.loads(output)


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
        result = await _run(
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
