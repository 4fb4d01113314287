"""Numbered words between fragments of markup: none is lost, returned twice or out of order."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.dialects.base import Segment
from node.ipc.generate import OutputFormat
from node.ipc.messages import PartKind
from node.parsing.calls.marked import MarkedLayout
from node.parsing.registry import layout_for, reasoning_names, tool_call_names
from tests.node.parsing.test_fuzz import TOOLS, cuts, fragments, joined, read

EXAMPLES = 400 // len(tool_call_names())
"""Examples of each tool-call format."""
MARKED_REASONING = [
    each for each in reasoning_names() if isinstance(layout_for(each, "none"), MarkedLayout)
]
MARKED_CALLS = [
    each for each in tool_call_names() if isinstance(layout_for("none", each), MarkedLayout)
]
MISTRAL_CALL = "[TOOL_CALLS]"
WORD = re.compile(r"w\d\dw")


@st.composite
def numbered(draw: st.DrawFn, form: OutputFormat) -> str:
    """An output with a numbered word behind every fragment, and one for the value `v` of a
    call."""
    pieces = draw(st.lists(st.sampled_from(fragments(form)), max_size=10))
    count = 0

    def word(_match: object = None) -> str:
        nonlocal count
        count += 1
        return f"w{count:02}w"

    text = draw(st.sampled_from(("", word())))
    for piece in pieces:
        text += re.sub(r"\bv\b", word, piece)
        text += draw(st.sampled_from(("", " ", "\n"))) + word()
        text += draw(st.sampled_from(("", " ", "\n")))
    return text


def returned_words(segments: Sequence[Segment]) -> list[str]:
    """The words of all segments, arguments included."""
    return WORD.findall("\n".join(each.text for each in segments))


def ends_in_reasoning(segments: Sequence[Segment]) -> bool:
    """Returns True if the last words were reasoning."""
    kinds = [each.kind for each in segments if each.kind is not PartKind.TOOL_START]
    return kinds[-1:] == [PartKind.REASONING]


@pytest.mark.parametrize("tool_calls", MARKED_CALLS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_each_word_is_returned_once_and_in_order(tool_calls: str, data: st.DataObject) -> None:
    reasoning = data.draw(st.sampled_from(MARKED_REASONING))
    opener = layout_for(reasoning, "none").opener
    tail = data.draw(st.sampled_from(("", f"\n{opener}\n", "a: ")))
    form = OutputFormat(reasoning, tool_calls, tail, TOOLS, repeated_calls=True)
    text = data.draw(numbered(form))
    segments, _ = read(form, data.draw(cuts(text)))
    returned, words = returned_words(segments), WORD.findall(text)
    if ends_in_reasoning(segments):
        # The calls that the model thought about count, and their markup was streamed as generated.
        returned = list(dict.fromkeys(returned))
    before, call, _ = text.partition(MISTRAL_CALL)
    if call:
        # Of what follows a call of this format only the calls are returned.
        assert returned == sorted({*returned, *WORD.findall(before)})
    else:
        assert returned == words


@pytest.mark.parametrize("tool_calls", MARKED_CALLS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_what_is_not_to_be_read_is_unchanged(tool_calls: str, data: st.DataObject) -> None:
    form = OutputFormat("none", tool_calls, data.draw(st.sampled_from(("", "a: "))))
    text = data.draw(numbered(form))
    segments, _ = read(form, data.draw(cuts(text)))
    assert joined(segments, PartKind.CONTENT).strip() == text.strip()
    assert all(each.kind is PartKind.CONTENT for each in segments)
