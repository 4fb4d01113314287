"""A real router in a thread of the test."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from router.commands import serve
from router.commands.client import RouterAccess
from router.settings import Settings
from serving.http.listening import listening, url_of
from serving.http.quiet_server import Stop

TIMEOUT_S = 20.0


@contextmanager
def running_router(of: Path | Settings) -> Iterator[RouterAccess]:
    """A router on an ephemeral port with these settings, or its registry and keys in a folder."""
    settings = Settings(home=of, port=0) if isinstance(of, Path) else of
    stop = Stop()
    ended: queue.Queue[BaseException | None] = queue.Queue()
    with listening(settings.host, settings.port) as listeners:
        url = url_of("127.0.0.1", listeners)

        def run() -> None:
            try:
                asyncio.run(serve.serve(settings, listeners, stop))
                ended.put(None)
            except BaseException as error:
                ended.put(error)
                raise

        thread = threading.Thread(target=run)
        thread.start()
        try:
            # The socket listens already: the request waits in its backlog for the router.
            httpx.get(f"{url}/health", timeout=TIMEOUT_S).raise_for_status()
            yield RouterAccess(url, settings.home)
        finally:
            stop.set()
            thread.join(TIMEOUT_S)
    assert ended.get(timeout=TIMEOUT_S) is None
