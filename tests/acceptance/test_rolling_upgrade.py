"""Restarts of agents and of the router under load, as in an upgrade, with real processes."""

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.acceptance.paired_fleet import CLIENTS, PairedFleet, load, machines
from tests.acceptance.processes import run_cli

SCRIPT = {"token_interval_s": 0.01, "max_rows": 8}
ORDER = (
    "import socket, sys\n"
    "order = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
    "order.sendall(sys.argv[2].encode())\n"
    "order.shutdown(socket.SHUT_WR)\n"
    "sys.exit(order.recv(9) != b'done')\n"
)
"""Stands in for ssh: has the test restart an agent, and waits for it."""


@contextmanager
def restarts(fleet: PairedFleet) -> Iterator[tuple[str, ...]]:
    """Yields a command that restarts the agent of a node."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                connection, _ = server.accept()
                with connection:
                    name = connection.makefile("rb").read().decode()
                    if not name:
                        return
                    fleet.agents[name].restart()
                    connection.sendall(b"done")

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        try:
            yield (sys.executable, "-c", ORDER, str(port), "{node}")
        finally:
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join(60)


def test_agents_restart_one_after_another_under_load_and_no_request_is_lost(tmp_path: Path) -> None:
    with machines(tmp_path, ("mini", "studio"), SCRIPT) as fleet:
        for name in fleet.agents:
            fleet.pair(name)
        front = fleet.front
        before = {name: each.running.pid for name, each in fleet.agents.items()}
        with restarts(fleet) as command, load(front) as clients:
            options = ("upgrade-nodes", "--router", front.url, "--")
            done = run_cli("router", front.running.home, *options, *command)
            assert done.returncode == 0, done.stdout + done.stderr
            clients.wait_for(CLIENTS)
        # Each of them served alone while the other was away.
        assert set(clients.nodes) == set(fleet.agents)
        for name, each in fleet.agents.items():
            assert f"{name} is back with mlx-fleet" in done.stdout
            assert each.running.pid != before[name]


def test_a_router_that_restarts_under_load_serves_every_client_that_retries(tmp_path: Path) -> None:
    with machines(tmp_path, ("mini",), SCRIPT) as fleet:
        fleet.pair("mini")
        with load(fleet.front, retries=True) as clients:
            fleet.router.restart()
            clients.wait_for(8)
