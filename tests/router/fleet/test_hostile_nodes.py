"""A node that reports whatever it likes takes nothing from the others, nor from the router."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from node.protocol.chain.prefix import Chain
from node.protocol.messages import (
    Began,
    CacheStatus,
    CancelMarked,
    Event,
    PrefixDelta,
    PrefixGone,
    PrefixSnapshot,
    StatusEvent,
    Stored,
    encode_event,
)
from node.protocol.prefixes import pack_entries, pack_hashes
from router.fleet import watcher as watcher_module
from router.jobs import Jobs
from router.upstream.origins import RequestMarks
from tests.registry.rows import usage_rows
from tests.router.conftest import (
    FINISHED,
    WAIT_S,
    Request,
    RunningRouter,
    ScriptedNode,
    lease,
    model_status,
    node_status,
    running_router,
    silent,
    ticket,
)
from tests.router.fleet.test_prefix_index import CHAIN, entries

FULL = model_status(
    "m",
    context_tokens=4096,
    reason="none",
    progress=0.5,
    idle_s=1.0,
    keep_alive_s=60.0,
    load_s=2.0,
    capabilities=("completion",),
    tool_parser="hermes",
    cache=CacheStatus(1 << 30, 5, 1000, 1 << 30, 5),
)
ORIGIN = "ROUTER/key"
EVENTS: list[Event] = [
    StatusEvent(node_status(FULL, node_id="id-bad")),
    msgspec.structs.replace(FINISHED, origin=ORIGIN),
    Began("r", ORIGIN),
    Stored("resp_1", ORIGIN, 1, 2, 3),
    CancelMarked("r", 1.0),
    PrefixSnapshot("m", 1, 0, 0, 1, pack_entries(entries(CHAIN.hashes))),
    PrefixDelta("m", 1, 1, pack_entries(entries((9,))), pack_hashes((1,))),
    PrefixGone("m", 1),
]


def spelled(value: Any) -> Any:
    """Returns the value as JSON has it, with those fields too that an agent leaves out."""
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        fields = {name: spelled(getattr(value, name)) for name in value.__struct_fields__}
        return fields if tag is None else {"type": tag, **fields}
    if isinstance(value, tuple):
        return [spelled(each) for each in value]
    return msgspec.to_builtins(value)


SPELLED: list[dict[str, Any]] = [spelled(event) for event in EVENTS]
EXTREMES: list[Any] = [
    10**30, 2**53 + 1, 2**63, -1, 0, 1e308, 0.5, "", "x" * 10_000, "\x1b[2J", "\ud800", None, [],
]  # fmt: skip
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text(st.characters())
    | st.text(st.sampled_from("\x1b\0\r\n\u202e\ud800")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of each field within the value, and of each that contains others."""
    if at:
        yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from paths(inner, (*at, index))


PLACES = [(index, path) for index, event in enumerate(SPELLED) for path in paths(event)]


def changed(index: int, path: tuple[Any, ...], value: Any) -> bytes:
    """A line that has `value` in one place."""
    event = copy.deepcopy(SPELLED[index])
    inner: Any = event
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(event).encode()


@dataclass
class Hostile(ScriptedNode):
    """Sends lines that nobody has checked, and behind each a sound status."""

    lines: deque[bytes] = field(default_factory=deque)
    more: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = 0

    def sound(self) -> bytes:
        status = node_status(FULL, node_id="id-bad")
        return encode_event(StatusEvent(msgspec.structs.replace(status, version=str(self.sent))))

    async def _serve(self, request: Request) -> None:
        if not request.target.startswith("/fleet/events"):
            await request.answer(b"{}")
            return
        await request.begin_stream()
        while not request.gone.is_set():
            self.sent += bool(self.lines)
            line = self.lines.popleft() + b"\n" if self.lines else b""
            await request.chunk(line + self.sound() + b"\n")
            self.more.clear()
            while not self.lines and not request.gone.is_set():
                waits = [asyncio.ensure_future(e.wait()) for e in (self.more, request.gone)]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for wait in waits:
                    wait.cancel()


