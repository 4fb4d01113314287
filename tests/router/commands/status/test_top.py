"""`router top` in a terminal, against a router that comes and goes."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from router.commands.client import AdminClient, CommandFailed, RouterAccess
from router.commands.status import top
from tests.router.commands.status.test_status import Played, fleet, telling
from tests.terminal import Terminal

PROGRAM = """
from router.commands.client import AdminClient, RouterAccess
from router.commands.status import top
top.run(AdminClient(RouterAccess("http://127.0.0.1:PORT", key="k")), 0.2)
print("after", flush=True)
"""
IN, OUT = "\x1b[?1049h", "\x1b[?1049l"
"""Begin and end of the terminal's other screen."""


class PlayedRouter:
    """Responds with one status, while it runs."""

    def __init__(self) -> None:
        self.start()

    def start(self, port: int = 0) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(fleet().model_dump()).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def router() -> Iterator[PlayedRouter]:
    played = PlayedRouter()
    yield played
    played.stop()


def opened(port: int) -> Terminal:
    return Terminal(PROGRAM.replace("PORT", str(port)))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("key", ["q", "\x03"])
def test_a_key_ends_it_and_the_terminal_is_as_before(router: PlayedRouter, key: str) -> None:
    terminal = opened(router.port)
    try:
        terminal.read_to(IN)
        terminal.read_to("1 of 1 node reachable")
        assert not terminal.echoes()
        terminal.type(key)
        terminal.read_to(OUT)
        terminal.read_to("after")
        assert terminal.process.wait(10) == 0
        assert terminal.echoes()
    finally:
        terminal.close()


@pytest.mark.timeout(60)
def test_it_waits_for_a_router_that_goes_away(router: PlayedRouter) -> None:
    terminal = opened(router.port)
    try:
        terminal.read_to("q or Ctrl-C ends")
        router.stop()
        assert "No router responds" in terminal.read_to("Trying again")
        router.start(router.port)
        terminal.read_to("q or Ctrl-C ends")
        terminal.type("q")
        assert terminal.process.wait(10) == 0
    finally:
        terminal.close()


def test_a_pipe_gets_one_screen(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    top.run(played(telling(fleet())), 1.0)
    out = capsys.readouterr().out
    assert out.count("1 of 1 node reachable") == 1 and "\x1b" not in out


def test_a_router_that_was_never_there_is_an_error_at_once() -> None:
    with pytest.raises(CommandFailed, match="No router responds"):
        top.run(AdminClient(RouterAccess("http://127.0.0.1:9", key="k")), 1.0)
