"""`/admin/policies`, `/admin/schedules` and the states of nodes, on a running router."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from node.protocol.messages import ModelState, StatusEvent
from registry import nodes
from tests.router.api.admin.test_aliases import call
from tests.router.conftest import (
    AddNode,
    Request,
    RunningRouter,
    ScriptedNode,
    StartNode,
    alias,
    model_status,
    node_status,
    silent,
)
from tests.router.dispatch.test_relay import (
    HELLO,
    STREAM,
    WHOLE,
    drop,
    hang,
    in_band_error,
    request_counts,
    stream,
)
from tests.router.dispatch.test_relay_failing import until

GIB = 1024**3


async def an_agent(
    router: RunningRouter, start_node: StartNode, *sizes_gib: int, name: str = "a", **fields: Any
) -> ScriptedNode:
    """A node of 16 GiB with models m0, m1, … of these sizes."""
    models = [
        model_status(f"m{at}", state=ModelState.READY, memory_bytes=size * GIB, **fields)
        for at, size in enumerate(sizes_gib)
    ]
    status = node_status(*models, node_id=f"id-{name}")
    status = msgspec.structs.replace(status, memory_budget_bytes=16 * GIB)
    node = await start_node(silent, first_events=(StatusEvent(status),))
    await router.add(node, name)
    return node


async def refusal(router: RunningRouter, method: str, path: str, body: Any) -> tuple[int, str, str]:
    status, answer = await call(router, method, path, body)
    return status, answer["error"]["param"], answer["error"]["message"]


async def test_a_pin_is_refused_with_figures_where_the_pinned_would_not_fit(
    router: RunningRouter, start_node: StartNode
) -> None:
    await an_agent(router, start_node, 10, 8)
    status, row = await call(router, "PATCH", "/policies", {"model": "m0", "pinned": True})
    assert (status, row) == (
        200,
        {"model": "m0", "node": None, "pinned": True, "keep_alive_s": None},
    )
    body = {"model": "m1", "node": "a", "pinned": True}
    status, param, message = await refusal(router, "PATCH", "/policies", body)
    assert (status, param) == (409, "model")
    assert message == (
        "'m1' takes 8.0 GiB on a, and models that are pinned there take 10.0 of its 16.0 GiB."
    )
    await call(router, "PATCH", "/policies", {"model": "m0", "pinned": False})
    status, row = await call(router, "PATCH", "/policies", body)
    assert (status, row["node"]) == (200, "a")
    assert (await call(router, "GET", "/policies"))[1] == [row]


async def test_nothing_is_ordered_of_a_model_on_a_node_that_does_not_have_it(
    router: RunningRouter, start_node: StartNode
) -> None:
    await an_agent(router, start_node, 1)
    first = StatusEvent(node_status(model_status("x"), node_id="id-b"))
    await router.add(await start_node(silent, first_events=(first,)), "b")
    schedule = {"load": "0 8 * * *", "timezone": "UTC"}
    for method, path, fields in (
        ("PATCH", "/policies", {"pinned": True}),
        ("PATCH", "/policies", {"keep_alive_s": 60}),
        ("POST", "/schedules", schedule),
    ):
        body = {"model": "m0", "node": "b", **fields}
        status, param, message = await refusal(router, method, path, body)
        assert (status, param) == (404, "model")
        assert "`router models pull m0 --node b` brings it there" in message
    assert (await call(router, "GET", "/policies"))[1] == []
    assert (await call(router, "GET", "/schedules"))[1] == []


async def test_a_pin_stands_in_the_audit_in_words(
    router: RunningRouter, start_node: StartNode
) -> None:
    await an_agent(router, start_node, 1)
    await call(router, "PATCH", "/policies", {"model": "m0", "node": "a", "pinned": True})
    await call(router, "PATCH", "/policies", {"model": "m0", "keep_alive_s": 90})
    details = [row["detail"] for row in (await call(router, "GET", "/audit"))[1]]
    assert details[:2] == [
        "not pinned, kept for 90 s, everywhere",
        "pinned, kept by the node's own settings, on a",
    ]


async def test_a_model_too_large_for_its_node_is_a_503_that_names_what_is_missing_and_no_wait(
    router: RunningRouter, start_node: StartNode
) -> None:
    status = node_status(
        model_status("big", state=ModelState.ON_DISK, memory_bytes=24 * GIB), node_id="id-a"
    )
    status = msgspec.structs.replace(status, memory_budget_bytes=16 * GIB)
    await router.add(await start_node(silent, first_events=(StatusEvent(status),)), "a")
    caller = await router.post({"model": "big"})
    error = await caller.error()
    assert (caller.status, error["code"]) == (503, "not_taken")
    assert "a: It needs 24.0 GiB for the model" in error["message"]
    assert "8.0 GiB too few" in error["message"]
    assert "retry-after" not in caller.headers
    assert caller.headers["x-should-retry"] == "false"
    _, rows = await call(router, "GET", "/models")
    assert "8.0 GiB too few" in rows[0]["nodes"][0]["no_room"]
    _, rows = await call(router, "GET", "/nodes")
    assert rows[0]["too_large"] == ["big"]


async def test_a_load_where_all_nodes_rest_names_them(
    router: RunningRouter, start_node: StartNode
) -> None:
    await an_agent(router, start_node, 1)
    await call(router, "POST", "/nodes/state", {"node": "a", "state": "cordoned"})
    _, _, message = await refusal(router, "POST", "/models/load", {"model": "m0"})
    assert message.endswith("takes requests now: a is cordoned.")


async def test_a_change_leaves_what_it_does_not_name(
    router: RunningRouter, start_node: StartNode
) -> None:
    await an_agent(router, start_node, 1)
    await call(router, "PATCH", "/policies", {"model": "m0", "pinned": True})
    _, row = await call(router, "PATCH", "/policies", {"model": "m0", "keep_alive_s": 60})
    assert (row["pinned"], row["keep_alive_s"]) == (True, 60.0)
    _, row = await call(router, "PATCH", "/policies", {"model": "m0", "pinned": False})
    assert (row["pinned"], row["keep_alive_s"]) == (False, 60.0)
    _, row = await call(router, "PATCH", "/policies", {"model": "m0", "keep_alive_s": None})
    assert (await call(router, "GET", "/policies"))[1] == []
    assert (await call(router, "PATCH", "/policies", {"model": "m0"}))[0] == 400


async def test_a_model_of_servers_of_others_is_not_for_the_fleet_to_keep(
    router: RunningRouter, start_node: StartNode
) -> None:
    async def ollama(request: Request) -> None:
        await request.answer(b'{"data":[{"id":"llama"}]}')

    node = await start_node(ollama)
    await router.add(node, "mini", kind="openai")
    router.core.names.put(alias("fast", "llama"))
    schedule = {"load": "0 8 * * *", "timezone": "UTC"}
    for name in ("llama", "fast"):
        for method, path, body in (
            ("PATCH", "/policies", {"model": name, "pinned": True}),
            ("POST", "/schedules", {"model": name, **schedule}),
        ):
            status, param, message = await refusal(router, method, path, body)
            assert (status, param) == (400, "model")
            assert message.startswith("No node agent has the model 'llama'")
    assert (await call(router, "GET", "/policies"))[1] == []


async def test_orders_that_would_be_undone_at_once_are_refused(
    router: RunningRouter, start_node: StartNode
) -> None:
    await an_agent(router, start_node, 1)
    order = {"model": "m0", "node": "a"}
    for node, how in (("a", "`router unpin m0 --node a` first"), (None, "`router unpin m0` first")):
        body = {"model": "m0", "node": node}
        await call(router, "PATCH", "/policies", body | {"pinned": True})
        status, param, message = await refusal(router, "POST", "/models/unload", order)
        assert (status, param) == (409, "model")
        assert how in message
        await call(router, "PATCH", "/policies", body | {"pinned": False})
    await call(router, "POST", "/nodes/state", {"node": "a", "state": "maintenance"})
    status, param, message = await refusal(router, "POST", "/models/load", order)
    assert (status, param) == (409, "node")
    assert "`router maintenance a --off` ends it" in message


async def test_an_unload_of_what_others_pin_names_them(
    router: RunningRouter, start_node: StartNode
) -> None:
    await an_agent(router, start_node, 1, pinned=True)
    order = {"model": "m0", "node": "a"}
    status, param, message = await refusal(router, "POST", "/models/unload", order)
    assert (status, param) == (409, "model")
    assert "not by this router: by the node's own settings" in message
    lines = {"load": "0 8 * * *", "unload": "0 20 * * *"}
    _, row = await call(router, "POST", "/schedules", {"model": "m0", **lines})
    lifecycle = router.core.lifecycle
    [record] = lifecycle.timetable.records
    lifecycle.remove_schedule(record.id)
    lifecycle.add_schedule(replace(record, load_fired_s=1.0))
    assert lifecycle.keeping("m0", "id-a") == row["id"]
    _, _, message = await refusal(router, "POST", "/models/unload", order)
    assert f"by the schedule {row['id']} until its unload" in message
    await call(router, "PATCH", "/policies", {"model": "m0", "node": "a", "pinned": True})
    _, _, message = await refusal(router, "POST", "/models/unload", order)
    assert "`router unpin m0 --node a` first" in message


async def test_a_schedule_that_loads_what_has_no_room_is_refused_with_figures(
    router: RunningRouter, start_node: StartNode
) -> None:
    await an_agent(router, start_node, 10, 8)
    await call(router, "PATCH", "/policies", {"model": "m0", "pinned": True})
    body = {"model": "m1", "load": "0 8 * * *"}
    for node in ("a", None):
        status, param, message = await refusal(router, "POST", "/schedules", {**body, "node": node})
        assert (status, param) == (409, "model")
        assert "'m1' takes 8.0 GiB on a" in message and "10.0 of its 16.0 GiB" in message
    unload = {"model": "m1", "unload": "0 8 * * *"}
    assert (await call(router, "POST", "/schedules", unload))[0] == 201
    await call(router, "PATCH", "/policies", {"model": "m0", "pinned": False})
    await call(router, "PATCH", "/policies", {"model": "m0", "node": "a", "pinned": True})
    await an_agent(router, start_node, 10, 8, name="b")
    assert (await call(router, "POST", "/schedules", body))[0] == 201, "there is room on b"


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        ({"load": "8 am"}, 400, "load", "five fields"),
        ({"unload": "0 25 * * *"}, 400, "unload", "not a cron line"),
        ({"load": "0 0 31 2 *"}, 400, "load", "never due"),
        ({"load": "0 8 * * *", "timezone": "Mars"}, 400, "load", "no time zone"),
        ({"load": "0 8 * * *", "node": "gone"}, 404, "node", "no node"),
        ({}, 400, None, "Give `load`"),
    ],
)
async def test_a_schedule_that_cannot_be_is_refused(
    router: RunningRouter,
    start_node: StartNode,
    body: dict[str, Any],
    status: int,
    param: str | None,
    message: str,
) -> None:
    await an_agent(router, start_node, 1)
    got = await refusal(router, "POST", "/schedules", {"model": "m0", **body})
    assert got[:2] == (status, param)
    assert message in got[2]


async def test_a_schedule_is_made_listed_and_removed(
    router: RunningRouter, start_node: StartNode
) -> None:
    await an_agent(router, start_node, 1)
    body = {"model": "m0", "node": "a", "load": "0 8 * * 1-5", "timezone": "Europe/Berlin"}
    status, row = await call(router, "POST", "/schedules", body)
    assert status == 201
    assert (row["node"], row["load"], row["unload"]) == ("a", "0 8 * * 1-5", None)
    assert (await call(router, "GET", "/schedules"))[1] == [row]
    assert (await call(router, "DELETE", f"/schedules/{row['id']}"))[0] == 200
    assert (await call(router, "DELETE", f"/schedules/{row['id']}"))[0] == 404
    assert (await call(router, "GET", "/schedules"))[1] == []


async def test_removing_a_node_forgets_its_policies_and_schedules(
    router: RunningRouter, start_node: StartNode
) -> None:
    node = await an_agent(router, start_node, 1)
    await call(router, "PATCH", "/policies", {"model": "m0", "node": "a", "pinned": True})
    await call(router, "POST", "/schedules", {"model": "m0", "node": "a", "load": "0 8 * * *"})
    await until(lambda: bool(node.policies) and node.policies[-1]["models"] != {})
    assert (await call(router, "DELETE", "/nodes/a"))[0] == 200
    assert node.policies[-1]["models"] == {}
    assert (await call(router, "GET", "/policies"))[1] == []
    assert (await call(router, "GET", "/schedules"))[1] == []


async def test_a_cordoned_node_is_kept_so_and_only_such_a_one_is_cut(
    router: RunningRouter, start_node: StartNode
) -> None:
    await an_agent(router, start_node, 1)
    assert (await call(router, "POST", "/nodes/cut", {"node": "a"}))[0] == 409
    status, row = await call(router, "POST", "/nodes/state", {"node": "a", "state": "cordoned"})
    assert (status, row["state"], row["leases"]) == (200, "cordoned", 0)
    async with router.core.registry.read() as session:
        assert [node.state for node in await nodes.list_all(session)] == ["cordoned"]
    body = {"model": "m0", "messages": [{"role": "user", "content": "hi"}]}
    caller = await router.post(body)
    assert await caller.head() == 503
    assert (await call(router, "POST", "/nodes/cut", {"node": "a"}))[0] == 200
    assert (await call(router, "POST", "/nodes/state", {"node": "a", "state": "off"}))[0] == 400
    assert (await call(router, "POST", "/nodes/state", {"node": "b", "state": "active"}))[0] == 404


async def cut(router: RunningRouter) -> None:
    """Cordons the node `a` and ends its requests."""
    for path, body in (("state", {"state": "cordoned"}), ("cut", {})):
        assert (await call(router, "POST", f"/nodes/{path}", {"node": "a", **body}))[0] == 200


async def test_a_request_without_content_that_is_cut_goes_to_another_node(
    router: RunningRouter, add_node: AddNode
) -> None:
    first = await add_node(router, "a", hang)
    caller = await router.post(STREAM)
    await until(lambda: request_counts(first) == [1])
    second = await add_node(router, "b", stream)
    await cut(router)
    assert await caller.head() == 200
    assert HELLO in await caller.body()
    assert request_counts(first, second) == [1, 1]
    assert router.core.traffic.breakers() == []


async def test_a_stream_that_is_cut_after_content_ends_with_its_error(
    router: RunningRouter, add_node: AddNode
) -> None:
    async def hello_and_hang(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(HELLO)
        await request.wait_gone()

    await add_node(router, "a", hello_and_hang)
    second = await add_node(router, "b", silent)
    await call(router, "POST", "/nodes/state", {"node": "b", "state": "cordoned"})
    caller = await router.post(STREAM)
    assert await caller.head() == 200
    assert await caller.chunk() == HELLO
    await cut(router)
    error = await in_band_error(caller)
    assert (error["code"], error["message"]) == ("node_failed", "The node a is being drained.")
    assert request_counts(second) == [0]
    # The node has not failed.
    assert router.core.traffic.breakers() == []
    assert 'outcome="drained"' in router.core.metrics.text().decode()


async def test_what_failed_is_not_shown_any_more_once_the_model_is_gone_from_the_node(
    router: RunningRouter, start_node: StartNode
) -> None:
    node = await start_node(drop)
    await router.add(node, "a")
    await (await router.post(WHOLE)).body()
    _, (row,) = await call(router, "GET", "/nodes")
    assert [each["model"] for each in row["breakers"]] == ["m"]
    await node.tell(StatusEvent(node_status(model_status("other"), node_id="id-a")))
    await until(lambda: "other" in router.core.fleet.snapshot[0].model_names())
    _, (row,) = await call(router, "GET", "/nodes")
    assert row["breakers"] == []