class World:
    """A router with a hostile node and a good one."""

    def __init__(self, router: RunningRouter, bad: Hostile) -> None:
        self.router = router
        self.bad = bad
        self.jobs = Jobs(router.core.registry, router.core.fleet, router.core.ledger, 100)
        self.changed = asyncio.Event()
        self.count = 0
        router.core.fleet.listen(self.changed.set)
        router.core.fleet.listen(self.decide)

    def decide(self) -> None:
        """Computes a request's cost on each node, as is done after each event of one."""
        core = self.router.core
        chain = Chain(CHAIN.hashes, CHAIN.sizes, CHAIN.items, 0)
        decision = core.dispatcher.traffic.explain(ticket(chain=chain))
        for terms in decision.nodes:
            assert math.isfinite(terms.total_s) and terms.total_s >= 0, terms
        core.metrics.text()

    async def say(self, line: bytes) -> None:
        """Has the hostile node send it; returns when the router is done with it."""
        number = str(self.bad.sent + 1)
        self.bad.lines.append(line)
        self.bad.more.set()
        async with asyncio.timeout(WAIT_S):
            while True:
                view = self.router.core.fleet.node("id-bad")
                if view and view.reachable and view.status and view.status.version == number:
                    return
                self.changed.clear()
                await self.changed.wait()

    async def account(self) -> None:
        """Another node's usage is written."""
        self.count += 1
        core, name = self.router.core, f"good-{self.count}"
        marks = given(self.router, name, "id-good")
        finished = msgspec.structs.replace(
            FINISHED,
            seq=self.count,
            request_id=name,
            origin=marks.origin,
            proof=marks.proof,
            finished_unix_s=2e9,
        )
        core.ledger.on_finished("id-good", "i1", finished)
        await self.jobs.write_usage()
        await self.jobs.write_residency()
        async with core.registry.read() as session:
            rows = await usage_rows(session)
        assert any(row.request_id == name and row.prompt_tokens == 20 for row in rows)

    async def get(self, path: str, key: str) -> bytes:
        caller = await self.router.send("GET", path, authorization=f"Bearer {key}")
        body = await caller.body()
        assert caller.status == 200, body
        caller.leave()
        return body

    async def look(self) -> None:
        """Everything that shows what nodes reported can be shown."""
        admin = self.router.core.settings.current.admin_key_file.read_text().strip()
        for path in ("/admin/nodes", "/admin/models", "/admin/usage"):
            json.loads(await self.get(path, admin))
        await self.get("/metrics", admin)
        json.loads(await self.get("/v1/models", self.router.key))


def given(router: RunningRouter, request_id: str, node_id: str) -> RequestMarks:
    """Returns the marks that the node was sent with a request of that id."""
    request = ticket(request_id, caller=router.caller())
    return router.core.ledger.origins.marks(request, lease(request_id, node_id))


@asynccontextmanager
async def running_world(folder: Path) -> AsyncIterator[World]:
    good = ScriptedNode(silent, (StatusEvent(node_status(FULL, node_id="id-good")),))
    bad = Hostile(silent)
    async with running_router(folder) as router:
        for name, node in (("good", good), ("bad", bad)):
            await node.start()
            await router.add(node, name)
        for event in SPELLED:
            if "origin" in event:
                event["origin"] = router.core.ledger.origins.of(router.caller())
            if "proof" in event:
                event["proof"] = given(router, "r", "id-bad").proof
        yield World(router, bad)
    await good.stop()
    await bad.stop()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was lost is contacted again at once."""
    monkeypatch.setattr(watcher_module, "FIRST_BACKOFF_S", 0.0)
    monkeypatch.setattr(watcher_module, "MAX_BACKOFF_S", 0.0)


async def test_an_extreme_value_in_any_field_is_nobody_else_s_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_world(tmp_path) as world:
        for index, path in PLACES:
            for value in EXTREMES:
                await world.say(changed(index, path, value))
            await world.account()
        await world.look()
    assert not faults(caplog)


def test_anything_in_any_field_is_nobody_else_s_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with asyncio.Runner() as runner:
        opened = running_world(tmp_path)
        world = runner.run(opened.__aenter__())

        @hypothesis.settings(max_examples=60, deadline=None)
        @hypothesis.given(
            st.lists(st.tuples(st.sampled_from(PLACES), ANYTHING), min_size=1, max_size=4)
        )
        def say(changes: list[tuple[tuple[int, tuple[Any, ...]], Any]]) -> None:
            for (index, path), value in changes:
                runner.run(world.say(changed(index, path, value)))
            runner.run(world.account())
            assert not faults(caplog)

        try:
            say()
        finally:
            runner.run(opened.__aexit__(None, None, None))


def faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
