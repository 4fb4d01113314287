"""`POST /admin/cache/clear` on a running router, with nodes that a test plays."""

from __future__ import annotations

from typing import Any

import msgspec

from node.protocol.lifecycle import PATH_CLEAR_CACHE, ClearedCache
from node.protocol.messages import ControlError
from tests.router.api.admin.test_aliases import call
from tests.router.conftest import AddNode, Request, RunningRouter


class Clearing:
    """The script of a node that clears its cache."""

    def __init__(self, cleared: ClearedCache | None = None) -> None:
        self._cleared = cleared
        self.orders: list[Any] = []

    async def __call__(self, request: Request) -> None:
        assert (request.method, request.target) == ("POST", PATH_CLEAR_CACHE)
        self.orders.append(msgspec.json.decode(request.body))
        if self._cleared is None:
            body = msgspec.json.encode(ControlError("The engine has died."))
            await request.answer(body, "503 Service Unavailable")
        else:
            await request.answer(msgspec.json.encode(self._cleared))


async def test_every_node_reports_what_it_has_freed_and_the_audit_says_so(
    router: RunningRouter, add_node: AddNode
) -> None:
    first = Clearing(ClearedCache(("m",), 1000, 20, ("x",)))
    broken = Clearing()
    await add_node(router, "a", first)
    await add_node(router, "b", broken)
    status, rows = await call(router, "POST", "/cache/clear", {})
    assert status == 200
    assert rows == [
        {
            "node": "a",
            "models": ["m"],
            "memory_bytes": 1000,
            "disk_bytes": 20,
            "skipped": ["x"],
            "error": None,
        },
        {
            "node": "b",
            "models": [],
            "memory_bytes": 0,
            "disk_bytes": 0,
            "skipped": [],
            "error": "The engine has died.",
        },
    ]
    assert first.orders == broken.orders == [{"model": None}]
    entry = (await call(router, "GET", "/audit"))[1][0]
    assert (entry["verb"], entry["subject"]) == ("cache.clear", "all models")
    assert entry["detail"] == "on a: 1,020 bytes"


async def test_one_node_and_one_model_are_cleared_alone(
    router: RunningRouter, add_node: AddNode
) -> None:
    scripts = {name: Clearing(ClearedCache(("m",), 1, 2)) for name in "ab"}
    for name, script in scripts.items():
        await add_node(router, name, script)
    status, rows = await call(router, "POST", "/cache/clear", {"node": "b", "model": "m"})
    assert (status, [row["node"] for row in rows]) == (200, ["b"])
    assert (scripts["a"].orders, scripts["b"].orders) == ([], [{"model": "m"}])


async def test_what_cannot_be_cleared_is_refused(router: RunningRouter, add_node: AddNode) -> None:
    status, answer = await call(router, "POST", "/cache/clear", {})
    assert (status, answer["error"]["code"]) == (503, "no_node_ready")
    await add_node(router, "a", Clearing(ClearedCache((), 0, 0)))
    for body, refusal in (
        ({"node": "nowhere"}, (404, "not_found")),
        ({"model": "nothing"}, (404, "model_not_found")),
        ({"nodes": "a"}, (400, "invalid_value")),
    ):
        status, answer = await call(router, "POST", "/cache/clear", body)
        assert (status, answer["error"]["code"]) == refusal
