"""A request crosses few files and few coroutines from its ASGI call to its first byte."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import CodeType, CoroutineType, FrameType
from typing import Any

import pytest

import router.app
from router.api.v1 import V1
from router.upstream import http_client
from serving.http.exchange import Exchange
from tests.compiled import is_compiled
from tests.router.conftest import AddNode, Request, RunningRouter

if is_compiled("router.scheduler.scheduler"):
    pytest.skip("compiled functions are not traced", allow_module_level=True)

ROOT = Path(router.app.__file__).parents[1]
PAGE = ROOT / "docs/architecture.md"
BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
MOST_FILES = 20
ENTRIES: set[CodeType] = {
    V1.__call__.__code__,
    http_client._Connection.data_received.__code__,
}
"""Outermost functions of the router that work on a request: its task, and data from its node."""
DECIDES = "router/scheduler/"


class Trace:
    """Collects the router's files whose functions run for a request until its first byte."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._is_over = False

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or self._is_over:
            return
        code = frame.f_code
        self._is_over = code is Exchange.write.__code__
        if code.co_filename.startswith(f"{ROOT}/router/") and _is_for_request(frame):
            self.files.add(code.co_filename.removeprefix(f"{ROOT}/"))


def _is_for_request(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in ENTRIES:
            return True
        frame = frame.f_back
    return False


def _coroutines(awaited: Any) -> list[str]:
    """Names the coroutines of a task that wait for each other, the outermost first."""
    names = []
    while isinstance(awaited, CoroutineType):
        names.append(awaited.__qualname__)
        awaited = awaited.cr_await
    return names


def _section() -> str:
    return PAGE.read_text().split("## The hot path")[1].split("\n## ")[0]


def _listed(row: str) -> set[str]:
    """Reads the files of all rows of that name in the table; names in braces share their folder."""
    lines = [line for line in _section().splitlines() if line.startswith(f"| {row} ")]
    files = set()
    for folder, names in re.findall(r"`([a-z_/]+/)(?:\{([^}]+)\}|[^`]*)`", "\n".join(lines)):
        files |= {f"{folder}{name.strip()}.py" for name in names.split(",") if name}
    return files


@pytest.fixture
async def traced(router: RunningRouter, add_agent: AddNode) -> tuple[set[str], list[str]]:
    """Files and coroutines of the second request to a node."""
    waiting: list[str] = []

    async def script(request: Request) -> None:
        (task,) = router.state.tasks
        waiting[:] = _coroutines(task.get_coro())
        await request.begin_stream()
        await request.chunk(EVENT + b"data: [DONE]\n\n")
        await request.end_stream()

    await add_agent(router, "a", script)
    await (await router.post(BODY)).body()
    await router.idle()
    caller = await router.post(BODY)
    trace = Trace()
    sys.setprofile(trace)
    try:
        assert EVENT in await caller.body()
    finally:
        sys.setprofile(None)
    await router.idle()
    return trace.files, waiting


async def test_a_request_crosses_the_files_that_the_page_lists(
    traced: tuple[set[str], list[str]],
) -> None:
    files, _ = traced
    path, state = _listed("path"), _listed("state and records")
    assert len(path) <= MOST_FILES
    assert {each for each in files if not each.startswith(DECIDES)} == path | state


async def test_a_request_waits_in_the_coroutines_that_the_page_lists(
    traced: tuple[set[str], list[str]],
) -> None:
    _, waiting = traced
    # Around them is the server's own, of the connection.
    assert waiting.index("V1.__call__") == 1
    inside = waiting[1:]
    listed = re.findall(r"`([A-Za-z0-9]+\.[a-z_]+)`", _section().split("coroutines")[1])
    assert inside == listed
    assert len(inside) <= 7
