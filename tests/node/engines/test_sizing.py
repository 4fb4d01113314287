"""Tests the decisions of `auto`, and their reasons."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.engines.memory_budget import OVERHEAD_BYTES
from node.engines.sizing import (
    DISK_BYTES_PER_DAY,
    LEAST_LIVE_BYTES,
    LEAST_SCRATCH_BYTES,
    MOST_SCRATCH_BYTES,
    Plan,
    Room,
    engine_spec,
    needed_bytes,
    plan_engine,
    stored_choices,
)
from node.ipc.messages import DiskCache
from node.models.attention_scratch import AttentionScores
from node.models.store import ModelEntry
from node.settings import Settings
from serving.units import GIB

KIB = 1024
HOME = Path("/home")


def entry(
    weight_bytes: int = GIB,
    kv_bytes: int = 32 * KIB,
    context_tokens: int | None = 8192,
    kv_row_bytes: int = 0,
) -> ModelEntry:
    return ModelEntry("m", Path("/m"), weight_bytes, context_tokens, kv_bytes, kv_row_bytes)


def plan(
    model: ModelEntry, free_bytes: int = 64 * GIB, *, has_gpu: bool = True, **fields: Any
) -> Plan:
    disk_bytes = fields.pop("disk_free_bytes", 10**12)
    room = Room(free_bytes, disk_bytes, has_gpu)
    return plan_engine(model, room, Settings(home=HOME, **fields))


def line(made: Plan, name: str) -> str:
    return next(choice.line for choice in made.choices if choice.name == name)


@pytest.mark.parametrize(
    ("model", "live_bytes", "reason"),
    [
        pytest.param(entry(kv_bytes=KIB), GIB // 8, "16 rows of 8192 tokens", id="small"),
        pytest.param(entry(), 2 * GIB, "half the weights, at least 2 GiB", id="usual"),
        pytest.param(entry(8 * GIB), 4 * GIB, "half the weights", id="large"),
        pytest.param(
            entry(context_tokens=131_072), 4 * GIB, "whole context of 131072 tokens", id="long"
        ),
        pytest.param(
            entry(context_tokens=8_000_000),
            (64 * GIB - GIB - OVERHEAD_BYTES) // 2,
            "half of what is left beside the weights",
            id="endless",
        ),
        pytest.param(entry(64 * GIB), GIB // 4, "the least: one row of 8192 tokens", id="tight"),
        pytest.param(entry(kv_bytes=0), 2 * GIB, "half the weights", id="unknown"),
        pytest.param(entry(64 * GIB, kv_bytes=0), LEAST_LIVE_BYTES, "the least", id="no room"),
        pytest.param(
            entry(kv_bytes=0, kv_row_bytes=GIB // 64), GIB // 4, "room for 16 rows", id="states"
        ),
        pytest.param(entry(kv_bytes=KIB, context_tokens=100), 1_638_400, "of 100", id="short"),
    ],
)
def test_live_kv(model: ModelEntry, live_bytes: int, reason: str) -> None:
    made = plan(model)
    assert made.fixed.live_kv_bytes == live_bytes
    assert made.fixed.weight_bytes == model.weight_bytes
    assert reason in line(made, "live KV")


def test_quantized_live_kv_takes_less() -> None:
    whole, four = plan(entry(kv_bytes=KIB)), plan(entry(kv_bytes=KIB), kv_live_bits=4)
    assert four.fixed.live_kv_bytes * 32 == whole.fixed.live_kv_bytes * 9


def test_sixteen_rows_unless_the_live_kv_holds_fewer_short_ones() -> None:
    assert line(plan(entry()), "max_rows").startswith("max_rows 16 (auto: ")
    tight = plan(entry(63 * GIB, kv_bytes=128 * KIB, context_tokens=4096))
    assert tight.max_rows == 8
    assert "512 tokens" in line(tight, "max_rows")
    assert plan(entry(64 * GIB, kv_bytes=GIB, context_tokens=10)).max_rows == 1


def test_the_chunk_is_smaller_where_a_token_takes_longer() -> None:
    assert plan(entry()).prefill_chunk_tokens == 2048
    assert plan(entry(40 * GIB)).prefill_chunk_tokens == 1024
    assert plan(entry(), has_gpu=False).prefill_chunk_tokens == 512


WIDE = AttentionScores(16 * 4, is_fused=False)


@pytest.mark.parametrize(
    ("free_bytes", "context_tokens", "scratch_bytes"),
    [
        pytest.param(64 * GIB, 8192, 16 * 4 * 2048 * 8192, id="a whole chunk"),
        pytest.param(64 * GIB, 262_144, MOST_SCRATCH_BYTES, id="long"),
        pytest.param(9 * GIB + OVERHEAD_BYTES, 262_144, GIB, id="an eighth of what is left"),
        pytest.param(GIB, 262_144, LEAST_SCRATCH_BYTES, id="tight"),
    ],
)
def test_scratch_for_attention_scores_is_part_of_what_an_engine_takes(
    free_bytes: int, context_tokens: int, scratch_bytes: int
) -> None:
    model = replace(entry(context_tokens=context_tokens), scores=WIDE)
    made = plan(model, free_bytes)
    spec = engine_spec(model, made, Settings(home=HOME))
    assert spec.lease.overhead_bytes == OVERHEAD_BYTES + scratch_bytes
    assert (spec.score_bytes_per_pair, spec.prefill_scratch_bytes) == (64, scratch_bytes)
    assert "attention scores" in line(made, "prefill scratch")
    room = Room(free_bytes, 10**12, has_gpu=True)
    assert needed_bytes(model, room, Settings(home=HOME)) == made.fixed.total_bytes


def test_there_is_no_scratch_where_a_kernel_stores_no_scores() -> None:
    model = replace(entry(), scores=AttentionScores(64, is_fused=True))
    fused = plan(model)
    assert (fused.scratch_bytes, fused.score_bytes_per_pair) == (0, 0)
    assert fused.fixed.overhead_bytes == OVERHEAD_BYTES
    assert all(choice.name != "prefill scratch" for choice in fused.choices)
    assert plan(model, has_gpu=False).scratch_bytes == 64 * 512 * 8192
    assert plan(model, kv_live_bits=8).scratch_bytes == 64 * 2048 * 8192


def test_the_disk_is_used_where_it_has_free_space() -> None:
    assert plan(entry(), disk_free_bytes=10**10 - 1).disk_bytes == 0
    assert plan(entry(), disk_free_bytes=10**11).disk_bytes == 10**10
    full = plan(entry())
    assert (full.disk_bytes, full.disk_bytes_per_day) == (50 * GIB, DISK_BYTES_PER_DAY)
    off = plan(entry(), kv_disk_bytes=0)
    assert line(off, "KV on disk") == "KV on disk off (as set)"
    assert plan(entry(), engine="scripted").disk_bytes == 0
    assert all("a day" not in choice.name for choice in off.choices)


def test_every_size_can_be_set() -> None:
    made = plan(
        entry(),
        max_rows=3,
        prefill_chunk_tokens=64,
        decode_stall_target_ms=50,
        kv_live_bytes=3 * GIB,
        kv_snapshot_bytes=GIB,
        kv_cache_bits=8,
        kv_live_bits=4,
        kv_disk_bytes=GIB,
        kv_disk_bytes_per_day=0,
    )
    assert [choice.line for choice in made.choices if choice.reason is None] == [
        "max_rows 3 (as set)",
        "prefill_chunk 64 tokens (as set)",
        "decode_stall_target 50 ms (as set)",
        "live KV 3.0 GiB (as set)",
        "kv_cache_bits 8 (as set)",
        "kv_live_bits 4 (as set)",
        "KV on disk 1.0 GiB (as set)",
        "KV written to disk a day unlimited (as set)",
    ]
    assert (made.fixed.live_kv_bytes, made.snapshot_bytes) == (3 * GIB, GIB)


def test_reports_the_stored_kv_that_the_budget_shares_out() -> None:
    stored, snapshots = stored_choices(4 * GIB, 2, Settings(home=HOME))
    assert stored.line == (
        "stored KV 4.0 GiB (auto: 90 % of what is left of the limit, shared by 2 models)"
    )
    assert snapshots.line == "snapshots 2.0 GiB (auto: at most half of the stored KV)"
    stored, _ = stored_choices(GIB, 1, Settings(home=HOME, kv_cache_bytes=GIB))
    assert stored.line == "stored KV 1.0 GiB (as set)"
    small = Settings(home=HOME, kv_snapshot_bytes=2 * GIB)
    assert stored_choices(4 * GIB, 1, small)[1].line == "snapshots 2.0 GiB (as set)"
    assert stored_choices(GIB, 1, small)[1].line == "snapshots 1.0 GiB (as set)"


def test_an_engine_is_started_with_the_plan() -> None:
    settings = Settings(home=HOME, kv_cache_bits=4, kv_live_bits=8, kv_snapshot_bytes=5)
    made = plan_engine(entry(), Room(64 * GIB, 10**11, has_gpu=True), settings)
    spec = engine_spec(entry(), made, settings)
    assert (spec.folder, spec.max_rows, spec.lease) == ("/m", 16, made.fixed)
    assert (spec.kv_cache_bits, spec.kv_live_bits, spec.snapshot_bytes) == (4, 8, 5)
    assert (spec.prefill_chunk_tokens, spec.decode_stall_target_ms) == (2048, 200)
    assert spec.disk == DiskCache("/home/kv", 10**10, max_bytes_per_day=DISK_BYTES_PER_DAY)
    without = plan_engine(entry(), Room(64 * GIB, 0, has_gpu=True), settings)
    assert engine_spec(entry(), without, settings).disk is None
