from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from registry import keys, models, usage
from registry.db import Registry, WriteSession
from registry.errors import RefusedRow
from registry.records import UsageRecord, UsageTotal
from tests.registry.rows import usage_rows
from tests.registry.test_keys import KEY

ROW = UsageRecord(
    request_id="r1",
    node_id="n1",
    instance_id="i1",
    seq=1,
    key_id="k1",
    model="qwen",
    reason="stop",
    prompt_tokens=100,
    cached_tokens=40,
    completion_tokens=7,
    reasoning_tokens=3,
    queue_s=0.25,
    ttft_s=0.5,
    prefill_s=0.125,
    decode_s=1.5,
    finished_at_s=10.0,
)


def total(key_id: str, model: str, requests: int, *tokens: int) -> UsageTotal:
    prompt, cached, completion, reasoning = tokens
    sums = UsageTotal(requests, prompt, cached, completion, reasoning)
    return dataclasses.replace(sums, key_id=key_id, model=model)


async def test_a_row_is_read_as_it_was_stored(registry: Registry) -> None:
    untold = replace(
        ROW, request_id="r2", prompt_tokens=None, queue_s=None, seq=2, finished_at_s=11.0
    )
    assert await registry.write(lambda s: usage.add_many(s, [ROW, untold])) == 2
    async with registry.read() as session:
        assert await usage_rows(session) == [untold, ROW]


async def test_a_replayed_event_is_counted_once_and_changes_nothing(registry: Registry) -> None:
    await registry.write(lambda s: usage.add_many(s, [ROW]))
    again = replace(ROW, instance_id="i2", seq=9, completion_tokens=99)
    elsewhere = replace(ROW, node_id="n2", finished_at_s=9.0)
    batch = [again, elsewhere, elsewhere]
    assert await registry.write(lambda s: usage.add_many(s, batch)) == 1
    async with registry.read() as session:
        assert await usage_rows(session) == [ROW, elsewhere]


async def test_usage_that_arrives_late_replaces_a_row_without_it(registry: Registry) -> None:
    untold = replace(ROW, seq=0, reason="node_failed", prompt_tokens=None, ttft_s=None)
    await registry.write(lambda s: usage.add_many(s, [untold]))
    await registry.write(lambda s: usage.add_many(s, [ROW]))
    await registry.write(lambda s: usage.add_many(s, [untold]))
    async with registry.read() as session:
        assert await usage_rows(session) == [ROW]


async def test_a_later_event_of_the_same_instance_replaces_an_earlier_one(
    registry: Registry,
) -> None:
    first = replace(ROW, seq=5, reason="cancelled", completion_tokens=1)
    again = replace(ROW, seq=6)
    untold = replace(ROW, seq=0, reason="node_failed", completion_tokens=None)
    for batch in ([first, again], [first], [untold], [replace(again, instance_id="i2", seq=9)]):
        await registry.write(lambda s, rows=batch: usage.add_many(s, rows))  # type: ignore[misc]
    async with registry.read() as session:
        assert await usage_rows(session) == [again]


async def test_a_request_that_two_nodes_have_worked_on_is_counted_once(registry: Registry) -> None:
    rows = [
        replace(ROW, node_id="n2", seq=0, prompt_tokens=None, cached_tokens=None),
        replace(ROW, request_id="r1.2"),
        replace(ROW, request_id="r2"),
    ]
    await registry.write(lambda s: usage.add_many(s, rows))
    async with registry.read() as session:
        assert await usage.totals(session) == [total("k1", "qwen", 2, 200, 80, 21, 9)]


async def test_no_records_are_no_rows(registry: Registry) -> None:
    assert await registry.write(lambda s: usage.add_many(s, [])) == 0


async def test_totals_sum_by_key_and_model(registry: Registry) -> None:
    rows = [
        ROW,
        replace(ROW, request_id="r2", prompt_tokens=None, cached_tokens=None, finished_at_s=20.0),
        replace(ROW, request_id="r3", model="llama", finished_at_s=30.0),
        replace(ROW, request_id="r4", key_id="k0", completion_tokens=None),
    ]
    await registry.write(lambda s: usage.add_many(s, rows))
    async with registry.read() as session:
        assert await usage.totals(session) == [
            total("k0", "qwen", 1, 100, 40, 0, 3),
            total("k1", "llama", 1, 100, 40, 7, 3),
            total("k1", "qwen", 2, 100, 40, 14, 6),
        ]
        assert await usage.totals(session, since_s=20.0) == [
            total("k1", "llama", 1, 100, 40, 7, 3),
            total("k1", "qwen", 1, 0, 0, 7, 3),
        ]


