"""A server with a certificate of its own that passes everything on to an agent, and reads along."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from serving.http.callers import Callers
from serving.http.door import ArrivedConnection, Door, Entry
from serving.tls.own_certificate import OwnCertificate, own_certificate
from serving.tls.pinning import untrusting_context
from tests.serving.http.connections import spell


@dataclass
class ManInTheMiddle:
    certificate: OwnCertificate
    agent_port: int
    answer: bytes | None = None
    """Sent in place of the agent's response."""
    port: int = 0
    read: bytearray = field(default_factory=bytearray)
    """All that was sent to the agent."""

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def pem(self) -> str:
        return ssl.DER_cert_to_PEM_cert(self.certificate.der)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection(
            "127.0.0.1", self.agent_port, ssl=untrusting_context()
        )
        back = asyncio.create_task(self._back(to_reader, writer))
        try:
            while data := await reader.read(65_536):
                self.read += data
                if self.answer is not None:
                    writer.write(self.answer)
                    continue
                to_writer.write(data)
        except OSError:
            pass
        finally:
            to_writer.transport.abort()
            writer.transport.abort()
            await asyncio.wait({back})

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
        except OSError:
            return


class _Connection(asyncio.StreamReaderProtocol, ArrivedConnection):
    """A connection that is read as a stream."""


@asynccontextmanager
async def man_in_the_middle(folder: Path, agent_port: int) -> AsyncIterator[ManInTheMiddle]:
    man = ManInTheMiddle(own_certificate(folder / "man.pem"), agent_port)
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await man.accept(reader, writer)

    def make() -> _Connection:
        return _Connection(asyncio.StreamReader(), accept)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        man.port = listener.getsockname()[1]
        door = Door(Entry(man.certificate.context, Callers(spell)), make)
        door.open([listener])
        try:
            yield man
        finally:
            door.close()
            await door.wait_closed()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
