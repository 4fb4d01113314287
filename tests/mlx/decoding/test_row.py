"""One sequence on its way through the engine: what its end reports."""

import numpy as np
import pytest
from msgspec.structs import replace

from node.engine.decoding.row import make_row
from node.engine.model.detokenizer import Vocabulary
from node.ipc.generate import GenerateRequest, OutputFormat, ToolSchema
from node.ipc.messages import PartKind
from node.protocol.messages import FinishReason
from tests.node.engine.decoding.test_output import TOKENIZER, token

THOUGHT = '<think>Hm <tool_call>{"name": "f", "arguments": {}}</tool_call> so'
OUTPUT = OutputFormat("think", "hermes", tools=(ToolSchema("f"),))


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_thought_that_was_cut_makes_no_call(*, is_cut: bool) -> None:
    ids = token(THOUGHT)
    request = GenerateRequest("u", (1,), None, output=OUTPUT)
    limit = len(ids) if is_cut else 2 * len(ids)
    vocabulary = Vocabulary(TOKENIZER)
    row = make_row(request, np.array([1], dtype=np.int32), limit, vocabulary)
    (end,) = token("<|im_end|>")
    deltas = [row.add_token(each, frozenset({end}), 0.0) for each in [*ids, end] if not row.ended]
    kinds = [part.kind for delta in deltas if delta is not None for part in delta.parts]
    assert kinds.count(PartKind.TOOL_START) == (0 if is_cut else 1)


BROKEN = '<tool_call>{"name": "f", "arguments": {"a": "b", so}}</tool_call> It goes on.'


@pytest.mark.parametrize("ending", ["breaks off", "ends", "is cut"])
def test_a_call_that_was_begun_ends_the_sequence_with_the_reason_where_it_is_none(
    ending: str,
) -> None:
    ids = token(BROKEN if ending == "breaks off" else BROKEN.partition(", so")[0])
    request = GenerateRequest("u", (1,), None, output=replace(OUTPUT, streams_calls=True))
    limit = len(ids) if ending == "is cut" else 2 * len(ids)
    row = make_row(request, np.array([1], dtype=np.int32), limit, Vocabulary(TOKENIZER))
    (end,) = token("<|im_end|>")
    deltas = [row.add_token(each, frozenset({end}), 0.0) for each in [*ids, end] if not row.ended]
    last = deltas[-1]
    assert last is not None
    assert last.usage is not None
    # The engine completed the request.
    assert last.finish is (FinishReason.LENGTH if ending == "is cut" else FinishReason.STOP)
    assert (
        last.error
        == {
            "breaks off": "The model broke off its call of f: it left the format of its calls.",
            "ends": "The model broke off its call of f: it ended its output there.",
            "is cut": None,
        }[ending]
    )
    parts = [part for delta in deltas if delta is not None for part in delta.parts]
    assert "".join(part.text for part in parts).startswith('{"a": "b"')
    assert {part.kind for part in parts} == {PartKind.TOOL_START, PartKind.TOOL_ARGS}
