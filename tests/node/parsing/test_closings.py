"""Tests that the forced end of reasoning ends it in every format, wherever it was cut."""

import json
import re
from collections.abc import Iterable

import pytest

from node.ipc.generate import OutputFormat, ToolSchema
from node.ipc.messages import Part, PartKind
from node.parsing.output_parser import OutputParser
from node.parsing.registry import layout_for, reasoning_names
from tests.node.parsing.reasoning_wires import ANSWER, CHATML, HERMES, K3, WIRES, WITHOUT, prompts

THOUGHT = "Is it <thi or </ an\n\n<|e, so «\u00e9» <|st 1 < 2?"
PING = ToolSchema("ping", {"type": "object", "properties": {}})
UNENDED = '<tool_call>\n{"name": "ping", "arguments": {"a": "'
MARKER = re.compile(r"<\|[^|>\s]+\|>|</?[a-z_:]+>|<(?:channel\|)>|<\|channel>|\[/?[A-Z]+\]")


class Reading:
    """An output that arrives in pieces, its markers as tokens of the vocabulary or as text."""

    def __init__(self, output: OutputFormat, *, has_tokens: bool) -> None:
        self._has_tokens = has_tokens
        grammar = layout_for(output.reasoning, output.tool_calls)
        self._markers = MARKER if has_tokens else re.compile("(?!)")
        tokens = frozenset(filter(MARKER.fullmatch, grammar.strict)) if has_tokens else frozenset()
        self.machine = OutputParser(output, (), tokens, "u")
        self.parts: list[Part] = []

    def write(self, text: str) -> None:
        """A model writes it; only `mark` has markers that are tokens."""
        self.parts += self.machine.feed(text)

    def mark(self, text: str) -> None:
        """Text with markup."""
        at = 0
        for found in self._markers.finditer(text):
            self._put(text[at : found.start()])
            self.parts += self.machine.feed_token(found[0], special=True)
            at = found.end()
        self._put(text[at:])

    def _put(self, text: str) -> None:
        for character in text:
            self.parts += self.machine.feed(character)

    def finish(self) -> None:
        self.parts += self.machine.finish()

    def text_of(self, kind: PartKind) -> str:
        return "".join(part.text for part in self.parts if part.kind is kind)

    @property
    def calls(self) -> list[tuple[str, object]]:
        names = [part.name for part in self.parts if part.kind is PartKind.TOOL_START]
        return list(zip(names, map(json.loads, self._arguments()), strict=True))

    def _arguments(self) -> Iterable[str]:
        return [part.text for part in self.parts if part.kind is PartKind.TOOL_ARGS]


def begun(name: str, tail: str, opener: str, *, has_tokens: bool) -> Reading:
    wire = WIRES[name]
    output = OutputFormat(name, wire.tool_calls or name, tail, (PING,))
    reading = Reading(output, has_tokens=has_tokens)
    reading.mark(opener)
    return reading


CASES = pytest.mark.parametrize(
    ("name", "tail", "opener"),
    [(name, *prompt) for name, wire in sorted(WIRES.items()) for prompt in prompts(wire)],
)
TOKENS = pytest.mark.parametrize("has_tokens", [False, True], ids=["text", "tokens"])


def test_every_format_of_reasoning_is_here_and_has_an_end() -> None:
    assert {*WIRES, *WITHOUT} == set(reasoning_names())
    for name in reasoning_names():
        closing = layout_for(name, name if name in ("functionary_v32",) else "none").closing
        assert bool(closing) is (name not in WITHOUT)


@TOKENS
@CASES
def test_an_answer_behind_a_forced_end_is_all_content(
    name: str, tail: str, opener: str, *, has_tokens: bool
) -> None:
    wire = WIRES[name]
    grammar = layout_for(name, wire.tool_calls or name)
    for at in range(len(THOUGHT) + 1):
        reading = begun(name, tail, opener, has_tokens=has_tokens)
        reading.write(THOUGHT[:at])
        assert reading.machine.in_reasoning or not at
        reading.machine.end_block()
        reading.mark(grammar.closing)
        assert not reading.machine.in_reasoning
        reading.mark(wire.answer)
        assert not reading.machine.in_reasoning
        reading.finish()
        assert reading.text_of(PartKind.REASONING) == THOUGHT[:at].strip()
        assert reading.text_of(PartKind.CONTENT) == wire.content
        assert not reading.calls


