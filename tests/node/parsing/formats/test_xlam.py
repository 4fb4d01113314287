"""Calls of xLAM, which has no markup of its own."""

import pytest

from tests.node.parsing.reading import Calls, Parsed, read

LIST = '[{"name": "find", "arguments": {"where": "```"}}, {"name": "ping", "arguments": {}}]'
CALLS: Calls = (("find", {"where": "```"}), ("ping", {}))


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("", ""),
        ("So.\n```json\n", "\n```"),
        ("So.\n```\n", "\n```"),
        ("So.[TOOL_CALLS]", ""),
        ("So.<tool_call>", "</tool_call>"),
    ],
)
def test_reads_a_list_in_any_markers(begin: str, end: str) -> None:
    parsed = read(begin + LIST + end, tool_calls="xlam")
    assert parsed == Parsed("So." if begin else "", "", CALLS)


def test_reads_a_list_behind_reasoning() -> None:
    text = f"<think>r</think>\n{LIST}"
    assert read(text, reasoning="think", tool_calls="xlam") == Parsed("", "r", CALLS)
    assert read(text, tool_calls="xlam") == Parsed("<think>r</think>", "", CALLS)


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2]",
        '[{"name": "open", "arguments": {}}]',
        '[{"name": "find", "arguments": {}, "score": 1}]',
        "```json\n" + '{"name": "find", "arguments": {}}' + "\n```",
        "```json\n[]\n```",
        "```python\nprint([])\n```",
        f"So: {LIST}",
        LIST[:40],
        "a </think> b",
    ],
)
def test_any_other_list_is_text(text: str) -> None:
    assert read(text, tool_calls="xlam") == Parsed(text)
