"""Calls in brackets, by themselves and as recovery, and formats that are several."""

from typing import Any

import pytest

from tests.node.parsing.reading import Parsed, read

FOUND = ("find", {"where": ")] {", "depth": 2})
PINGED: tuple[str, Any] = ("ping", {})
FORMS = [
    '[Calling tool: find({"where": ")] {", "depth": "2"})]',
    '[Calling tool: find({\n  "where": ")] {",\n  "depth": 2\n})\n]',
    '[Calling tool: find(where=")] {", depth=2)]',
    '[Calling tool="find" where=")] {" depth=2]',
    "[Calling tool=find where=')] {' depth=\"2\"]",
    '[TOOL_CALL]{"name": "find", "arguments": {"where": ")] {", "depth": 2}}[/TOOL_CALL]',
    '[TOOL_CALL]\n{tool => "find", args => {\n --where ")] {"\n --depth 2\n}}\n[/TOOL_CALL]',
]
RECOVERING = ["bracket", "gemma4", "hermes", "lfm2", "qwen3_coder", "auto"]


@pytest.mark.parametrize("name", RECOVERING)
@pytest.mark.parametrize("text", FORMS)
def test_reads_calls_in_brackets(name: str, text: str) -> None:
    parsed = read(f"So. {text} [Calling tool: ping({{}})]\nWell.", tool_calls=name)
    assert parsed == Parsed("So.  \nWell.", "", (FOUND, PINGED))
    assert read(text, tool_calls=name) == Parsed("", "", (FOUND,))


@pytest.mark.parametrize("name", RECOVERING)
@pytest.mark.parametrize(
    "text",
    [
        '[Calling tool: open({"where": "/a"})]',
        "[Calling tool: find]",
        "[Calling tool: find({)]",
        '[Calling tool: find({"where": "/a"}) and then]',
        '[Calling tool: find({"where": "/a"',
        '[Calling tool="open" a="b"]',
        '[Calling tool="find" where=]',
        "[TOOL_CALL]anything[/TOOL_CALL]",
        "[Calling tools is easy]",
    ],
)
def test_what_names_no_declared_tool_stays_text(name: str, text: str) -> None:
    assert read(text, tool_calls=name) == Parsed(text)


def test_without_tools_it_is_text() -> None:
    for text in FORMS:
        assert read(text, tool_calls="auto", tools={}) == Parsed(text)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
        "<tool_call>\n<function=ping>\n</function>\n</tool_call>",
        "<function=ping></function>",
        '<tool_call>[{"name": "ping", "arguments": {}}]</tool_call>',
        "<|tool_call>call:ping{}<tool_call|>",
        "[TOOL_CALLS]ping{}",
        "<|tool_call_start|>[ping()]<|tool_call_end|>",
        '<|python_tag|>{"name": "ping", "parameters": {}}',
        '{"name": "ping", "parameters": {}}',
        '[{"name": "ping", "arguments": {}}]',
        "[ping()]",
    ],
)
def test_auto_gives_a_block_to_a_format_that_can_read_it(text: str) -> None:
    assert read(text, tool_calls="auto") == Parsed("", "", (PINGED,))
    both = f'{text}[Calling tool: find({{"depth": 1}})]'
    calls = read(both, tool_calls="auto").calls
    # Behind a call of Mistral nothing is returned.
    assert calls == (PINGED,) if "[TOOL_CALLS]" in text else (PINGED, ("find", {"depth": 1}))


@pytest.mark.parametrize("text", ["{}", "[x]", "[]", "```json\n[1]\n```", "a <tag> [b](c) {d}"])
def test_auto_leaves_other_text_alone(text: str) -> None:
    assert read(text, tool_calls="auto") == Parsed(text)
