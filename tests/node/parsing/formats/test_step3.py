"""Calls of Step 3."""

import pytest

from tests.node.parsing.reading import Calls, Parsed, read

BEGIN, END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"


def call(name: str, body: str = "", head: str = "function<｜tool_sep｜>") -> str:
    invoke = f'<steptml:invoke name="{name}">{body}</steptml:invoke>'
    return f"<｜tool_call_begin｜>{head}{invoke}<｜tool_call_end｜>"


def parameter(name: str, text: str) -> str:
    return f'<steptml:parameter name="{name}">{text}</steptml:parameter>'


@pytest.mark.parametrize("head", ["", "function<｜tool_sep｜>"])
@pytest.mark.parametrize("between", ["", "\n", "<｜tool_sep｜>"])
def test_calls_in_a_section_are_read(head: str, between: str) -> None:
    body = parameter("where", "a < b && c") + "\n" + parameter("depth", "2")
    text = BEGIN + call("find", body, head) + between + call("ping", "", head) + END + "Done."
    expected: Calls = (("find", {"where": "a < b && c", "depth": 2}), ("ping", {}))
    assert read(text, tool_calls="step3") == Parsed("Done.", "", expected)


@pytest.mark.parametrize(
    "text",
    [
        BEGIN + call("unknown") + END,
        BEGIN + call("find", parameter("where", "x"))[:-40],
        BEGIN + "thought" + END,
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert read(text, tool_calls="step3") == Parsed(text)
