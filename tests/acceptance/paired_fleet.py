"""A router and agents that are paired by code over TLS, each a process that a test can restart."""

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from node.protocol.pairing import PATH_NEW_CODE
from tests.acceptance.processes import Agent, Router, Running, add_node, listening
from tests.fakes import NO_TLS

AGENT = ("node.cli", "serve", "--engine", "scripted", "--no-spare-engine")
CLIENTS = 4
TIMEOUT_S = 60.0


class Machine:
    """One machine with an agent, or the router. A restart uses the same home and port."""

    def __init__(self, home: Path, *command: str) -> None:
        self.home = home
        self._command = command
        self._start("0")

    def _start(self, port: str) -> None:
        self.running = Running([*self._command, "--port", port], self.home)

    @property
    def url(self) -> str:
        if not hasattr(self, "_url"):
            self._url = listening(self.running)
        return self._url

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def tls_url(self) -> str:
        """The address at which routers are paired with the agent."""
        return f"https://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Ends the process as Ctrl-C does."""
        port = self.port
        assert self.running.stop() == 0, self.running.lines
        self._next_port = str(port)

    def start(self) -> None:
        """Starts it again after `stop`; returns once it listens."""
        self._start(self._next_port)
        listening(self.running)

    def restart(self) -> None:
        self.stop()
        self.start()

    def new_code(self) -> str:
        """A code, as `node-agent pair` makes it on this machine."""
        token = (self.home / "node" / "token").read_text().strip()
        agent = Agent(self.running, self.url, token)
        code: str = agent.post(PATH_NEW_CODE)["code"]
        return code


@dataclass
class PairedFleet:
    """A router with its paired agents."""

    router: Machine
    agents: dict[str, Machine]

    @property
    def front(self) -> Router:
        """The router as it is now, with its first key."""
        key = (self.router.home / "router" / "first.key").read_text().strip()
        return Router(self.router.running, self.router.url, key)

    def pair(self, name: str) -> None:
        agent = self.agents[name]
        body = {"url": agent.tls_url, "name": name, "code": agent.new_code()}
        add_node(self.front, body)


def _end(machine: Machine) -> None:
    machine.running.stop()


@contextmanager
def machines(folder: Path, names: Sequence[str], script: object) -> Iterator[PairedFleet]:
    """A router, and agents that it does not know yet. They start at the same time."""
    file = folder / "script.json"
    file.write_text(json.dumps(script))
    with ExitStack() as stack:
        serve = ("router", "serve", "--no-discovery")
        fleet = PairedFleet(Machine(folder / "router", *serve), {})
        stack.callback(_end, fleet.router)
        for name in names:
            each = Machine(folder / name, *AGENT, "--script", str(file))
            fleet.agents[name] = each
            stack.callback(_end, each)
        for each in (fleet.router, *fleet.agents.values()):
            assert each.url
        yield fleet


# --- load ---


class _NotTaken(Exception):
    """A request that the router did not take: clients' libraries repeat it by themselves."""


@dataclass
class Load:
    """Clients that send one request after the other, and what each of them got."""

    url: str
    key: str
    retries: bool = False
    """A client whose request was not taken sends it again; otherwise it is lost."""
    nodes: list[str] = field(default_factory=list)
    """The node of each complete response."""
    lost: list[str] = field(default_factory=list)
    """The description of each request that did not get a complete response."""
    repeated: int = 0
    _grown: threading.Condition = field(default_factory=threading.Condition)
    _ended: threading.Event = field(default_factory=threading.Event)

    def wait_for(self, count: int) -> None:
        """Waits until so many more requests were served from now on."""
        with self._grown:
            goal = len(self.nodes) + count
            assert self._grown.wait_for(lambda: len(self.nodes) >= goal or self.lost, TIMEOUT_S)
        assert self.lost == [], self.lost

    def _send(self, client: httpx.Client) -> None:
        body = {
            "model": "scripted",
            "stream": True,
            "max_tokens": 12,
            "messages": [{"role": "user", "content": "hello"}],
        }
        headers = {"authorization": f"Bearer {self.key}"}
        request = client.build_request(
            "POST", self.url + "/v1/chat/completions", json=body, headers=headers
        )
        try:
            response = client.send(request, stream=True)
        except httpx.TransportError as error:
            raise _NotTaken(repr(error)) from error
        with contextlib.closing(response):
            text = response.read().decode()
        if response.status_code == 503:
            raise _NotTaken(text)
        if response.status_code == 200 and text.endswith("data: [DONE]\n\n"):
            self._note(node=response.headers["x-fleet-node"])
        else:
            self._note(lost=f"{response.status_code}: {text[-300:]}")

    def _note(self, node: str = "", lost: str = "") -> None:
        with self._grown:
            if node:
                self.nodes.append(node)
            else:
                self.lost.append(lost)
            self._grown.notify_all()

    def run(self) -> None:
        """Sends requests until the load ends."""
        with httpx.Client(timeout=TIMEOUT_S, verify=NO_TLS) as client:
            while not self._ended.is_set():
                try:
                    self._send(client)
                except _NotTaken as error:
                    if not self.retries:
                        self._note(lost=str(error))
                    self.repeated += 1
                    self._ended.wait(0.05)  # until the router listens again
                except httpx.HTTPError as error:
                    self._note(lost=f"a response that was cut: {error!r}")

    def end(self) -> None:
        self._ended.set()


@contextmanager
def load(front: Router, *, retries: bool = False) -> Iterator[Load]:
    """Constant load until the block ends."""
    it = Load(front.url, front.key, retries)
    clients = [threading.Thread(target=it.run) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        it.wait_for(CLIENTS)
        yield it
    finally:
        it.end()
        for client in clients:
            client.join(TIMEOUT_S)
    assert it.lost == [], it.lost
