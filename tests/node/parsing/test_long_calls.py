"""Calls of whole files: a block that names a declared tool may be as long as `LONGEST_CALL`."""

import json
import tracemalloc

import pytest

from node.ipc.messages import PartKind
from node.parsing.output_parser import OutputParser
from node.parsing.scanning.step import LONGEST_BLOCK, LONGEST_CALL
from tests.node.parsing.call_wires import (
    ALL_JSON,
    ALL_PYTHON,
    ALL_TAGGED,
    in_json,
    in_python,
    in_tags,
)
from tests.node.parsing.reading import Parsed, Tools, output_format, parsed

TOOLS: Tools = {
    "write": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
    }
}
PIECE_LENGTH = 5


def file_of(length: int) -> str:
    line = "x = 1, f(y) - 2 and so on\n"
    return (line * (length // len(line) + 1))[:length]


def calls(text: str) -> list[tuple[str, str]]:
    """(format, call) of each spelling, with the text as an argument."""
    arguments = {"path": "a.py", "text": text}
    return [
        *((name, in_json(wire, "write", json.dumps(arguments))) for name, wire in ALL_JSON),
        *((name, in_tags(wire, "write", arguments)) for name, wire in ALL_TAGGED),
        *((name, in_python(wire, "write", arguments)) for name, wire in ALL_PYTHON),
    ]


def pieces_of(text: str) -> list[str]:
    return [text[at : at + PIECE_LENGTH] for at in range(0, len(text), PIECE_LENGTH)]


@pytest.mark.parametrize(("name", "output"), calls(file_of(70_000)))
def test_a_call_may_be_longer_than_what_is_buffered_of_any_block(name: str, output: str) -> None:
    form = output_format(tool_calls=name, tools=TOOLS)
    found = parsed(form, pieces_of(output))
    assert found.calls == (("write", {"path": "a.py", "text": found.calls[0][1]["text"]}),)
    assert found.calls[0][1]["text"].strip() == file_of(70_000).strip()
    assert not found.content


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "lfm2", "kimi_k2", "glm", "auto"])
def test_the_longest_call_is_as_long_as_it_may_be(name: str) -> None:
    written = {**dict(calls("TEXT")), "auto": dict(calls("TEXT"))["hermes"]}[name]
    for length, is_call in ((LONGEST_CALL - 300, True), (LONGEST_CALL, False)):
        output = written.replace("TEXT", "x" * length)
        found = parsed(output_format(tool_calls=name, tools=TOOLS), pieces_of(output))
        assert bool(found.calls) is is_call
        assert found == (Parsed(calls=found.calls) if is_call else Parsed(output.strip()))


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "lfm2", "kimi_k2", "glm"])
def test_a_call_that_never_ends_is_text(name: str) -> None:
    output = dict(calls("TEXT"))[name].partition("TEXT")[0] + file_of(2 * LONGEST_BLOCK)
    assert parsed(output_format(tool_calls=name, tools=TOOLS), pieces_of(output)) == Parsed(
        output.strip()
    )


@pytest.mark.parametrize("character", ["x", "\N{LATIN SMALL LETTER E WITH ACUTE}", "\N{SAILBOAT}"])
def test_the_longest_call_uses_little_memory(character: str) -> None:
    output = dict(calls("TEXT"))["hermes"].replace("TEXT", character * (LONGEST_CALL - 300))
    pieces = pieces_of(output)
    machine = OutputParser(output_format(tool_calls="hermes", tools=TOOLS))
    tracemalloc.start()
    try:
        parts = [part for piece in pieces for part in machine.feed(piece)]
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert parts[0].kind is PartKind.TOOL_START
    assert most_bytes < 16 << 20