async def test_totals_sum_by_team_node_and_day_of_a_period(registry: Registry) -> None:
    day_s = 86_400.0
    await registry.write(lambda s: keys.add(s, dataclasses.replace(KEY, team_id="t1")))
    rows = [
        ROW,
        replace(ROW, request_id="r2", node_id="n2", finished_at_s=day_s - 0.1),
        replace(ROW, request_id="r3", finished_at_s=day_s),
        replace(ROW, request_id="r4", key_id="gone", finished_at_s=2 * day_s),
    ]
    await registry.write(lambda s: usage.add_many(s, rows))
    async with registry.read() as session:
        by_day = await usage.totals(session, ["day"])
        by_team = await usage.totals(session, ["team", "node"])
        period = await usage.totals(session, ["key"], since_s=day_s - 0.1, until_s=2 * day_s)
    assert [(each.day, each.requests, each.reasoning_tokens) for each in by_day] == [
        (0, 2, 6),
        (1, 1, 3),
        (2, 1, 3),
    ]
    assert [(each.team_id, each.node_id, each.requests) for each in by_team] == [
        ("", "n1", 1),
        ("t1", "n1", 2),
        ("t1", "n2", 1),
    ]
    assert [(each.key_id, each.requests, each.day, each.model) for each in period] == [
        ("k1", 2, None, None)
    ]


async def test_tokens_are_summed_by_key_since_a_time(registry: Registry) -> None:
    rows = [
        ROW,
        replace(ROW, request_id="r2", finished_at_s=20.0, prompt_tokens=None),
        replace(ROW, request_id="r3", finished_at_s=20.0, key_id="k2"),
    ]
    await registry.write(lambda s: usage.add_many(s, rows))
    async with registry.read() as session:
        assert await usage.tokens(session, 0.0) == {"k1": 114, "k2": 107}
        assert await usage.tokens(session, 20.0) == {"k1": 7, "k2": 107}


async def test_what_keys_have_spent_is_summed_since_a_time(registry: Registry) -> None:
    rows = [
        replace(ROW, request_id="1", cost=0.5),
        replace(ROW, request_id="2", cost=0.25, finished_at_s=20.0),
        replace(ROW, request_id="3", cost=2.0, key_id="k2", finished_at_s=20.0),
        replace(ROW, request_id="4", key_id="k3"),
    ]
    await registry.write(lambda s: usage.add_many(s, rows))
    async with registry.read() as session:
        assert await usage.costs(session, 0.0) == {"k1": 0.75, "k2": 2.0}
        assert await usage.costs(session, 15.0) == {"k1": 0.25, "k2": 2.0}
        totals = await usage.totals(session)
    assert [(total.key_id, total.cost) for total in totals] == [
        ("k1", 0.75),
        ("k2", 2.0),
        ("k3", None),
    ]


async def test_of_rows_that_cannot_all_be_stored_the_others_are(registry: Registry) -> None:
    good = [replace(ROW, request_id=f"r{index}") for index in range(4)]
    bad = [
        replace(ROW, request_id="large", prompt_tokens=10**30),
        replace(ROW, request_id="surrogate", model="\ud800"),
        replace(ROW, request_id="none", reason=None),
    ]
    mixed = [good[0], bad[0], good[1], bad[1], good[2], bad[2], good[3]]

    async def add(session: WriteSession) -> list[UsageRecord]:
        with pytest.raises(RefusedRow):
            await usage.add_many(session, mixed)
        return await usage.add_each(session, mixed)

    assert await registry.write(add) == bad
    async with registry.read() as session:
        stored = await usage_rows(session)
    assert sorted(row.request_id for row in stored) == [row.request_id for row in good]


async def test_a_value_that_no_column_can_store_is_an_error_of_the_registry(
    registry: Registry,
) -> None:
    with pytest.raises(RefusedRow):
        await registry.write(lambda s: models.seen(s, "m", 10**30, None, 1.0))
    await registry.write(lambda s: models.seen(s, "m", 1, None, 1.0))
