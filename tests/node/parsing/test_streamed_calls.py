"""Arguments streamed as generated: in pieces of the same JSON, however the output is cut."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import pytest

from node.ipc.generate import OutputFormat
from node.ipc.messages import Part, PartKind
from node.parsing.output_parser import OutputParser
from tests.node.parsing.call_wires import (
    ALL_JSON,
    ALL_PYTHON,
    ALL_TAGGED,
    BRACED,
    in_json,
    in_python,
    in_tags,
)
from tests.node.parsing.reading import Tools, output_format, parsed

TOOLS: Tools = {
    "write": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "text": {"type": "string"},
            "line": {"type": "integer"},
            "ratio": {"type": "number"},
            "exact": {"type": "boolean"},
            "note": {"type": ["string", "null"]},
            "mode": {"type": "string", "enum": ["all", "first"]},
            "names": {"type": "array", "items": {"type": "string"}},
            "more": {"type": "object", "properties": {"n": {"type": "integer"}}},
            "either": {"type": ["string", "integer"]},
        },
    },
    "ping": {"type": "object", "properties": {}},
}
FILE = "def f(x):\n    return x <= 1 && \"a\" or 'b'  # </a> {}\n" * 4
JSON_IN_K3 = '<|open|>tools<|sep|><|open|>call tool="NAME" index="1"<|sep|><|open|>json'
BUFFERED: Mapping[str, str | tuple[str, ...]] = {
    "bracket": "[",
    "function_xml": "<function>",
    "granite": "[{",
    "kimi_k3": JSON_IN_K3,
    "llama3_json": ("{", "<|python_tag|>"),
    "mistral": ("[TOOL_CALLS][{", "[TOOL_CALLS]{"),
    "xlam": "",
}
"""Formats, and what those of their spellings begin with that are returned as a whole."""
JSON_ARGUMENTS = [
    r'{"path": "a.py", "text": "x = \"\u00e9\"\n\t\\ \ud83d\ude00 \/ \u2028"}',
    r'{"text": "\ud83d half \d+ C:\users \u12", "path": "\ude00"}',
    '{"text": "line\n\ttab", "names": ["a", "\n"]}',
    '{ "line" : 12 , "ratio" : -1.5e3,"exact":true ,\n"note":null, "path": "" }',
    '{"line": "12", "exact": "true", "names": "[1, 2]", "more": "{\'n\': 1}", "ratio": "x"}',
    '{"more": {"n": "3", "deep": [[{}], {"k": [1, "]}"]}, []]}, "either": "5", "unknown": "7"}',
    '{"ratio": 1e999, "line": 123456789012345678901234567890, "text": "' + "ab " * 200 + '"}',
    json.dumps({"path": "a/b.py", "text": FILE}),
    "{}",
]
TEXT_ARGUMENTS: list[dict[str, str]] = [
    {"path": "a.py", "text": FILE.strip()},
    {"text": "\N{GRINNING FACE} \\d \\u00e9 \u2028 tab\t", "line": "12"},
    {"line": "7", "ratio": "-2.5", "exact": "true", "names": '["a", "b"]', "more": '{"n": "3"}'},
    {"note": "null", "path": "b"},
    {"note": "nullable", "either": "5", "mode": "first"},
    {"note": "", "path": "", "text": "x"},
    {"path": '"a.py"', "line": "3", "text": '"b c"'},
    {"text": '"use strict"', "path": "a.js", "mode": '"all"'},
    {"unknown": "[1]", "text": "a </b> c & d"},
    {},
]


class Streamed(NamedTuple):
    """The results of a streamed output."""

    content: str
    calls: list[tuple[str, str]]
    """(name, the JSON text of the arguments, maybe the begin of it)."""
    error: str | None
    pieces: int
    """Number of pieces of all arguments."""


def streaming(name: str, tools: Tools = TOOLS, **changes: Any) -> OutputFormat:
    form = output_format(tool_calls=name, tools=tools)
    return msgspec.structs.replace(form, streams_calls=True, **changes)


def run(form: OutputFormat, pieces: Iterable[str], *, is_cut: bool = False) -> Streamed:
    machine = OutputParser(form)
    parts: list[Part] = []
    for piece in pieces:
        parts += machine.feed(piece)
        if machine.ended:
            break
    parts += machine.finish(is_cut=is_cut)
    calls: list[tuple[str, str]] = []
    for part in parts:
        if part.kind is PartKind.TOOL_START:
            calls.append((part.name, ""))
        elif part.kind is PartKind.TOOL_ARGS:
            assert part.index == len(calls) - 1
            assert part.text
            calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
    content = "".join(part.text for part in parts if part.kind is PartKind.CONTENT)
    count = sum(part.kind is PartKind.TOOL_ARGS for part in parts)
    return Streamed(content, calls, machine.error, count)


def outputs() -> list[tuple[str, str, str]]:
    """(format, spelling, a call in it) with each set of arguments."""
    found = [
        (name, wire, in_json(wire, "write", arguments))
        for name, wire in ALL_JSON
        for arguments in JSON_ARGUMENTS
    ]
    found += [
        (name, wire[0], in_tags(wire, "write", arguments))
        for name, wire in (*ALL_TAGGED, *BRACED)
        for arguments in TEXT_ARGUMENTS
    ]
    python = {"path": "a.py", "text": FILE, "line": 3, "names": ["a", "b"]}
    return found + [(name, wire, in_python(wire, "write", python)) for name, wire in ALL_PYTHON]


def is_streamed(name: str, wire: str) -> bool:
    if (name, wire) in ALL_PYTHON:
        return False
    is_last = wire.startswith('<tool_call>{"arguments"')
    return not is_last and not wire.startswith(BUFFERED.get(name, "\0"))


OUTPUTS = outputs()
SPELLINGS = sorted({(name, wire) for name, wire, _ in OUTPUTS})


@pytest.mark.parametrize(("name", "wire"), SPELLINGS)
def test_the_pieces_are_the_same_json_wherever_the_output_is_cut(name: str, wire: str) -> None:
    form = streaming(name)
    off = output_format(tool_calls=name, tools=TOOLS)
    found = [each[2] for each in OUTPUTS if each[:2] == (name, wire)]
    for number, output in enumerate(found):
        whole = run(form, [output])
        assert whole.error is None
        assert not whole.content.strip()
        (call,) = whole.calls
        expected = parsed(off, [output]).calls
        assert expected == ((call[0], json.loads(call[1])),)
        assert run(form, output)[:3] == whole[:3]
        # All places, over the sets of arguments.
        for at in range(1 + number, len(output), len(found)):
            assert run(form, (output[:at], output[at:]))[:3] == whole[:3], output[at:]


@pytest.mark.parametrize(("name", "wire"), SPELLINGS)
def test_a_long_string_is_streamed_while_it_is_written(name: str, wire: str) -> None:
    for output in (each[2] for each in OUTPUTS if each[:2] == (name, wire)):
        if "return x" not in output:
            continue
        streamed = run(streaming(name), output)
        assert (streamed.pieces > 100) is is_streamed(name, wire)


@pytest.mark.parametrize(("name", "wire"), SPELLINGS)
def test_what_was_begun_is_never_text(name: str, wire: str) -> None:
    off = output_format(tool_calls=name, tools=TOOLS)
    output = next(each[2] for each in OUTPUTS if each[:2] == (name, wire))
    whole = run(streaming(name), [output])
    for at in range(1, len(output)):
        begun = run(streaming(name), [output[:at]])
        if not begun.calls:
            assert begun.error is None
            assert begun.content.strip() in ("", parsed(off, [output[:at]]).content)
            continue
        ((tool, arguments),) = begun.calls
        assert tool == "write"
        assert whole.calls[0][1].startswith(arguments)
        if begun.error is None:
            assert arguments == whole.calls[0][1]
            assert begun.content.strip() == parsed(off, [output[:at]]).content
        else:
            assert not begun.content.strip()
            assert begun.error.endswith("call of write: it ended its output there.")
        cut = run(streaming(name), [output[:at]], is_cut=True)
        assert cut.error is None
        assert (cut.calls, cut.content) == (begun.calls, begun.content)


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("hermes", '<tool_call>{"name": "write", "arguments": {"text": "a", b}}</tool_call> So.'),
        ("hermes", '<tool_call>{"name": "write", "arguments": {"text": "a"} so </tool_call>'),
        ("hermes", '<tool_call>{"name": "write", "arguments": {"text": "a", "line": 7 8}}'),
        ("hermes", '<tool_call>{"name": "write", "arguments": {"names": [tru]}}</tool_call>'),
        ("kimi_k2", '<|tool_call_begin|>write<|tool_call_argument_begin|>{"text": "a"; 1}'),
        ("harmony", '<|channel|>commentary to=functions.write<|message|>{"text": "a" "b"}<|call|>'),
        ("granite", '<|tool_call|>[{"name": "write", "arguments": {"text": "a"}, so}]'),
        ("gemma4", '<|tool_call>call:write{text:<|"|>a<|"|>;b:1}<tool_call|>'),
        (
            "glm",
            "<tool_call>write<arg_key>text</arg_key><arg_value>a</arg_value><arg_key>x</arg_key>?",
        ),
        (
            "minimax_m3",
            ']<]minimax[>[<invoke name="write">]<]minimax[>[<text>a]<]minimax[>[</text>?',
        ),
    ],
)
def test_a_call_that_turns_out_to_be_none_ends_the_output(name: str, output: str) -> None:
    for pieces in ([output], list(output)):
        found = run(streaming(name), pieces)
        assert found.error in (
            "The model broke off its call of write: it left the format of its calls.",
            "The model broke off its call of write: it ended its output there.",
        )
        assert not found.content
        assert [call[0] for call in found.calls] == ["write"]
    # Where nothing is streamed, all of it is text.
    assert not parsed(output_format(tool_calls=name, tools=TOOLS), [output]).calls


def test_nothing_is_begun_before_an_argument_has() -> None:
    for output in (
        '<tool_call>{"name": "write", "arguments": {so}}</tool_call>',
        '<tool_call>{"name": "write", "arguments": {\'text\': \'a\'}}</tool_call>',
        '<tool_call>{"name": "write", "arguments": {"text": so}}</tool_call>',
        '<tool_call>{"name": "write", "arguments": {"text": this}}</tool_call>',
        '<tool_call>{"name": "write", "arguments": {"line": 007}}</tool_call>',
        '<tool_call>{"name": "open", "arguments": {"text": "a"}}</tool_call>',
        "<tool_call>\n<function=write>\n<parameter=text>a",
        "<tool_call>\n<function=write>\nso",
    ):
        found = run(streaming("hermes"), output)
        if "<parameter" not in output:
            assert (found.content, found.calls, found.error) == (output, [], None)


def written(text: str, path: str = "a") -> str:
    arguments = json.dumps({"path": path, "text": text})
    return f'<tool_call>{{"name": "write", "arguments": {arguments}}}</tool_call>'


def test_a_call_that_was_made_before_is_returned_once() -> None:
    calls = run(streaming("hermes"), written("x") + written("x") + written("y")).calls
    assert [json.loads(each[1])["text"] for each in calls] == ["x", "y"]
    swapped = (
        '<tool_call>{"name": "write", "arguments": {"text":"x", "path":"\\u0061"}}</tool_call>'
    )
    assert len(run(streaming("hermes"), written("x") + swapped).calls) == 1
    again = run(streaming("hermes", repeated_calls=True), written("x") + written("x"))
    assert len(again.calls) == 2
    empty = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    assert len(run(streaming("hermes"), empty + empty).calls) == 1


def test_a_second_call_is_withheld_until_it_differs() -> None:
    def pieces(second: str) -> int:
        machine = OutputParser(streaming("hermes"))
        machine.feed(written("x" * 400))
        parts = [part for character in second for part in machine.feed(character)]
        return len([part for part in parts if part.kind is PartKind.TOOL_ARGS])

    assert pieces(written("y" * 400, path="b")) > 300
    assert pieces(written("y" * 400)) < 10


def test_calls_in_reasoning_are_withheld_until_it_shows_that_they_count() -> None:
    form = msgspec.structs.replace(streaming("hermes"), reasoning="think", prompt_tail="<think>\n")
    machine = OutputParser(form)
    parts = [part for character in f"r {written('x')}" for part in machine.feed(character)]
    assert {part.kind for part in parts} == {PartKind.REASONING}
    kinds = [part.kind for part in machine.finish()]
    assert kinds == [PartKind.TOOL_START, PartKind.TOOL_ARGS]


def test_calls_of_a_list_are_returned_before_it_has_ended() -> None:
    ping = '{"name": "ping", "arguments": {}}'
    first = '{"name": "write", "arguments": {"text": "a"}}'
    for other in ("1]", f"{ping.replace('ping', 'open')}]", "x"):
        output = f"<tool_calls>[{first}, {other}"
        found = run(streaming("jamba"), output)
        assert found.calls == [("write", '{"text": "a"}')]
        assert found.content.endswith(other)
        assert found.error is None
    assert len(run(streaming("jamba"), f"<tool_calls>[{first}, {ping}]</tool_calls>").calls) == 2


def test_text_before_a_call_in_its_tag_precedes_it() -> None:
    output = (
        "<tool_call>I look.<function=write><parameter=text>a</parameter></function></tool_call>"
    )
    machine = OutputParser(streaming("qwen3_coder"))
    parts = [part for character in output for part in machine.feed(character)]
    kinds = [part.kind for part in parts]
    assert kinds.index(PartKind.TOOL_START) > kinds.index(PartKind.CONTENT)
    assert PartKind.CONTENT not in kinds[kinds.index(PartKind.TOOL_START) :]


def test_the_first_call_ends_the_sequence_where_one_is_wanted() -> None:
    machine = OutputParser(streaming("hermes", parallel_calls=False))
    parts = machine.feed(written("x") + written("y"))
    assert [part.kind for part in parts] == [PartKind.TOOL_START, PartKind.TOOL_ARGS]
    assert (machine.ended, machine.error) == (True, None)


@pytest.mark.parametrize("name", ["hermes", "glm", "kimi_k2"])
def test_what_was_streamed_is_not_buffered(name: str) -> None:
    wires: Mapping[str, str] = {each: wire for each, wire in ALL_JSON}
    begin = in_json(wires[name], "write", '{"text": "').partition('{"text": "')[0] + '{"text": "'
    machine = OutputParser(streaming(name))
    machine.feed(begin)
    at = machine.block_begin
    assert at is not None
    for _ in range(400):
        machine.feed("x" * 1000)
        assert len(machine.block_text) < 8192
        # It is the same block: whoever constrains it by a grammar does not look at it again.
        assert machine.block_begin == at
