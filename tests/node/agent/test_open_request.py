"""Tests that a request's record ends by the last report of its engine."""

import pytest

from node.agent.open_request import raise_unless_complete
from node.errors import BadRequest, EngineFault, NodeError, ShuttingDown
from node.ipc.messages import Delta
from node.protocol.messages import FinishReason


@pytest.mark.parametrize(
    ("finish", "kind"),
    [
        (FinishReason.ERROR, EngineFault),
        (FinishReason.REFUSED, BadRequest),
        (FinishReason.CANCELLED, ShuttingDown),
    ],
)
def test_only_what_the_engine_is_at_fault_for_counts_against_its_node(
    finish: FinishReason, kind: type[NodeError]
) -> None:
    with pytest.raises(kind) as caught:
        raise_unless_complete(Delta("a", (), 3, finish, error="It is too complex."))
    assert (caught.value.status >= 500) is (finish is not FinishReason.REFUSED)
    if finish is not FinishReason.CANCELLED:
        assert caught.value.message == "It is too complex."
