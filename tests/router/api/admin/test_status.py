"""`/admin/status`: the fleet at one moment."""

from typing import Any

import httpx
from msgspec import structs

from node.protocol.messages import CacheStatus, ModelState, ModelStatus
from tests.router.api.conftest import GIB, World, a_model, a_status, added


def ready(name: str, **fields: Any) -> ModelStatus:
    return structs.replace(a_model(name, ModelState.READY), **fields)


def counting(decoded: int) -> ModelStatus:
    return ready(
        "busy",
        active_requests=3,
        leases=4,
        max_rows=2,
        prefilled_tokens=0,
        decoded_tokens=decoded,
        keep_alive_s=600.0,
        cache=CacheStatus(memory_bytes=GIB, memory_used_bytes=GIB // 2, bytes_per_token=1),
    )


async def test_it_has_loaded_models_and_rates_of_real_counts(
    world: World, api: httpx.AsyncClient
) -> None:
    failed = structs.replace(a_model("broken", ModelState.FAILED), reason="It is too large.")
    await added(world, api, "n1", counting(0), failed, a_model("idle"))
    row = (await api.get("/status")).json()
    assert row["loaded"][0]["decode_tokens_per_s"] is None, "one status has no rate"
    world.fleet.on_status("id-n1", a_status("id-n1", counting(50), failed, a_model("idle")))
    row = (await api.get("/status")).json()
    (loaded,) = row["loaded"]
    assert loaded["decode_tokens_per_s"] > 0
    assert row["decode_tokens_per_s"] == loaded["decode_tokens_per_s"]
    assert (loaded["running"], loaded["waiting"], loaded["max_rows"]) == (3, 1, 2)
    assert loaded["memory_bytes"] == GIB + GIB // 2
    assert (loaded["keep_alive_s"], loaded["unload_in_s"]) == (600.0, None)
    assert row["failed"] == [{"model": "broken", "node": "n1", "reason": "It is too large."}]
    assert (row["known_models"], row["in_flight"]) == (3, 3)


async def test_an_idle_model_has_the_time_until_its_unload(
    world: World, api: httpx.AsyncClient
) -> None:
    idle = ready("m", idle_s=100.0, keep_alive_s=600.0)
    await added(world, api, "n1", idle, structs.replace(idle, name="p", pinned=True))
    first, second = (await api.get("/status")).json()["loaded"]
    assert 490 < first["unload_in_s"] <= 500
    assert second["unload_in_s"] is None


async def test_the_queue_is_listed_by_model_and_class(world: World, api: httpx.AsyncClient) -> None:
    world.waits = {("m", "batch"): 12.5}
    assert (await api.get("/status")).json()["queue"] == [
        {"model": "m", "priority": "batch", "waiting": 2, "oldest_s": 12.5}
    ]


async def test_an_empty_fleet_has_an_empty_status(world: World, api: httpx.AsyncClient) -> None:
    row = (await api.get("/status")).json()
    assert (row["nodes"], row["loaded"], row["queue"], row["known_models"]) == ([], [], [], 0)


async def test_the_router_checks_itself(world: World, api: httpx.AsyncClient) -> None:
    checks = {row["check"]: row for row in (await api.get("/check")).json()}
    assert checks.keys() == {"registry", "disk", "open files", "keys"}
    assert checks["registry"]["level"] == checks["keys"]["level"] == "ok"
