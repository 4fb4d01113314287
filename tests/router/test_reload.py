"""Each setting that a running router can change, with requests in flight."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry import audit
from router.app import open_core
from router.errors import StartError
from router.fleet.stall_watchdog import StallLimits
from router.settings import Settings
from serving.awake import Awake
from serving.logs.logs import LOGGERS
from serving.stay_awake import StayAwake
from tests.router.api.conftest import World, connected, message
from tests.router.conftest import WAIT_S, AddNode, Request, RunningRouter
from tests.router.dispatch.test_relay import DONE, HELLO, STREAM, request_counts, stream


def change(router: RunningRouter, **fields: Any) -> None:
    live = router.core.settings
    live.change_to(replace(live.current, **fields))


async def silent(request: Request) -> None:
    await request.wait_gone()


async def sent(node: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while request_counts(node) != [1]:
            await asyncio.sleep(0)


async def test_a_shorter_stall_takes_an_open_request_from_its_node(
    router: RunningRouter, add_node: AddNode
) -> None:
    node = await add_node(router, "a", silent)
    caller = await router.post(STREAM)
    await sent(node)
    other = await add_node(router, "b", stream)
    change(router, stall_s=0.3, first_token_timeout_s=0.3)
    assert (await caller.body()).endswith(HELLO + DONE)
    assert request_counts(node, other) == [1, 1]


async def test_a_shorter_keepalive_is_that_of_the_next_request(
    router: RunningRouter, add_node: AddNode
) -> None:
    await add_node(router, "a", silent)
    change(router, stream_keepalive_s=0.05)
    caller = await router.post(STREAM)
    assert await caller.head() == 200
    assert (await caller.chunk()).startswith(b":")
    caller.leave()
    await router.idle()


async def test_requests_are_logged_from_the_change_on(
    router: RunningRouter,
    add_node: AddNode,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, "mlx_fleet.requests")
    monkeypatch.setattr(logging.getLogger("mlx_fleet.requests"), "propagate", True)
    await add_node(router, "a", stream)
    await (await router.post(STREAM)).body()
    router.core.ledger.close_all()
    assert caplog.messages == []
    change(router, log_requests=True)
    await (await router.post(STREAM)).body()
    router.core.ledger.close_all()
    assert len(caplog.messages) == 1


async def test_the_level_of_the_log_changes(router: RunningRouter) -> None:
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [each.level for each in loggers]
    try:
        change(router, log_level="error")
        assert {each.level for each in loggers} == {logging.ERROR}
    finally:
        for each, level in zip(loggers, before, strict=True):
            each.setLevel(level)


async def test_limits_reach_those_who_hold_them(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their use of them is tested beside them."""
    modes: list[StayAwake] = []
    monkeypatch.setattr(Awake, "set_mode", lambda _awake, mode: modes.append(mode))
    given = {"queue_limit": 5, "promote_after_s": 7.0, "load_timeout_s": 9.0}
    change(router, stay_awake=StayAwake.NEVER, **given)
    assert router.core.stalls._limits == StallLimits(150.0, 9.0, 900.0)
    assert modes == [StayAwake.NEVER]
    limits = router.core.dispatcher._driver._scheduler._admission._queue.limits
    assert (limits.max_waiting, limits.promote_after_s) == (5, 7.0)


# --- the admin API ---


async def test_a_reload_tells_what_it_changed_and_what_needs_a_restart(tmp_path: Path) -> None:
    settings = Settings(tmp_path)
    async with open_core(settings, reread=lambda: Settings(tmp_path, port=9, stall_s=60.0)) as core:
        world = World(core.registry, settings.admin_key_file.read_text().strip(), core.keys)
        core_of(world, core)
        async with connected(world, world.admin_key) as api:
            told = (await api.post("/reload", json={})).json()
            again = (await api.post("/reload", json={})).json()
        assert told == {
            "applied": [{"option": "--stall", "before": "150s", "after": "1m"}],
            "needs_restart": [{"option": "--port", "before": "8800", "after": "9"}],
        }
        assert (again["applied"], again["needs_restart"]) == ([], told["needs_restart"])
        assert (core.settings.current.stall_s, core.settings.current.port) == (60.0, 8800)
        async with core.registry.read() as session:
            (entry,) = await audit.recent(session, 1)
        assert (entry.actor, entry.verb, entry.detail) == ("admin", "settings.reload", "--stall")


async def test_a_reload_of_what_is_wrong_changes_nothing(tmp_path: Path) -> None:
    def read() -> Settings:
        raise StartError("config.toml:3: port is none.")

    settings = Settings(tmp_path)
    async with open_core(settings, reread=read) as core:
        world = World(core.registry, settings.admin_key_file.read_text().strip(), core.keys)
        core_of(world, core)
        async with connected(world, world.admin_key) as api:
            refused = await api.post("/reload", json={})
        assert message(refused, 400) == "config.toml:3: port is none."
        assert core.settings.current == settings


def core_of(world: World, core: Any) -> None:
    vars(world)["core"] = lambda _home: core
