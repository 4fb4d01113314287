"""Backslashes that begin no escape of JSON, as models write patterns and paths."""

import pytest

from tests.node.parsing.call_wires import ALL_JSON, ALL_TAGGED, in_json, in_tags
from tests.node.parsing.reading import Parsed, Tools, collect, output_format, parsed, read

TOOLS: Tools = {
    "write": {
        "type": "object",
        "properties": {"text": {"type": "string"}, "more": {"type": "object"}},
    }
}
FORGOTTEN = [
    (r'{"text": "grep \d+ C:\users"}', "grep \\d+ C:\\users"),
    (r'{"text": "\$a \(b\) \'c\'"}', r"\$a \(b\) \'c\'"),
    (r'{"text": "\u12 \u00e9 \uzzzz"}', "\\u12 é \\uzzzz"),
    ('{"text": "a \\\n b"}', "a \\\n b"),
    (r'{"text": "\\d \n \q \\"}', "\\d \n \\q \\"),
]


@pytest.mark.parametrize(("name", "wire"), ALL_JSON)
def test_a_backslash_that_begins_no_escape_is_one(name: str, wire: str) -> None:
    for arguments, text in FORGOTTEN:
        output = in_json(wire, "write", arguments)
        form = output_format(tool_calls=name, tools=TOOLS)
        whole = parsed(form, [output])
        assert whole == Parsed(calls=(("write", {"text": text}),))
        assert parsed(form, output) == whole


@pytest.mark.parametrize(("name", "wire"), ALL_TAGGED)
@pytest.mark.parametrize("value", [r'{"k": "C:\users\d"}', r"{'k': 'C:\users\d'}"])
def test_an_object_in_a_tag_may_contain_some(name: str, wire: tuple[str, str], value: str) -> None:
    output = in_tags(wire, "write", {"more": value})
    assert parsed(output_format(tool_calls=name, tools=TOOLS), [output]) == Parsed(
        calls=(("write", {"more": {"k": r"C:\users\d"}}),)
    )


def test_a_string_with_the_arguments_may_contain_some() -> None:
    text = r'<tool_call>{"name": "write", "arguments": "{\"text\": \"\\d\"}"}</tool_call>'
    assert read(text, tool_calls="hermes", tools=TOOLS).calls == (("write", {"text": r"\d"}),)


def test_what_is_returned_is_json_of_any_reader() -> None:
    text = r'<tool_call>{"name": "write", "arguments": {"text": "\d"}}</tool_call>'
    collected = collect(output_format(tool_calls="hermes", tools=TOOLS), [text])
    assert [each.text for each in collected.calls] == [r'{"text": "\\d"}']
