import json
from typing import Any

import pytest

from tests.node.parsing.reading import Parsed, read

HERMES = ("hermes", "qwen3_coder")


def call(arguments: Any, name: str = "find") -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


@pytest.mark.parametrize("form", HERMES)
def test_reads_a_call(form: str) -> None:
    assert read(call({"where": "here", "depth": 2}), tool_calls=form) == Parsed(
        calls=(("find", {"where": "here", "depth": 2}),)
    )


@pytest.mark.parametrize("between", ["", "\n", "\n\n"])
def test_reads_calls_in_a_row(between: str) -> None:
    text = call({"where": "a"}) + between + call({}, "ping")
    assert read(text, tool_calls="hermes") == Parsed(calls=(("find", {"where": "a"}), ("ping", {})))


def test_text_around_calls_is_content() -> None:
    text = f"One moment.\n{call({}, 'ping')}\nDone."
    assert read(text, tool_calls="hermes") == Parsed("One moment.\n\nDone.", calls=(("ping", {}),))


def test_an_end_tag_in_a_string_ends_nothing() -> None:
    arguments = {"where": 'a </tool_call> "quoted" } ] \\ b\n\té'}
    assert read(call(arguments), tool_calls="hermes") == Parsed(calls=(("find", arguments),))


def test_arguments_may_be_a_string_of_json() -> None:
    assert read(call('{"where": "x"}'), tool_calls="hermes").calls == (("find", {"where": "x"}),)


@pytest.mark.parametrize("arguments", [None, "", {}])
def test_no_arguments_are_an_empty_object(arguments: Any) -> None:
    assert read(call(arguments, "ping"), tool_calls="hermes").calls == (("ping", {}),)


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "ping", "parameters": {}}',
        '{"type": "function", "function": {"name": "ping", "arguments": {}}}',
        '{"function": "ping", "arguments": {}}',
        '[{"name": "ping", "arguments": {}}]',
        '{"name": "ping", "arguments": {}}}',
        '{"name": "ping", "arguments": {}}',
    ],
)
@pytest.mark.parametrize("end", ["</tool_call>", "\n</tool_call>\n", ""])
def test_reads_what_models_write_for_a_call(body: str, end: str) -> None:
    found = read(f"<tool_call>{body}{end}", tool_calls="hermes")
    assert found.calls == (("ping", {}),)
    assert not found.content.strip("} \n")


@pytest.mark.parametrize("between", ["\n", ", ", ",\n"])
def test_one_tag_may_contain_several_calls(between: str) -> None:
    bodies = ['{"name": "ping", "arguments": {}}', '{"name": "find", "arguments": {"depth": 1}}']
    expected = Parsed(calls=(("ping", {}), ("find", {"depth": 1})))
    joined = between.join(bodies)
    assert read(f"<tool_call>{joined}</tool_call>", tool_calls="hermes") == expected
    listed = f"<tool_call>[{', '.join(bodies)}]</tool_call>"
    assert read(listed, tool_calls="hermes") == expected


@pytest.mark.parametrize(
    "text",
    [
        call({"where": "x"})[:-20],
        '<tool_call>{"name": "find", "arguments": {"where": "x"',
        "<tool_call>",
        "<tool_call>\n",
        call({}, "dig"),
        call([1]),
        call("no object"),
        '<tool_call>{"name": "find", "arguments": NOT_JSON}</tool_call>',
        '<tool_call>{"names": []}</tool_call>',
        "So. <tool_call>[]</tool_call>",
        '<tool_call>[{"name": "ping", "arguments": {}}, 1]</tool_call>',
        "In the tag <tool_call> stands a call, and </tool_call> ends it.",
        "Write <tool_call></tool_call> around it.",
        'An answer: {"name": "ping", "arguments": {}}',
    ],
)
@pytest.mark.parametrize("form", HERMES)
def test_what_is_no_whole_call_of_a_declared_tool_is_text(text: str, form: str) -> None:
    assert read(text, tool_calls=form) == Parsed(text.strip())


def test_a_whole_call_behind_a_broken_one_is_read() -> None:
    broken = '<tool_call>{"name": "find", "arguments": ?}</tool_call>'
    assert read(broken + call({}, "ping"), tool_calls="hermes") == Parsed(
        broken, calls=(("ping", {}),)
    )


def test_an_empty_tag_before_the_answer_is_no_text() -> None:
    assert read("<tool_call>\n</tool_call>\nHello", tool_calls="hermes") == Parsed("Hello")


def test_a_value_that_the_schema_wants_as_a_number_becomes_one() -> None:
    arguments = {"depth": "3", "exact": "true", "where": "4"}
    assert read(call(arguments), tool_calls="hermes").calls == (
        ("find", {"depth": 3, "exact": True, "where": "4"}),
    )


def test_without_tools_markup_is_content() -> None:
    text = call({"where": "x"})
    assert read(text, tool_calls="hermes", tools={}) == Parsed(text)


@pytest.mark.parametrize("form", HERMES)
def test_reads_calls_in_brackets_of_declared_tools(form: str) -> None:
    text = 'So:\n[Calling tool: find({"where": "x", "depth": 1})]'
    assert read(text, tool_calls=form) == Parsed(
        "So:", calls=(("find", {"where": "x", "depth": 1}),)
    )
    other = '[Calling tool: dig({"where": "x"})]'
    assert read(other, tool_calls=form) == Parsed(other)
