"""Calls of Llama 3."""

from typing import Any

import pytest

from tests.node.parsing.reading import Parsed, read

FIND = '{"name": "find", "parameters": {"where": "a } b", "depth": "2"}}'
FOUND = ("find", {"where": "a } b", "depth": 2})
PINGED: tuple[str, Any] = ("ping", {})


def test_reads_a_bare_object() -> None:
    assert read(FIND, tool_calls="llama3_json") == Parsed("", "", (FOUND,))
    text = '{"type": "function", "name": "ping", "arguments": {}}'
    assert read(text, tool_calls="llama3_json") == Parsed("", "", (PINGED,))


@pytest.mark.parametrize("separator", ["; ", " ;", "\n", ", "])
def test_objects_are_parted_by_semicolons_or_space(separator: str) -> None:
    text = f'{FIND}{separator}{{"name": "ping", "parameters": {{}}}}'
    for begin in ("", "<|python_tag|>"):
        assert read(begin + text, tool_calls="llama3_json") == Parsed("", "", (FOUND, PINGED))


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "John", "age": 25}',
        '{"name": "find", "age": 25}',
        '{"name": "find"}',
        '{"name": "find", "parameters": {}, "note": "x"}',
        '{"name": "open", "parameters": {}}',
        '{"name": "find", "parameters": "none"}',
        '{"name": "find", "parameters": {"where": "/a"',
        '{"parameters": {}}',
        "{}",
        "{ x }",
    ],
)
def test_json_that_is_not_exactly_a_call_is_the_answer(text: str) -> None:
    assert read(text, tool_calls="llama3_json") == Parsed(text)


def test_a_call_within_a_text_is_text() -> None:
    text = f"You could write {FIND} there."
    assert read(text, tool_calls="llama3_json") == Parsed(text)


def test_reads_what_is_behind_the_python_tag() -> None:
    for body in ('find.call(where="/a")', '[find(where="/a")]', 'find(where="/a")'):
        parsed = read(f"Ok.<|python_tag|>{body}", tool_calls="llama3_json")
        assert parsed == Parsed("Ok.", "", (("find", {"where": "/a"}),))
    text = 'Ok.<|python_tag|>find.call(where="/a")\nping.call()'
    assert read(text, tool_calls="llama3_json").calls == (("find", {"where": "/a"}), PINGED)
    text = '<|python_tag|>[{"name": "ping", "parameters": {}}]'
    assert read(text, tool_calls="llama3_json").calls == (PINGED,)
    text = '<|python_tag|>open.call(where="/a")'
    assert read(text, tool_calls="llama3_json") == Parsed(text)


@pytest.mark.parametrize("text", ["[ping()]", "<|python_start|>[ping()]<|python_end|>"])
def test_reads_calls_in_python_too(text: str) -> None:
    assert read(text, tool_calls="llama4") == Parsed("", "", (PINGED,))
    assert read("So [ping()].", tool_calls="llama4") == Parsed("So [ping()].")


def test_reads_functions_in_tags() -> None:
    text = 'Ok. <function=find>{"where": "</function>"}</function><function=ping>{}</function>'
    parsed = Parsed("Ok.", "", (("find", {"where": "</function>"}), PINGED))
    assert read(text, tool_calls="llama3_json") == parsed
    for text in ('<function=open>{"a": 1}</function>', "<function=find>x", "The <function=name>."):
        assert read(text, tool_calls="llama3_json") == Parsed(text)
