"""A hub that a test plays, for this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from huggingface_hub import close_session, constants


class PlayedSearch:
    """The hub's response to searches, and the requests that it got."""

    def __init__(self, body: bytes, status: int = 200) -> None:
        self.body = body
        self.status = status
        self.paths: list[str] = []
        self.tokens: list[str] = []


@contextmanager
def searching(hub: PlayedSearch, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Searches of this process go to the played hub."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.paths.append(self.path)
            hub.tokens.append(self.headers.get("authorization", ""))
            self.send_response(hub.status)
            self.send_header("content-length", str(len(hub.body)))
            self.end_headers()
            self.wfile.write(hub.body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    try:
        yield
    finally:
        close_session()
        server.shutdown()
        thread.join()
        server.server_close()
