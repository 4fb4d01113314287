"""A fleet of processes whose nodes have one model each, named as they are, and callers of it."""

import asyncio
import json
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.acceptance.processes import Agent, Router, admin, named_fleet, register
from tests.fakes import NO_TLS
from tests.node.serving import RunningAgent
from tests.router.conftest import RawCaller, RunningRouter

__all__ = ["admin", "register"]

WAIT_S = 30.0
"""Longest wait for anything that must happen."""
PAUSE_S = 0.01
"""Between two looks at another process."""
CALLERS: list[RawCaller] = []
"""The callers of the running test; they disconnect when it ends."""


@dataclass(frozen=True)
class Fleet:
    front: Router
    agents: dict[str, Agent]
    """By name, which is that of their model, too."""

    @property
    def port(self) -> int:
        return int(self.front.url.rpartition(":")[2])

    async def post(self, model: str, path: str = "/v1/chat/completions", **fields: Any) -> "Call":
        """Sends a request on a connection of its own."""
        body = json.dumps(chat(model, **fields)).encode()
        caller = await RawCaller.connect(self.port)
        CALLERS.append(caller)
        caller.writer.write(
            f"POST {path} HTTP/1.1\r\nhost: router\r\nauthorization: Bearer {self.front.key}\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await caller.writer.drain()
        return Call(caller)

    async def answer(self, model: str, **fields: Any) -> tuple[int, bytes]:
        """Status and body of one answer."""
        caller = (await self.post(model, **fields)).caller
        body = await caller.body()
        caller.leave()
        return caller.status, body

    def records(self, name: str) -> list[dict[str, Any]]:
        """The requests that a node has seen."""
        records = self.agents[name].get("/scripted")["records"]
        assert isinstance(records, list)
        return records

    def forget(self, name: str) -> None:
        """Has a node forget its records and its faults of the HTTP side."""
        each = self.agents[name]
        each.put("/scripted", {})
        url = each.url + "/scripted/records"
        httpx.delete(url, headers=each.headers, timeout=WAIT_S, verify=NO_TLS).raise_for_status()

    def metrics(self) -> str:
        """Returns the router's metrics."""
        url = self.front.url + "/metrics"
        answer = httpx.get(url, headers=admin(self.front), timeout=WAIT_S, verify=NO_TLS)
        answer.raise_for_status()
        return answer.text

    def active(self, name: str) -> int:
        """Requests that a node's engine has."""
        return sum(
            model.get("active_requests", 0)
            for model in self.agents[name].get("/fleet/status")["models"]
        )


@dataclass
class Call:
    caller: RawCaller

    def leave(self) -> float:
        """Closes the connection; when, on the clock of all processes."""
        left_s = time.monotonic()
        self.caller.leave()
        return left_s


def chat(model: str, text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}


async def until(ready: Callable[[], Any], wait_s: float = WAIT_S) -> Any:
    """Returns the result of `ready` once that is true."""
    deadline_s = time.monotonic() + wait_s
    while not (found := ready()):
        assert time.monotonic() < deadline_s, "it did not come to that"
        await asyncio.sleep(PAUSE_S)
    return found


async def until_async(ask: Callable[[], Awaitable[Any]], wait_s: float = WAIT_S) -> Any:
    """Returns the result of `ask` once that is true."""
    deadline_s = time.monotonic() + wait_s
    while not (found := await ask()):
        assert time.monotonic() < deadline_s, "it did not come to that"
        await asyncio.sleep(PAUSE_S)
    return found


async def usage_reason(front: Router, request_id: str) -> str:
    """Returns the reason of a request's end that its usage row reports, once there is one."""
    return str((await until(lambda: _usage(front, "request_id", request_id)))[0])


def left_unplaced(front: Router) -> int:
    """Usage rows of requests whose callers left before they had a node."""
    reasons = _usage(front, "node_id", "")
    assert set(reasons) <= {"cancelled"}
    return len(reasons)


def _usage(front: Router, column: str, value: str) -> list[str]:
    """The reasons of the rows that have that value."""
    with sqlite3.connect(f"file:{front.registry}?mode=ro", uri=True) as database:
        rows = database.execute(f"select reason from usage where {column} = ?", (value,)).fetchall()
    database.close()
    return [reason for (reason,) in rows]


def sockets(pid: int) -> int:
    """Open connections of a process."""
    return sum(
        each.status == psutil.CONN_ESTABLISHED for each in psutil.Process(pid).net_connections()
    )


@contextmanager
def real_fleet(home: Path, **scripts: dict[str, Any]) -> Iterator[Fleet]:
    """A router, and one agent for each script."""
    named = {name: {"models": [{"name": name}], **script} for name, script in scripts.items()}
    with named_fleet(home, named) as (front, agents):
        yield Fleet(front, agents)


async def add_real(router: RunningRouter, agent: RunningAgent, name: str) -> None:
    """Adds a node as `router add-node` does, for a router and an agent in this process."""
    key = router.core.settings.current.admin_key_file.read_text().strip()
    caller = await router.post(
        {"url": f"http://127.0.0.1:{agent.port}", "name": name, "token": agent.token},
        "/admin/nodes",
        authorization=f"Bearer {key}",
        content_type="application/json",
    )
    body = await caller.body()
    assert caller.status < 300, body
