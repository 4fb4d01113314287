"""`/admin/nodes/wake` and `/admin/nodes/waking`, on a running router."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from node.protocol.messages import StatusEvent
from registry import audit, nodes
from tests.router.api.admin.test_aliases import call
from tests.router.conftest import RunningRouter, ScriptedNode, StartNode, node_status, silent
from tests.router.dispatch.test_relay_failing import until

MAC, OTHER = "a0:b1:c2:d3:e4:f5", "a0:00:00:00:00:01"


async def a_node(router: RunningRouter, start_node: StartNode, *macs: str) -> ScriptedNode:
    status = msgspec.structs.replace(node_status(node_id="id-a"), macs=macs)
    node = await start_node(silent, first_events=(StatusEvent(status),))
    await router.add(node)
    return node


async def rows(router: RunningRouter) -> dict[str, Any]:
    _, found = await call(router, "GET", "/nodes")
    return {row["name"]: row for row in found}


async def test_a_node_that_sleeps_is_woken(
    router: RunningRouter, start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await a_node(router, start_node, MAC)
    sent: list[Sequence[str]] = []
    monkeypatch.setattr(router.core.waker, "_send", lambda macs, _to: sent.append(macs))
    status, row = await call(router, "POST", "/nodes/wake", {"node": "a"})
    assert (status, row["is_waking"], sent) == (200, False, []), "it is awake"
    await node.stop()
    await until(lambda: not router.core.fleet.snapshot[0].reachable)
    status, row = await call(router, "POST", "/nodes/wake", {"node": "a"})
    assert (status, row["is_waking"], row["macs"]) == (200, True, [MAC])
    await until(lambda: bool(sent))
    await node.start()
    await until(lambda: router.core.fleet.snapshot[0].reachable)
    await until(lambda: not router.core.waker.is_waking("id-a"))
    assert (await rows(router))["a"]["reachable"] and sent[0] == (MAC,)
    async with router.core.registry.read() as session:
        entries = await audit.recent(session, 10)
    assert ("node.wake", "a", MAC) in {(each.verb, each.subject, each.detail) for each in entries}


async def test_without_an_address_the_refusal_says_how_to_set_one(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_node(router, start_node)
    status, answer = await call(router, "POST", "/nodes/wake", {"node": "a"})
    assert status == 409 and "`router wake a --mac MAC` sets it" in answer["error"]["message"]
    status, _ = await call(router, "POST", "/nodes/wake", {"node": "gone"})
    assert status == 404


async def test_address_and_consent_are_set_and_kept(
    router: RunningRouter, start_node: StartNode
) -> None:
    await a_node(router, start_node, MAC)
    body = {"node": "a", "wakes": True}
    status, row = await call(router, "POST", "/nodes/waking", body)
    assert (status, row["wakes"], row["macs"]) == (200, True, [MAC])
    status, row = await call(router, "POST", "/nodes/waking", {"node": "a", "mac": "A00000000001"})
    assert (status, row["wakes"], row["macs"]) == (200, True, [OTHER])
    assert router.core.fleet.snapshot[0].waking is not None
    async with router.core.registry.read() as session:
        record = await nodes.get(session, "a")
        (newest, before) = await audit.recent(session, 2)
    assert (record.wake_mac, record.wakes) == (OTHER, True)
    assert (newest.detail, before.detail) == (f"mac {OTHER}", "requests may")


@pytest.mark.parametrize("path", ["/nodes/waking", "/nodes"])
async def test_what_is_no_address_is_refused(router: RunningRouter, path: str) -> None:
    key = "mac" if path == "/nodes/waking" else "wake_mac"
    body = {"node": "a"} if path == "/nodes/waking" else {"url": "http://127.0.0.1:1"}
    status, answer = await call(router, "POST", path, {**body, key: "a0:b1"})
    assert (status, answer["error"]["param"]) == (400, key)
    assert "one looks like a0:b1:c2:d3:e4:f5" in answer["error"]["message"]
