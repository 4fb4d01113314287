"""The code fence around an answer in JSON."""

import msgspec
import pytest

from node.ipc.generate import OutputFormat
from node.ipc.messages import PartKind
from node.parsing.fence import Fence
from node.parsing.output_parser import OutputParser
from node.parsing.registry import layout_for, reasoning_names, tool_call_names
from tests.node.parsing.reading import collect, output_format
from tests.node.parsing.reasoning_wires import ANSWER, WIRES, prompts

ANSWERS = [
    ('```json\n{"a": 1}\n```', '{"a": 1}'),
    ('```\n{"a": 1}\n```\n', '{"a": 1}'),
    ('\n```JSON \r\n"42"\n\n  ```  \n', '"42"'),
    ('```json\n{"a": "```"}```', '{"a": "```"}'),
    ('```json\n{"a": "x\n```\ny"}\n```', '{"a": "x\n```\ny"}'),
    ("```json\n[1,\n2]", "[1,\n2]"),
    ("```json\n```", ""),
    ('{"a": "```json\\n"}', '{"a": "```json\\n"}'),
    ("`a`", "`a`"),
    ("``", "``"),
    ("```json", "```json"),
    ("```a b\n1\n```", "```a b\n1\n```"),
    ("x ```json\n1\n```", "x ```json\n1\n```"),
    ("", ""),
]


def off(pieces: list[str]) -> str:
    fence = Fence()
    return "".join(map(fence.feed, pieces)) + fence.flush()


@pytest.mark.parametrize(("text", "answer"), ANSWERS)
def test_it_is_removed_however_the_text_is_cut(text: str, answer: str) -> None:
    assert off([text]).strip() == answer
    assert off(list(text)) == off([text])
    for at in range(1, len(text)):
        assert off([text[:at], text[at:]]) == off([text])


def test_no_more_is_buffered_than_a_fence_takes() -> None:
    for begin, filler in (("", " "), ("```", "a"), ("```\n1", " "), ("```\n1", "\n")):
        fence = Fence()
        emitted = len(fence.feed(begin))
        for count in range(1, 20):
            emitted += len(fence.feed(filler * 500))
            assert len(begin) + count * 500 - emitted <= 1500


def test_an_answer_that_is_continued_has_no_begin() -> None:
    fence = Fence()
    fence.skip()
    assert fence.feed("```json\n1") == "```json\n1"


@pytest.mark.parametrize("name", [each for each in reasoning_names() if each in WIRES])
def test_every_layout_has_it_around_its_answer_only(name: str) -> None:
    wire = WIRES[name]
    if wire.content != ANSWER:
        pytest.skip("its content is no answer of its own")
    for tail, opener in prompts(wire):
        output = msgspec.structs.replace(
            output_format(reasoning=name, tool_calls=wire.tool_calls or name, tail=tail),
            is_json=True,
        )
        fenced = wire.answer.replace(ANSWER, "```json\n{}\n```")
        closing = layout_for(output.reasoning, output.tool_calls).closing
        text = f"{opener}```json\nHm.\n```{closing}{fenced}"
        for pieces in ([text], list(text)):
            collected = collect(output, pieces)
            assert collected.text(PartKind.CONTENT).strip() == "{}"
            assert collected.text(PartKind.REASONING).strip() == "```json\nHm.\n```"


@pytest.mark.parametrize("name", tool_call_names())
def test_every_format_of_calls_has_it(name: str) -> None:
    output = OutputFormat(tool_calls=name, is_json=True)
    for pieces in (["```json\n[1]\n```"], list("```json\n[1]\n```")):
        assert collect(output, pieces).text(PartKind.CONTENT) == "[1]"


def test_a_stop_string_within_it_ends_the_answer() -> None:
    machine = OutputParser(OutputFormat("think", "hermes", is_json=True), ("STOP",))
    parts = machine.feed("```json\n[1] `STOP ]\n```")
    assert "".join(part.text for part in parts) == "[1] `"
    assert machine.ended


def test_only_answers_in_json_have_one() -> None:
    output = OutputFormat("think", "hermes")
    text = "```json\n[1]\n```"
    assert collect(output, [text]).text(PartKind.CONTENT) == text
