"""Blocks that contain calls of declared tools beside such as are none: those are text."""

import pytest

from tests.node.parsing.reading import Parsed, read

BLOCKS = [
    ("hermes", "<tool_call>", "<function={}></function>", "</tool_call>"),
    ("qwen3_coder", "<tool_call>\n", "<function={}>\n</function>\n", "</tool_call>"),
    (
        "qwen3_coder",
        "<tool_call>\n",
        "<function={}>\n<parameter=a>\nv\n</parameter>\n</function>\n",
        "</tool_call>",
    ),
    ("seed_oss", "<seed:tool_call>", "<function={}></function>", "</seed:tool_call>"),
    (
        "minimax_m2",
        "<minimax:tool_call>\n",
        '<invoke name="{}">\n</invoke>\n',
        "</minimax:tool_call>",
    ),
    ("hermes", "<tool_call>", '{{"name": "{}", "arguments": {{}}}}\n', "</tool_call>"),
    ("ernie45", "<tool_call>", '{{"name": "{}", "arguments": {{}}}}\n', "</tool_call>"),
    ("glm", "<tool_call>", '{{"name": "{}", "arguments": {{}}}}\n', "</tool_call>"),
    ("gemma4", "<|tool_call>", 'call:{}{{a:<|"|>}}<|"|>}}', "<tool_call|>"),
    ("gemma4", "<|tool_call>", "call:{}()", "<tool_call|>"),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.{}:0<|tool_call_argument_begin|>{{}}<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
    (
        "k2_horizon",
        "<ifm|tool_calls>",
        "<ifm|tool_call>{}</ifm|tool_call>",
        "</ifm|tool_calls>",
    ),
]
"""(format, what begins a block, a call of a name, what ends the block)."""


def arguments(call: str) -> dict[str, str]:
    if "parameter=" in call:
        return {"a": "v"}
    return {"a": "}"} if "a:<" in call else {}


@pytest.mark.parametrize(("form", "begin", "call", "end"), BLOCKS)
def test_a_call_counts_wherever_it_stands_in_a_block(
    form: str, begin: str, call: str, end: str
) -> None:
    pinged, other = call.format("ping"), call.format("open")
    expected = ("ping", arguments(call))
    for body in (other + pinged, pinged + other, other + other + pinged, other + pinged + other):
        found = read(f"So.\n{begin}{body}{end}", tool_calls=form)
        assert found.calls == (expected,)
        assert found.content.startswith("So.")
        assert found.content.count("open") == body.count("open")
    none = f"{begin}{other}{other}{end}"
    assert read(none, tool_calls=form) == Parsed(none)


def test_in_reasoning_a_block_contains_calls_only() -> None:
    block = "<tool_call><function=open></function><function=ping></function></tool_call>"
    found = read(f"{block}</think>", reasoning="think", tool_calls="hermes", tail="<think>")
    assert found == Parsed("", block)
