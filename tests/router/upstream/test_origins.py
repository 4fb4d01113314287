"""Which usage records a router accepts as those of its own requests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from node.protocol.messages import StatusEvent
from registry.migrate import open_migrated
from router.upstream.origins import Origins
from tests.registry.rows import usage_rows
from tests.router.conftest import (
    CHAT,
    FINISHED,
    ORIGINS,
    WAIT_S,
    StartNode,
    lease,
    model_status,
    node_status,
    proven,
    running_router,
    ticket,
)
from tests.router.dispatch.test_relay import WHOLE, whole


def test_a_stamp_is_known_again_from_the_same_registry_only() -> None:
    assert ORIGINS.key_of("n", FINISHED) == "key-1"
    assert Origins("router-1", b"secret").key_of("n", FINISHED) == "key-1"
    assert Origins("router-1", b"another").key_of("n", FINISHED) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"request_id": "r2"},
        {"request_id": "r.2"},
        {"model": "dear"},
        {"origin": "router-1/key-2"},
        {"origin": "router-1/"},
        {"proof": ""},
        {"proof": "0" * 32},
        {"proof": "\u00e9"},
        {"proof": FINISHED.proof.upper()},
    ],
    ids=str,
)
def test_a_proof_is_good_for_one_request_of_one_key_for_one_model(changes: dict[str, str]) -> None:
    assert ORIGINS.key_of("n", msgspec.structs.replace(FINISHED, **changes)) is None


def test_a_proof_is_good_for_one_node() -> None:
    assert ORIGINS.key_of("other", FINISHED) is None
    assert ORIGINS.key_of("other", proven(FINISHED, "other")) == "key-1"


def test_names_do_not_run_into_each_other() -> None:
    one = ORIGINS.marks(ticket("a", "bc"), lease("a", "n"))
    two = ORIGINS.marks(ticket("ab", "c"), lease("ab", "n"))
    three = ORIGINS.marks(ticket("a", "bc"), lease("a", "nk"))
    assert len({one.proof, two.proof, three.proof}) == 3


def test_the_counts_of_the_accounts_are_not_part_of_the_proof() -> None:
    later = msgspec.structs.replace(FINISHED, seq=9, prompt_tokens=5, cached_tokens=0)
    assert ORIGINS.key_of("n", later) == "key-1"


async def test_accounts_that_arrive_after_a_restart_of_the_router_are_written(
    tmp_path: Path, start_node: StartNode
) -> None:
    node = await start_node(whole, first_events=(StatusEvent(node_status()),))
    async with running_router(tmp_path) as router:
        await router.add(node)
        await (await router.post(WHOLE)).body()
    request = next(each for each in node.requests if each.target == CHAT)
    reported = msgspec.structs.replace(
        FINISHED,
        request_id=request.header("x-request-id"),
        origin=request.header("x-fleet-origin"),
        proof=request.header("x-fleet-proof"),
    )
    forged = msgspec.structs.replace(reported, seq=8, request_id="forged")
    last = StatusEvent(node_status(model_status("last")))
    node.first_events = (StatusEvent(node_status()), reported, reported, forged, last)
    async with running_router(tmp_path) as again:
        async with asyncio.timeout(WAIT_S):
            while again.core.fleet.models != {"last"}:
                await asyncio.sleep(0)
    registry = await open_migrated(tmp_path / "router" / "registry.db")
    async with registry.read() as session:
        rows = await usage_rows(session)
    await registry.close()
    # At the router's end there was no usage yet: a row without counts, which gives way.
    assert [(row.request_id, row.prompt_tokens) for row in rows] == [(reported.request_id, 20)]