@TOKENS
@CASES
def test_a_call_behind_a_forced_end_is_one(
    name: str, tail: str, opener: str, *, has_tokens: bool
) -> None:
    wire = WIRES[name]
    for at in range(1, len(THOUGHT) + 1):
        reading = begun(name, tail, opener, has_tokens=has_tokens)
        reading.write(THOUGHT[:at])
        reading.mark(layout_for(name, wire.tool_calls or name).closing)
        reading.mark(wire.call)
        reading.finish()
        assert reading.text_of(PartKind.REASONING) == THOUGHT[:at].strip()
        assert reading.text_of(PartKind.CONTENT).strip() == ""
        assert reading.calls == [("ping", {})]


@TOKENS
@CASES
def test_a_call_that_the_model_thinks_about_is_no_shelter(
    name: str, tail: str, opener: str, *, has_tokens: bool
) -> None:
    wire = WIRES[name]
    thought = f"It may be {UNENDED if wire.tool_calls else 'so'}"
    for behind in (thought, f"It may be {HERMES}"):
        reading = begun(name, tail, opener, has_tokens=has_tokens)
        reading.write(behind)
        assert reading.machine.in_reasoning
        reading.machine.end_block()
        reading.mark(layout_for(name, wire.tool_calls or name).closing)
        assert not reading.machine.in_reasoning
        reading.mark(wire.answer)
        reading.finish()
        assert reading.text_of(PartKind.REASONING) == behind
        assert reading.text_of(PartKind.CONTENT) == wire.content
        assert not reading.calls


@TOKENS
@CASES
def test_what_may_follow_the_end_begins_no_reasoning(
    name: str, tail: str, opener: str, *, has_tokens: bool
) -> None:
    wire = WIRES[name]
    grammar = layout_for(name, wire.tool_calls or name)
    openings = grammar.answer_openings(reads_calls=True, names=("ping",))
    assert set(grammar.answer_openings(reads_calls=False)) <= set(openings)
    for opening in openings:
        reading = begun(name, tail, opener, has_tokens=has_tokens)
        reading.write("Hm.")
        reading.mark(grammar.closing)
        reading.mark(opening)
        assert not reading.machine.in_reasoning
        reading.finish()
        assert reading.text_of(PartKind.REASONING) == "Hm."
    answers = [text for text in (wire.answer, wire.call) if openings]
    assert all(text.startswith(openings) for text in answers)


@CASES
def test_only_reasoning_that_may_still_begin_has_an_opening(
    name: str, tail: str, opener: str
) -> None:
    wire = WIRES[name]
    openings = layout_for(name, wire.tool_calls or name).reasoning_openings(tail)
    if not opener:
        assert not openings
    elif openings:
        assert any(opener.startswith(each) for each in openings)


@pytest.mark.parametrize(
    ("name", "tail"),
    [
        ("think", f"{CHATML}<think>\n\n</think>\n\n"),
        ("solar", "<|begin|>assistant<|think|><|end|><|begin|>assistant"),
        ("command_r", "<|CHATBOT_TOKEN|><|START_THINKING|><|END_THINKING|>"),
        ("kimi_k3", f"{K3}<|open|>response<|sep|>"),
        ("harmony", "<|start|>assistant<|channel|>final<|message|>So"),
        ("muse", "<|start|>assistant to=user<|message|>"),
        ("inkling", "<|message_model|><|content_text|>"),
    ],
)
def test_a_prompt_that_has_ended_the_reasoning_leaves_none_to_begin(name: str, tail: str) -> None:
    assert not layout_for(name, WIRES[name].tool_calls or name).reasoning_openings(tail)


@pytest.mark.parametrize("name", ["harmony", "muse", "solar", "inkling"])
def test_a_header_that_was_begun_before_the_answer_is_no_text(name: str) -> None:
    wire = WIRES[name]
    reading = begun(name, *prompts(wire)[0], has_tokens=True)
    reading.write("Hm.")
    begin = MARKER.match(wire.answer)
    assert begin is not None
    reading.mark(begin[0])
    assert not reading.machine.in_reasoning
    reading.mark(wire.answer)
    reading.finish()
    assert reading.text_of(PartKind.REASONING) == "Hm."
    assert reading.text_of(PartKind.CONTENT) == ANSWER
