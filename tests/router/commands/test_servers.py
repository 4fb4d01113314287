"""`router add-node --kind openai`, `accept` and `nodes`, against a real router and a server."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner

from router.cli.main import app
from router.commands import nodes
from router.commands.client import RouterAccess
from tests.router.commands.node_rows import node_row
from tests.router.commands.test_listings import Played, answering


class Listing(ThreadingHTTPServer):
    """A server that lists models."""

    models: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Any = self.server
        body = json.dumps({"data": [{"id": model} for model in server.models]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing on the terminal of the user who runs the test."""


@pytest.fixture
def server() -> Iterator[Listing]:
    with Listing(("127.0.0.1", 0), _Handler) as made:
        made.models = ["a", "b c"]
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def run(place: RouterAccess, *arguments: str) -> str:
    environ: dict[str, str | None] = {
        "MLX_FLEET_ROUTER_URL": place.url,
        "MLX_FLEET_ROUTER_HOME": str(place.home),
    }
    done = CliRunner().invoke(app, arguments, env=environ)
    assert done.exit_code == 0, done.output
    return " ".join(done.stdout.split())


def test_a_server_is_added_with_what_it_lists_and_the_rest_waits(
    router_place: RouterAccess, server: Listing
) -> None:
    printed = run(
        router_place, "add-node", server.url, "--kind", "openai", "--name", "lm", "--model", "a"
    )
    assert "Models: a" in printed
    assert "Models that it lists later have to be accepted" in printed
    assert "`router accept lm 'b c'` accepts them" in run(router_place, "nodes")
    assert run(router_place, "accept", "lm", "b c") == "Requests for b c may go to lm."
    assert "router accept" not in run(router_place, "nodes")


def test_models_that_other_nodes_have_too_are_printed(
    router_place: RouterAccess, server: Listing
) -> None:
    run(router_place, "add-node", server.url, "--kind", "openai", "--name", "lm")
    other = server.url.replace("127.0.0.1", "localhost")
    printed = run(
        router_place, "add-node", other, "--kind", "openai", "--name", "two", "--model", "a"
    )
    assert "Other nodes have a, too: requests go to the best node." in printed


def test_many_models_that_wait_are_one_command_and_a_number(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = tuple(f"m{index}" for index in range(25))
    nodes.show(played(answering([node_row("lm", unaccepted=waiting)])), as_json=False)
    text = " ".join(capsys.readouterr().out.split())
    assert "`router accept lm m0 m1 " in text and "m19` accepts them (5 more of them)." in text


def test_a_key_may_be_kept_from_servers(router_place: RouterAccess) -> None:
    run(router_place, "keys", "create", "out")
    run(router_place, "keys", "create", "in", "--scope", "inference")
    rows = {
        row["name"]: row["scopes"]
        for row in json.loads(run(router_place, "keys", "list", "--json"))
    }
    assert rows == {
        "admin": ["admin", "inference", "metrics", "external"],
        "first": ["inference", "external"],
        "out": ["inference", "external"],
        "in": ["inference"],
    }
