"""Calls as JSON between the markers of many families."""

from typing import Any

import pytest

from tests.node.parsing.reading import Parsed, read

LISTS = [
    ("apertus", "<|tools_prefix|>", "<|tools_suffix|>"),
    ("firefunction", "functools", ""),
    ("granite", "<|tool_call|>", ""),
    ("granite", "<tool_call>", "</tool_call>"),
    ("jamba", "<tool_calls>", "</tool_calls>"),
    ("nemotron_toolcall", "<TOOLCALL>", "</TOOLCALL>"),
    ("phi4_functools", "functools", ""),
    ("phi4_functools", "<|tool_call|>", "<|/tool_call|>"),
]
OBJECTS = [
    ("ernie45", "<tool_call>\n", "\n</tool_call>"),
    ("gigachat3", "<|function_call|>", ""),
    ("gigachat3", "<|message_sep|>\n\nfunction call<|role_sep|>\n", "<|message_sep|>\n\n"),
    ("granite_20b_fc", "<function_call> ", ""),
    ("internlm2", "<|action_start|><|plugin|>\n", "<|action_end|>"),
    ("reka_edge", "<tool_call>\n", "</tool_call>"),
]
FOUND = ("find", {"where": '"]}</x>\n', "depth": 2, "names": ["ü", "🙂"]})
ARGUMENTS = r'{"where": "\"]}</x>\n", "depth": "2", "names": ["ü", "🙂"]}'
PINGED: tuple[str, Any] = ("ping", {})


def written(name: str, function: str, arguments: str) -> str:
    if name == "apertus":
        return f'{{"{function}": {arguments}}}'
    key = "parameters" if name == "internlm2" else "arguments"
    return f'{{"name": "{function}", "{key}": {arguments}}}'


@pytest.mark.parametrize(("name", "begin", "end"), LISTS)
def test_reads_a_list(name: str, begin: str, end: str) -> None:
    calls = (written(name, "find", ARGUMENTS), written(name, "ping", "{}"))
    text = f"So. {begin}[\n {calls[0]},\n {calls[1]}\n]"
    assert read(text + end, tool_calls=name) == Parsed("So.", "", (FOUND, PINGED))
    assert read(text, tool_calls=name) == Parsed("So.", "", (FOUND, PINGED))


@pytest.mark.parametrize(("name", "begin", "end"), OBJECTS)
def test_reads_objects(name: str, begin: str, end: str) -> None:
    call, other = written(name, "find", ARGUMENTS), written(name, "ping", "{}")
    parsed = Parsed("So.", "", (FOUND, PINGED))
    assert read(f"So.{begin}{call}{end}\n{begin}{other}{end}", tool_calls=name) == parsed
    assert read(f"So.{begin}{call}", tool_calls=name) == Parsed("So.", "", (FOUND,))


@pytest.mark.parametrize(("name", "begin", "end"), LISTS)
def test_what_is_no_list_of_calls_stays_text(name: str, begin: str, end: str) -> None:
    undeclared = written(name, "open", "{}")
    cut = written(name, "find", ARGUMENTS)[:-3]
    for body in (f"[{undeclared}]", f"[{cut}", "[1, 2]", "[{}]", " and so on"):
        text = f"{begin}{body}{end}"
        assert read(text, tool_calls=name) == Parsed(text)


@pytest.mark.parametrize(("name", "begin", "end"), OBJECTS)
def test_what_is_no_call_stays_text(name: str, begin: str, end: str) -> None:
    cut = written(name, "find", ARGUMENTS)[:-3]
    for body in (written(name, "open", "{}"), cut, '{"a": 1}', "and so on"):
        text = f"{begin}{body}".strip()
        assert read(text, tool_calls=name) == Parsed(text)


def test_an_empty_list_is_nothing() -> None:
    assert read("<tool_calls>[]</tool_calls>So.", tool_calls="jamba") == Parsed("So.")
    assert read("<|tools_prefix|>[]<|tools_suffix|>So.", tool_calls="apertus") == Parsed("So.")


@pytest.mark.parametrize("end", ['{"name": "open"', '{"name": "open", "arguments": {}}]', "1]"])
@pytest.mark.parametrize(
    ("name", "begin"), [("jamba", "<tool_calls>"), ("granite", "<|tool_call|>"), ("xlam", "")]
)
def test_a_list_with_something_else_than_calls_is_text(name: str, begin: str, end: str) -> None:
    text = f'{begin}[{{"name": "ping", "arguments": {{}}}}, {end}'
    assert read(text, tool_calls=name) == Parsed(text)


def test_the_end_of_a_list_may_be_missing_at_the_end_of_the_output() -> None:
    text = '<|tool_call|>[{"name": "ping", "arguments": {}}\n'
    assert read(text, tool_calls="granite") == Parsed("", "", (PINGED,))


@pytest.mark.parametrize("text", ["[1, 2]", '[{"name": "open", "arguments": {}}]', "[x]", "[]"])
def test_a_bare_list_of_granite_is_calls_or_the_answer(text: str) -> None:
    assert read(text, tool_calls="granite") == Parsed(text)
    bare = '[{"name": "ping", "arguments": {}}, {"name": "find", "arguments": {"depth": 1}}]'
    assert read(bare, tool_calls="granite").calls == (PINGED, ("find", {"depth": 1}))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("granite", "<think>r</think>a"),
        ("granite", "<think>r</think><response>a</response>"),
        ("granite", "Here is my thought process: r Here is my response: a"),
        ("granite", "Here's my thought process: r\nHere's my response:\na"),
        ("ernie45", "r</think>a"),
        ("ernie45", "<think>\nr\n</think>\n\n<response>\na\n</response>\n"),
        ("apertus", "<|inner_prefix|>r<|inner_suffix|>a"),
    ],
)
def test_reads_reasoning(name: str, text: str) -> None:
    assert read(text, reasoning=name) == Parsed("a", "r")
