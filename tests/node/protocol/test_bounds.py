"""All that routers and agents send each other has a bound, and what exceeds it is not decoded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from node.protocol import lifecycle, messages
from node.protocol.bounds import MAX_TOKENS, clipped
from node.protocol.messages import (
    ControlError,
    Finished,
    FinishReason,
    ModelState,
    ModelStatus,
    Stored,
    decode_event,
    encode_event,
)

STRUCTS = [
    kind
    for module in (messages, lifecycle)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct
]
FINISHED = Finished(
    *(1, "r", "o", "m", 0, 0, 0, 0), *(0.0, None, 0.0, 0.0), FinishReason.STOP, finished_unix_s=0.0
)
BY_HAND = {"Stored.hash", "Stored.front"}
"""Fields of 64 bits, which no `Meta` can express."""


def unbounded(kind: inspect.Type, where: str) -> Iterator[str]:
    """Where a value of the type could be of any size."""
    bounds: tuple[Any, ...] = ()
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        bounds = (kind.ge, kind.le)
    elif isinstance(kind, inspect.StrType | inspect.BytesType):
        bounds = (kind.max_length,)
    elif isinstance(kind, inspect.VarTupleType):
        bounds = (kind.max_length,)
        yield from unbounded(kind.item_type, where + "[]")
    elif isinstance(kind, inspect.DictType):
        bounds = (kind.max_length,)
        yield from unbounded(kind.key_type, where + "{}")
        yield from unbounded(kind.value_type, where + "{}")
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from unbounded(each, where)
    else:
        closed = inspect.BoolType | inspect.NoneType | inspect.EnumType | inspect.StructType
        assert isinstance(kind, closed), f"{where}: {kind}"
    if None in bounds and where not in BY_HAND:
        yield where


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_every_field_of_every_message_has_a_bound(kind: type[msgspec.Struct]) -> None:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        assert list(unbounded(field.type, f"{kind.__name__}.{field.name}")) == []


def test_the_test_sees_all_messages() -> None:
    names = {kind.__name__ for kind in STRUCTS}
    assert {"Finished", "NodeStatus", "PrefixDelta", "PullCommand", "Policies", "Share"} <= names


@pytest.mark.parametrize("field", ["prompt", "cached", "completion", "reasoning"])
def test_the_tokens_of_all_requests_can_be_summed(field: str) -> None:
    """SQLite's `sum` fails beyond 63 bits, and `router usage` with it."""
    assert MAX_TOKENS * 2**33 < 2**63
    event = json.loads(encode_event(FINISHED)) | {f"{field}_tokens": MAX_TOKENS}
    assert isinstance(decode_event(json.dumps(event).encode()), Finished)
    event[f"{field}_tokens"] += 1
    with pytest.raises(msgspec.ValidationError, match=f"{field}_tokens"):
        decode_event(json.dumps(event).encode())


@pytest.mark.parametrize("field", ["hash", "front"])
@pytest.mark.parametrize("value", [-1, 1 << 64, 10**30])
def test_a_hash_has_64_bits(field: str, value: int) -> None:
    stored = Stored("resp_1", "origin", hash=(1 << 64) - 1, front=(1 << 64) - 1, size_bytes=5)
    assert decode_event(encode_event(stored)) == stored
    event = json.loads(encode_event(stored)) | {field: value}
    with pytest.raises(msgspec.ValidationError, match="64 bits"):
        decode_event(json.dumps(event).encode())


def test_an_agent_clips_its_messages_to_people() -> None:
    for sentence in ("short.", "x" * 2000, "x" * 2001, "x" * 100_000):
        encoded = msgspec.json.encode(ControlError(clipped(sentence)))
        assert msgspec.json.decode(encoded, type=ControlError).message[:1999] == sentence[:1999]
    model = ModelStatus("m", ModelState.FAILED, 0, reason=clipped("x" * 5000))
    assert msgspec.json.decode(msgspec.json.encode(model), type=ModelStatus) == model
