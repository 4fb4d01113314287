"""Routers by name in front of the same agents: ours and the peers, which the shared run_router.sh
starts. The agents have one token, which the peers pass on from the caller."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.bench import processes
from tests.bench.fleet_agents import Agent
from tests.bench.machine import Cores
from tests.bench.peer_home import PeerHome
from tests.bench.shared import CACHE, SharedTools

OURS = "ours"
PEERS = ("sglang_router", "vllm_router")


@dataclass(frozen=True, slots=True)
class Front:
    """Where callers go."""

    url: str
    key: str


@contextmanager
def router(
    name: str, tools: SharedTools, home: PeerHome, agents: Sequence[Agent]
) -> Iterator[Front]:
    """The router, ready to send requests to all agents. Raises `BenchFailure`."""
    with ours(agents) if name == OURS else peer(name, tools, home, agents) as front:
        yield front


@contextmanager
def ours(agents: Sequence[Agent]) -> Iterator[Front]:
    """`router serve` in a home of its own, the agents added as a person adds them."""
    with tempfile.TemporaryDirectory(prefix="bench-router-") as home:
        port = processes.free_port()
        url = f"http://127.0.0.1:{port}"
        log = CACHE / "logs" / "fleet-router.log"
        argv = [*processes.command("router"), "serve", "--port", str(port)]
        with processes.running(argv, Cores(), log, {"MLX_FLEET_HOME": home}) as process:
            processes.wait_until(processes.answers(url + "/health"), process, log)
            key, admin_key = (
                (Path(home) / "router" / file).read_text().strip()
                for file in ("first.key", "admin.key")
            )
            for agent in agents:
                node = {"url": agent.url, "name": agent.name, "token": agent.token}
                processes.fetch(url + "/admin/nodes", admin_key, node)
            processes.wait_until(lambda: _all_reachable(url, admin_key, len(agents)), process, log)
            yield Front(url, key)


def _all_reachable(url: str, admin_key: str, count: int) -> bool:
    nodes: list[dict[str, Any]] = processes.fetch(url + "/admin/nodes", admin_key)
    return sum(bool(node["reachable"]) for node in nodes) == count


@contextmanager
def peer(name: str, tools: SharedTools, home: PeerHome, agents: Sequence[Agent]) -> Iterator[Front]:
    """With its cache-aware policy and otherwise its own defaults."""
    home.check(name)
    port = processes.free_port()
    url = f"http://127.0.0.1:{port}"
    log = CACHE / "logs" / f"fleet-{name}.log"
    ports = [str(urlsplit(agent.url).port) for agent in agents]
    argv = ["bash", str(tools.script("run_router.sh")), name, str(port), *ports]
    environ = {**home.environ(), "POLICY": "cache_aware"}
    token = agents[0].token
    with processes.running(argv, Cores(), log, environ) as process:
        processes.wait_until(lambda: _answers_chat(url, agents[0]), process, log)
        yield Front(url, token)


def _answers_chat(url: str, agent: Agent) -> bool:
    """Returns True if a request gets through to a worker."""
    messages = [{"role": "user", "content": "0"}]
    body = {"model": agent.model, "messages": messages, "max_tokens": 1}
    try:
        processes.fetch(url + "/v1/chat/completions", agent.token, body)
    except (OSError, ValueError):
        return False
    return True
