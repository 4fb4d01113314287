"""Calls each node as the router does, and explains what is wrong with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from registry.records import NodeRecord
from router.errors import (
    NodeUnreachable,
    RouterError,
    WrongNodeProtocol,
    WrongNodeToken,
)
from router.states import KIND_OPENAI
from router.upstream.node_client import NodeClient
from serving.version import own_version


class Finding(StrEnum):
    OK = "ok"
    OTHER_VERSION = "other_version"
    CLOCK = "clock"
    OTHER_AGENT = "other_agent"
    TOKEN = "token"
    PROTOCOL = "protocol"
    REFUSED = "refused_the_call"
    """Other findings are values of `serving.unreached.Cause`."""


CLOCK_S = 5.0
"""Difference of two clocks from which on it is worth a warning."""


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """Result of calling one node."""

    node: str
    url: str
    level: str
    """`ok`, `warn` or `fail`."""
    finding: str
    message: str
    addresses: tuple[str, ...] = ()
    """Addresses that the node's name resolved to, in the order in which they are tried."""
    took_s: float = 0.0


async def check_nodes(records: Sequence[NodeRecord]) -> list[NodeCheck]:
    """Checks all nodes concurrently, each over connections of its own."""
    return list(await asyncio.gather(*(_check(record) for record in records)))


async def _check(record: NodeRecord) -> NodeCheck:
    started_s = time.monotonic()
    async with NodeClient.of(record) as client:
        try:
            level, finding, message = await _call(record, client)
        except RouterError as error:
            level, finding, message = "fail", _finding(error), _advice(record, error)
        found = NodeCheck(record.name, record.url, level, finding, message)
        return replace(
            found, addresses=tuple(client.addresses), took_s=time.monotonic() - started_s
        )


async def _call(record: NodeRecord, client: NodeClient) -> tuple[str, str, str]:
    if record.kind == KIND_OPENAI:
        names = await client.control.foreign_models()
        return "ok", Finding.OK, f"It responds, and lists {len(names)} models."
    before_s = time.time()
    status = await client.control.status()
    ahead_s = clock_ahead_s(status.now_unix_s, before_s, time.time())
    if status.node_id != record.id:
        return (
            "fail",
            Finding.OTHER_AGENT,
            "Another agent responds there, or one whose home was made anew: remove the node and "
            "add it again, or correct its address.",
        )
    own = own_version()
    if status.version != own:
        return (
            "warn",
            Finding.OTHER_VERSION,
            f"It responds, and runs mlx-fleet {status.version}, this router {own}: `router "
            "upgrade-plan` shows how to upgrade the older one.",
        )
    if abs(ahead_s) > CLOCK_S:
        return "warn", Finding.CLOCK, _wrong_clock(ahead_s)
    return "ok", Finding.OK, f"It responds: {status.chip}, mlx-fleet {status.version}."


def clock_ahead_s(node_unix_s: float, before_s: float, after_s: float) -> float:
    """The seconds that a node's clock is ahead of this machine's, as far as is certain; 0 if it may
    be right, or if the node does not tell (0). It was read between `before_s` and `after_s`."""
    if not node_unix_s:
        return 0.0
    if node_unix_s > after_s:
        return node_unix_s - after_s
    return min(0.0, node_unix_s - before_s)


def _wrong_clock(ahead_s: float) -> str:
    side = "ahead of" if ahead_s > 0 else "behind"
    return (
        f"It responds, and its clock is {abs(ahead_s):,.0f} s {side} this machine's, so that times "
        "in usage and logs are wrong. Let both set their clocks by themselves: System Settings > "
        "General > Date & Time on a Mac, `timedatectl set-ntp true` on Linux."
    )


def _finding(error: RouterError) -> str:
    if isinstance(error, NodeUnreachable):
        return error.cause
    if isinstance(error, WrongNodeToken):
        return Finding.TOKEN
    if isinstance(error, WrongNodeProtocol):
        return Finding.PROTOCOL
    return Finding.REFUSED


def _advice(record: NodeRecord, error: RouterError) -> str:
    if isinstance(error, WrongNodeToken):
        return (
            f"{error.message} `router remove-node {record.name}`, then `router add-node "
            f"{record.url} --name {record.name} --token TOKEN`, gives it the right one."
        )
    return error.message
