"""`router up`: starts a router and a node on this machine."""

import importlib.util
import queue
import signal
import sys
import threading
import time

import httpx
import msgspec

from node.protocol.headers import HEADER_PROTOCOL
from node.protocol.messages import PATH_STATUS, PROTOCOL_VERSION, decode_status
from router.api.admin.views import NodeRow
from router.commands import chat, console, fleet_of_one, models
from router.commands.chat_request import Chat
from router.commands.children import Child
from router.commands.client import (
    AdminClient,
    CommandFailed,
    RouterAccess,
    in_path,
    read_row,
    read_rows,
)
from router.commands.fleet_of_one import AGENT, ROUTER, Plan
from router.errors import StartError
from serving.http.listening import CannotListen, listening
from serving.terminal.interrupt import Stopped
from serving.terminal.output import put

AGENT_START_S = 120.0
ROUTER_START_S = 60.0
STOP_S = 10.0
"""Seconds that both children together may take to end."""
_ROUTER_SHARE = 0.7
_REACH_S = 5.0
_POLL_S = 0.1

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(plan: Plan, once: str | None = None, model: str | None = None) -> None:
    """Serves until a signal, or sends one prompt. Leaves no process behind."""
    check_installed(plan)
    check_ports(plan)
    is_up = False
    try:
        with LocalFleet(plan) as fleet:
            access, node = fleet.start()
            if once is None:
                # Output that is no terminal may be stored, so that the key itself is not printed.
                key = access.inference_key() if sys.stdout.isatty() else access.first_key_file
                is_up = True
                put(fleet_of_one.banner(access.url, key, node, plan))
                fleet.wait_for_end()
            else:
                respond_once(access, plan, fleet_of_one.pick_model(node, model), once)
    except KeyboardInterrupt:
        if not is_up:
            what = "the fleet was up" if once is None else "the response was complete"
            raise Stopped(f"Stopped before {what}.") from None


class LocalFleet:
    """The running router and node agent; leaving the context ends both."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._children: list[Child] = []
        self._ended: queue.SimpleQueue[Child] = queue.SimpleQueue()
        self._before = {which: signal.getsignal(which) for which in _ENDINGS}

    def __enter__(self) -> "LocalFleet":
        for which in _ENDINGS:
            signal.signal(which, signal.default_int_handler)
        return self

    def __exit__(self, *_error: object) -> None:
        for which in _ENDINGS:
            signal.signal(which, signal.SIG_IGN)
        try:
            self._stop()
        finally:
            for which, handler in self._before.items():
                signal.signal(which, handler)

    def start(self) -> tuple[RouterAccess, NodeRow]:
        """Starts both children and adds the agent to the router as a node."""
        plan = self._plan
        loud = not plan.quiet
        agent = self._add(Child(AGENT, plan.agent_argv(), _drop, loud=loud))
        hub = self._add(Child(ROUTER, plan.router_argv(), _show, loud=loud))
        with console.progress("starting node-agent"):
            agent_url = agent.wait_until_listening(AGENT_START_S)
        with console.progress("starting router"):
            access = RouterAccess(hub.wait_until_listening(ROUTER_START_S), plan.home)
        with console.progress("adding this machine's node"):
            return access, register(AdminClient(access), agent_url, read_token(plan))

    def wait_for_end(self) -> None:
        """Never returns: a signal interrupts it, and a child that ends raises its failure."""
        for child in self._children:
            threading.Thread(target=self._wait, args=(child,), daemon=True).start()
        raise self._ended.get().failed()

    def _wait(self, child: Child) -> None:
        child.ended.wait()
        self._ended.put(child)

    def _add(self, child: Child) -> Child:
        self._children.append(child)
        return child

    def _stop(self) -> None:
        """Stops the router first, which notifies its clients and needs the agent for its last usage
        records."""
        now_s = time.monotonic()
        with console.progress("stopping"):
            for child in reversed(self._children):
                share = _ROUTER_SHARE if child.name == ROUTER else 1.0
                child.stop(now_s + share * STOP_S)


def check_installed(plan: Plan) -> None:
    if plan.engine != "scripted" and importlib.util.find_spec("mlx_lm") is None:
        raise StartError(fleet_of_one.INSTALL_NODE)


def check_ports(plan: Plan) -> None:
    """Raises `StartError` for a port that is in use, before anything is started."""
    for option, port in (("--port", plan.port), ("--node-port", plan.node_port)):
        try:
            with listening(fleet_of_one.HOST, port):
                pass
        except CannotListen as error:
            raise StartError(fleet_of_one.port_sentence(option, port)) from error


def read_token(plan: Plan) -> str:
    try:
        return plan.token_file.read_text().strip()
    except OSError as error:
        raise CommandFailed(
            f"The node's token cannot be read from {plan.token_file} ({error.strerror})."
        ) from error


def register(admin: AdminClient, url: str, token: str) -> NodeRow:
    """Adds the agent at `url` to the router as a node; replaces an old address or token of it."""
    node_id = agent_id(url, token)
    rows = read_rows(NodeRow, admin.get("/nodes"))
    for row in rows:
        if row.id == node_id and row.url == url:
            now = until_reachable(admin, node_id)
            if now is not None:
                return now
    old = [row for row in rows if row.id == node_id or row.url == url]
    for row in old:
        admin.delete(f"/nodes/{in_path(row.name)}")
    taken = {row.name for row in rows if row not in old}
    names = [row.name for row in old if row.id == node_id] or [fleet_of_one.LOCAL_NAME]
    name = None if names[0] in taken else names[0]
    return read_row(NodeRow, admin.post("/nodes", {"url": url, "token": token, "name": name}))


def until_reachable(admin: AdminClient, node_id: str) -> NodeRow | None:
    """Waits until the node is reachable; returns None if it is not within `_REACH_S`."""
    deadline_s = time.monotonic() + _REACH_S
    while time.monotonic() < deadline_s:
        rows = read_rows(NodeRow, admin.get("/nodes"))
        for row in rows:
            if row.id == node_id and row.reachable:
                return row
        time.sleep(_POLL_S)
    return None


def agent_id(url: str, token: str) -> str:
    headers = {"authorization": f"Bearer {token}", HEADER_PROTOCOL: str(PROTOCOL_VERSION)}
    try:
        response = httpx.get(url + PATH_STATUS, headers=headers, trust_env=False)
        response.raise_for_status()
        return decode_status(response.content).node_id
    except (httpx.HTTPError, msgspec.MsgspecError) as error:
        raise CommandFailed(f"The node agent at {url} does not respond ({error}).") from error


def respond_once(access: RouterAccess, plan: Plan, model: str | None, prompt: str) -> None:
    if model is None:
        raise CommandFailed(fleet_of_one.no_models(plan))
    # Loaded first, so that the time to the first token does not include the load.
    admin = AdminClient(access)
    models.load(admin, model, node=None)
    with Chat(access) as talk:
        # Greedy, so that the first response does not depend on chance.
        chat.respond(talk, model, [{"role": "user", "content": prompt}], temperature=0)


def _show(line: str) -> None:
    put(line)


def _drop(_line: str) -> None:
    """Hides the agent's output."""
