"""Tests that an agent's report of its models stays within the bounds of the protocol."""

from __future__ import annotations

import logging

import msgspec
import pytest

from node.agent.status_bounds import ModelFilter
from node.protocol.bounds import MAX_MODELS
from node.protocol.messages import ModelState, ModelStatus

GOOD = ModelStatus("good", ModelState.READY, 5)


@pytest.mark.parametrize(
    "bad",
    [
        msgspec.structs.replace(GOOD, weight_bytes=-1180591620717),
        msgspec.structs.replace(GOOD, weight_bytes=10**30),
        msgspec.structs.replace(GOOD, context_tokens=-1),
        msgspec.structs.replace(GOOD, since_unix_s=float("nan")),
        msgspec.structs.replace(GOOD, name="\x1b[2Jgone"),
        msgspec.structs.replace(GOOD, name=""),
        msgspec.structs.replace(GOOD, name="m" * 257),
        msgspec.structs.replace(GOOD, tool_parser="a\ud800"),
    ],
    ids=lambda model: repr(model)[:60],
)
def test_a_model_that_breaks_a_bound_hides_no_other(
    bad: ModelStatus, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    sound = ModelFilter()
    for _ in range(3):
        assert sound.of((bad, GOOD)) == (GOOD,)
    assert len(caplog.messages) == 1 and repr(bad.name) in caplog.messages[0]


def test_a_long_reason_is_clipped_and_its_model_reported() -> None:
    failed = ModelStatus("m", ModelState.FAILED, 5, reason="because " * 1000)
    (reported,) = ModelFilter().of((failed,))
    assert reported.reason is not None and len(reported.reason) == 2000
    assert reported.reason.startswith("because") and reported.reason.endswith("…")


def test_of_too_many_models_the_first_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    many = [msgspec.structs.replace(GOOD, name=f"m{index}") for index in range(MAX_MODELS + 2)]
    assert ModelFilter().of(many) == tuple(many[:MAX_MODELS])
    assert len(caplog.messages) == 2
