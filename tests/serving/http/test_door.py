"""Which connections a server with a certificate accepts, and what strangers can hold open."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
from uvicorn.server import ServerState

from serving.http.callers import Callers, Limits
from serving.http.client_connection import ClientConnection
from serving.http.door import Door, DoorTimeouts, Entry
from serving.own_machine import is_loopback
from serving.tls.own_certificate import OwnCertificate, own_certificate
from serving.tls.pinning import pinned_context
from tests.serving.http.connections import GET, WAIT_S, Caller, echo, spell

HELLO = b"\x16\x03\x01"
"""The first bytes of a handshake."""


def nobody(_address: str) -> bool:
    return False


class Entrance:
    """A server behind a door, and its clients."""

    def __init__(self, certificate: OwnCertificate, port: int, state: ServerState) -> None:
        self.port = port
        self.state = state
        self.pin = pinned_context(ssl.DER_cert_to_PEM_cert(certificate.der))
        self.clients: list[Caller] = []

    async def call(self, *, tls: bool) -> Caller:
        context = self.pin if tls else None
        made = Caller(*await asyncio.open_connection("127.0.0.1", self.port, ssl=context))
        self.clients.append(made)
        return made


@asynccontextmanager
async def entrance(
    folder: Path,
    limits: Limits | None = None,
    timeouts: DoorTimeouts | None = None,
    is_near: Callable[[str], bool] = is_loopback,
) -> AsyncIterator[tuple[Entrance, Door]]:
    certificate = own_certificate(folder / "tls.pem")
    config = uvicorn.Config(echo, ws="none", lifespan="off", log_config=None)
    state, callers = ServerState(), Callers(spell, limits)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        door = Door(
            Entry(certificate.context, callers, "Ask.", timeouts or DoorTimeouts(), is_near),
            lambda: ClientConnection(config, state, {}, callers=callers),
        )
        door.open([listener])
        found = Entrance(certificate, listener.getsockname()[1], state)
        try:
            yield found, door
        finally:
            for client in found.clients:
                client.writer.transport.abort()
            door.close()
            await door.wait_closed()
            if state.tasks:
                await asyncio.wait(state.tasks, timeout=WAIT_S)


async def test_one_port_speaks_tls_and_for_its_own_machine_plain_http(tmp_path: Path) -> None:
    async with entrance(tmp_path) as (server, _):
        for tls in (False, True):
            client = await server.call(tls=tls)
            client.send(GET)
            assert (await client.until(b"/x? ")).startswith(b"HTTP/1.1 200 OK")


async def test_plain_http_of_another_machine_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async with entrance(tmp_path, is_near=nobody) as (server, _):
        client = await server.call(tls=False)
        client.send(GET)
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request")
        error = json.loads(body)["error"]
        assert error["code"] == "tls_required"
        assert error["message"].endswith("others use https. Ask.")
        assert not server.state.connections
        other = await server.call(tls=True)
        other.send(GET)
        assert await other.until(b"/x? ")


@pytest.mark.parametrize("sent", [b"", HELLO])
async def test_the_oldest_that_say_nothing_make_room_for_others(
    tmp_path: Path, sent: bytes
) -> None:
    limits = Limits(unknown=3, unknown_of_one_address=2)
    async with entrance(tmp_path, limits) as (server, _):
        first, second = await server.call(tls=False), await server.call(tls=False)
        for each in (first, second):
            each.send(sent)
        client = await server.call(tls=True)
        client.send(GET)
        assert await client.until(b"/x? ")
        assert await first.rest() == b""


async def test_a_handshake_has_a_time_limit(tmp_path: Path) -> None:
    timeouts = DoorTimeouts(handshake_s=0.05)
    async with entrance(tmp_path, timeouts=timeouts) as (server, _):
        client = await server.call(tls=False)
        client.send(HELLO)
        assert await client.rest() == b""


async def test_silence_has_a_time_limit(tmp_path: Path) -> None:
    async with entrance(tmp_path, timeouts=DoorTimeouts(first_byte_s=0.05)) as (server, _):
        assert await (await server.call(tls=False)).rest() == b""


async def test_what_is_neither_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with entrance(tmp_path, is_near=nobody) as (server, _):
        client = await server.call(tls=False)
        client.send(HELLO + bytes(300))
        await client.rest()
        assert not server.state.connections
    assert not caplog.messages


async def test_a_door_that_is_closed_drops_those_that_wait_and_keeps_the_others(
    tmp_path: Path,
) -> None:
    async with entrance(tmp_path) as (server, door):
        silent, talking = await server.call(tls=False), await server.call(tls=True)
        talking.send(GET)
        await talking.until(b"/x? ")
        halfway = await server.call(tls=False)
        halfway.send(HELLO)
        async with asyncio.timeout(WAIT_S):
            while len(door._arrivals) < 2:
                await asyncio.sleep(0)
        door.close()
        await door.wait_closed()
        for each in (silent, halfway):
            # What they had sent and nobody read makes it a reset.
            with contextlib.suppress(ConnectionResetError):
                assert await each.rest() == b""
        talking.send(GET)
        assert await talking.until(b"/x? ")


async def test_without_room_for_one_more_it_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("serving.http.door._PAUSE_S", 0.01)
    accept, failures = socket.socket.accept, [errno.EMFILE, errno.ENFILE]

    def crowded(listener: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise OSError(failures.pop(), "no room")
        return accept(listener)

    async with entrance(tmp_path) as (server, _):
        monkeypatch.setattr(socket.socket, "accept", crowded)
        client = await server.call(tls=True)
        client.send(GET)
        assert await client.until(b"/x? ")
    assert caplog.messages == ["No connection can be accepted (no room); trying again."]
