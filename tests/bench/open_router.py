"""The router without keys, as the peers run: `python -m tests.bench.open_router`.

The router always asks for a key and the peers' bench sends none, so the first key is put into each
request here. Everything else is the router as `router serve` runs it.
"""

import argparse
import asyncio
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from registry import nodes
from registry.db import WriteSession
from registry.records import NodeRecord
from router.api.bodies import Scope
from router.app import AsgiApp, open_core
from router.commands.serve import Server, stopped_by_signals, tune_garbage_collector
from router.core import Core
from router.settings import Settings
from router.states import KIND_OPENAI
from router.upstream.credentials import NodeCredential
from router.upstream.node_client import NodeClient
from serving.http.exchange import Receive, Send
from serving.http.listening import listening
from serving.http.quiet_server import Stop

ROWS = 1024
"""Number of rows: as many as the fake backends accept requests at once; the peers send them all
they get."""


def with_key(app: AsgiApp, key: str) -> AsgiApp:
    header = (b"authorization", f"Bearer {key}".encode())

    async def keyed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["headers"].append(header)
        await app(scope, receive, send)

    return keyed


async def add_backend(core: Core, number: int, url: str) -> None:
    """A server as an admin adds it who knows what it takes, and accepts all its models."""
    async with NodeClient(url, NodeCredential(), KIND_OPENAI) as client:
        models = await client.control.foreign_models()
    record = NodeRecord(
        id=f"backend{number}",
        name=f"backend{number}",
        url=url,
        kind=KIND_OPENAI,
        credential=NodeCredential().text(),
        created_at_s=time.time(),
        max_rows=ROWS,
        accepted=tuple(models),
    )

    async def add(session: WriteSession) -> None:
        await nodes.add(session, record)

    await core.registry.write(add)
    await core.watcher.watch(record)


async def serve(
    settings: Settings, backends: Sequence[str], listeners: list[socket.socket], stop: Stop
) -> None:
    async with open_core(settings) as core:
        for number, url in enumerate(backends, 1):
            await add_backend(core, number, url)
        key = settings.first_key_file.read_text().strip()
        server = Server(core, stop)
        app: Any = server.config.app
        server.config.app = with_key(app, key)
        tune_garbage_collector()
        await server.serve(listeners)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--backends", required=True, help="URLs, separated by commas")
    given = parser.parse_args()
    stop = Stop()
    with (
        tempfile.TemporaryDirectory() as home,
        listening("127.0.0.1", given.port) as listeners,
        stopped_by_signals(stop),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        settings = Settings(home=Path(home), port=given.port)
        runner.run(serve(settings, given.backends.split(","), listeners, stop))


if __name__ == "__main__":
    main()
