"""One row on its way through the engine: what its end tells."""

import numpy as np
import pytest

from node.engine.detokenizer import Vocabulary
from node.engine.row import make_row
from node.generate import GenerateRequest, OutputFormat, ToolSchema
from node.types import PartKind
from tests.node.engine.test_output import TOKENIZER, token

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
    deltas = [row.take(each, frozenset({end}), 0.0) for each in [*ids, end] if not row.ended]
    kinds = [part.kind for delta in deltas if delta is not None for part in delta.parts]
    assert kinds.count(PartKind.TOOL_START) == (0 if is_cut else 1)
