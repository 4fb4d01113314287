"""Tests the limits of connections, by caller, and which of them are closed."""

from __future__ import annotations

import asyncio
import json

import pytest

from serving.http.callers import AbortableConnection, Callers, Limits
from serving.http.exchange import Message, Receive, Send, mark_authenticated
from serving.http.refusals import Refusal
from tests.serving.http.connections import GET, WAIT_S, echo, serving

FEW = Limits(connections=8, descriptor=100, unknown=4, unknown_of_one_address=2)


class Held(AbortableConnection):
    def __init__(self) -> None:
        self.cut_off = False

    def abort(self) -> None:
        self.cut_off = True


class World:
    """Connections that arrive, by their addresses."""

    def __init__(self, limits: Limits = FEW) -> None:
        self.now_s = 0.0
        self.callers = Callers(spell, limits, clock=lambda: self.now_s)

    def come(self, *addresses: str) -> list[Held]:
        """Opens a connection from each address; returns those that are admitted."""
        made = [Held() for _ in addresses]
        return [
            each
            for each, address in zip(made, addresses, strict=True)
            if self.callers.admit(each, address, open_connections=1, descriptor=10)
        ]


def spell(_refusal: Refusal, _path: str) -> bytes:
    return b"{}"


def cut_off(connections: list[Held]) -> list[bool]:
    return [each.cut_off for each in connections]


def test_of_one_address_without_a_key_the_oldest_goes_for_the_newest() -> None:
    world = World()
    assert cut_off(world.come("a", "b", "a", "a", "a")) == [True, False, True, False, False]
    assert world.callers.cut_off == 2


def test_of_many_addresses_without_a_key_the_oldest_of_all_goes() -> None:
    assert cut_off(World().come("a", "b", "c", "d", "e")) == [True, False, False, False, False]


def test_authenticated_and_closed_connections_do_not_count_to_the_limits() -> None:
    world = World()
    known, ended = world.come("a", "a")
    world.callers.forget(known)
    world.callers.forget(ended)
    world.callers.forget(ended)
    assert cut_off([known, ended, *world.come("a", "a")]) == [False] * 4


@pytest.mark.parametrize(("open_connections", "descriptor"), [(9, 10), (1, 101)])
def test_without_files_for_one_more_it_is_refused(open_connections: int, descriptor: int) -> None:
    callers = World().callers
    assert callers.admit(Held(), "a", open_connections=8, descriptor=100)
    assert not callers.admit(Held(), "a", open_connections, descriptor)
    assert callers.refused == 1


def test_what_happens_a_thousand_times_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    for _ in range(1000):
        world.callers.admit(Held(), "a", open_connections=9, descriptor=10)
        world.come("a")
    assert [line.split(":")[0] for line in caplog.messages] == [
        "9 connections are open, and this process may have no more files (`ulimit -n`)",
        "a has 2 connections without a valid key",
    ]
    world.now_s = 61
    world.come("a")
    assert len(caplog.messages) == 3
    assert world.callers.refused == 1000


@pytest.mark.parametrize(
    ("open_files", "files_each", "limits"),
    [
        (10_240, 1, Limits(8960, 9600, 2048, 1024)),
        (10_240, 2, Limits(4480, 9600, 2048, 1024)),
        (256, 1, Limits(192, 224, 96, 48)),
        (256, 2, Limits(96, 224, 48, 24)),
        (1, 2, Limits(1, -31, 1, 1)),
    ],
)
def test_the_limits_leave_files_for_what_is_no_caller(
    open_files: int, files_each: int, limits: Limits
) -> None:
    assert Limits.within(open_files, files_each) == limits


async def test_a_caller_that_is_one_too_many_is_rejected_as_such() -> None:
    async with serving(echo, limits=Limits(connections=1)) as server:
        first = await server.call()
        first.send(GET)
        await first.until(b"/x? ")
        second = await server.call()
        head, _, body = (await second.rest()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"retry-after: 5" in head
        assert json.loads(body)["code"] == "too_many_connections"
        first.send(GET)
        assert await first.until(b"/x? ")


async def test_half_open_heads_of_one_address_make_room_for_a_new_caller() -> None:
    limits = Limits(unknown_of_one_address=3)
    async with serving(echo, limits=limits) as server:
        silent = [await server.call() for _ in range(3)]
        for each in silent:
            each.send(b"GET /x HT")
        caller = await server.call()
        caller.send(GET)
        assert (await caller.until(b"/x? ")).startswith(b"HTTP/1.1 200 OK")
        assert await silent[0].rest() == b""
        assert server.rules.cut_off == 1


async def test_connections_of_callers_with_a_key_are_not_counted() -> None:
    async def checked(scope: Message, receive: Receive, send: Send) -> None:
        mark_authenticated(scope)
        await echo(scope, receive, send)

    async with serving(checked, limits=Limits(unknown_of_one_address=1)) as server:
        callers = []
        for _ in range(3):
            callers.append(await server.call())
            callers[-1].send(GET)
            await callers[-1].until(b"/x? ")
        for caller in callers:
            caller.send(GET)
            assert await caller.until(b"/x? ")


async def test_a_connection_that_ends_gives_its_place_back() -> None:
    async with serving(echo, limits=Limits(unknown_of_one_address=1)) as server:
        for _ in range(3):
            caller = await server.call()
            caller.send(GET)
            await caller.until(b"/x? ")
            caller.writer.close()
            async with asyncio.timeout(WAIT_S):
                while server.state.connections:
                    await asyncio.sleep(0)
        assert server.rules.cut_off == 0
