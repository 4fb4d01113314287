"""Tests the meaning of bare text in tags, by one rule for all formats."""

import pytest

from node.parsing.output_parser import OutputParser
from node.parsing.part_collector import PartCollector
from node.parsing.scanning.source import Source
from node.parsing.scanning.stop_strings import StopMatcher
from node.parsing.values.bare_arguments import BareArguments
from tests.node.parsing.call_wires import ALL_TAGGED, in_tags
from tests.node.parsing.reading import Parsed, Tools, output_format, parsed

TOOLS: Tools = {
    "edit": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "old": {"type": "string"},
            "line": {"type": "integer"},
            "mode": {"type": "string", "enum": ["all", "first"]},
            "note": {"type": ["string", "null"]},
            "any": {},
        },
    }
}


def edited(name: str, wire: tuple[str, str], **arguments: str) -> dict[str, object]:
    form = output_format(tool_calls=name, tools=TOOLS)
    output = in_tags(wire, "edit", arguments)
    whole = parsed(form, [output])
    assert parsed(form, output) == whole
    assert whole == Parsed(calls=(("edit", whole.calls[0][1]),))
    found: dict[str, object] = whole.calls[0][1]
    return found


@pytest.mark.parametrize(("name", "wire"), ALL_TAGGED)
def test_quotes_are_text_beside_a_string_that_has_none(name: str, wire: tuple[str, str]) -> None:
    assert edited(name, wire, path="a.py", old='"use strict"') == {
        "path": "a.py",
        "old": '"use strict"',
    }
    assert edited(name, wire, old='"a"', path="a.py", line="3") == {
        "old": '"a"',
        "path": "a.py",
        "line": 3,
    }
    for text in ('"a" or "b"', '"a', 'say "a"'):
        assert edited(name, wire, old=text) == {"old": text}


@pytest.mark.parametrize(("name", "wire"), ALL_TAGGED)
def test_where_all_strings_are_quoted_the_model_quotes_them(
    name: str, wire: tuple[str, str]
) -> None:
    assert edited(name, wire, old=r'"say \"a\"\n"') == {"old": 'say "a"\n'}
    assert edited(name, wire, path='"a.py"', line="3", old='"b"') == {
        "path": "a.py",
        "line": 3,
        "old": "b",
    }
    assert edited(name, wire, path='"a.py"', note="null") == {"path": "a.py", "note": None}


@pytest.mark.parametrize(("name", "wire"), ALL_TAGGED)
def test_one_of_some_values_may_be_quoted(name: str, wire: tuple[str, str]) -> None:
    assert edited(name, wire, path="a.py", mode='"all"') == {"path": "a.py", "mode": "all"}
    assert edited(name, wire, old='"a"', mode="all") == {"old": "a", "mode": "all"}
    assert edited(name, wire, path="a.py", mode='"none"') == {"path": "a.py", "mode": '"none"'}


def test_a_tag_that_is_marked_as_text_has_it_as_it_stands() -> None:
    source = Source(PartCollector(output_format(tools=TOOLS), StopMatcher(()), ""), TOOLS)
    call = source.calls.open("edit")
    arguments = BareArguments(call)
    arguments.add("old", '"a"', is_text=True)
    arguments.add("any", '"b"', is_text=False)
    arguments.add("line", "x", is_text=False)
    arguments.put("note", None)
    arguments.close()
    source.calls.keep_back()
    call.end()
    (kept,) = source.calls.take_kept()
    assert kept.arguments == '{"old": "\\"a\\"", "any": "b", "line": "x", "note": null}'


@pytest.mark.parametrize(
    "output",
    [
        "<tool_call><function=edit><parameter=old>a</parameter><parameter=old>b</parameter>"
        "</function></tool_call>",
        '<tool_call>{"name": "edit", "arguments": {"old": "a", "old": "b"}}</tool_call>',
    ],
)
def test_the_last_value_of_a_name_counts_and_is_the_only_one(output: str) -> None:
    parts = OutputParser(output_format(tool_calls="hermes", tools=TOOLS)).feed(output)
    assert [part.text for part in parts] == ["", '{"old": "b"}']
