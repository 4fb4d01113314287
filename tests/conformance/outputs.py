"""Reads the corpus' outputs with our output parser, whole and in pieces, and compares."""

import json
import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from msgspec.structs import replace

from node.dialects.base import Collected
from node.engine.decoding.output import OutputReader
from node.engine.model.detokenizer import Vocabulary
from node.ipc.generate import GenerateRequest, OutputFormat
from node.ipc.messages import PartKind
from node.parsing.output_parser import OutputParser
from tests.conformance.corpus import Answer, Call, Case, Tokens, TokenTable
from tests.conformance.formats import output_format
from tests.conformance.result import Result

Segments: TypeAlias = tuple[tuple[PartKind, str, str], ...]
"""(kind, text, name of a call) of each segment of an answer."""

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 90


@dataclass(slots=True)
class Tally:
    """The results of a set of cases."""

    result: Result = field(default_factory=Result)
    passed: Counter[str] = field(default_factory=Counter)
    """By wire format."""
    total: Counter[str] = field(default_factory=Counter)
    by_tokens: int = 0
    """Cases that were also read token by token."""
    raised: bool = False

    def add(self, case: Case, failure: str | None) -> None:
        self.result.total += 1
        self.total[case.wire] += 1
        if failure is None:
            self.result.passed += 1
            self.passed[case.wire] += 1
        else:
            self.result.failing.append(f"{case.name} ({case.wire}): {failure}")


def check_cases(cases: Iterable[Case], tables: Sequence[TokenTable]) -> Tally:
    """Every case through the machine, each way."""
    tally = Tally()
    for case in cases:
        tokens = find_tokens(case, tables)
        tally.by_tokens += tokens is not None
        try:
            failure = check_case(case, tokens)
        except Exception as exc:  # noqa: BLE001 - the other cases are to be seen all the same
            tally.raised = True
            failure = f"raised {exc!r}"
        tally.add(case, failure)
    return tally


def find_tokens(case: Case, tables: Sequence[TokenTable]) -> tuple[Vocabulary, Tokens] | None:
    """The case's tokens and their vocabulary; None where the corpus lacks one of them."""
    for table in tables:
        tokens = table.tokens_of(case.output, case.token_ids)
        if tokens is not None:
            return table.vocabulary, tokens
    return None


def check_case(case: Case, tokens: tuple[Vocabulary, Tokens] | None) -> str | None:
    """Returns the first difference from the case's expectation; None if there is none."""
    form = output_format(case)
    expected = expected_answer(case, form)
    output = case.output
    whole = read_pieces(form, [output])
    failure = difference(answer_of(whole), expected)
    if failure is not None:
        return failure
    if read_pieces(form, output) != whole:
        return "by single characters it reads otherwise"
    streamed = read_streamed(form, output)
    if streamed is not None and answer_of(streamed) != answer_of(whole):
        return "with its calls streamed it reads otherwise"
    for at in range(1, len(output)):
        if read_pieces(form, (output[:at], output[at:])) != whole:
            return f"split at {at}, before {_short.repr(output[at:])}, it reads otherwise"
    if tokens is not None:
        failure = difference(answer_of(read_tokens(form, *tokens)), expected)
    return failure and f"token by token: {failure}"


def read_pieces(form: OutputFormat, pieces: Iterable[str]) -> Segments:
    """Returns the segments that the parser finds in text that arrives in these pieces."""
    return _read(OutputParser(form), pieces)


def read_streamed(form: OutputFormat, pieces: Iterable[str]) -> Segments | None:
    """The same where the arguments of calls are streamed as they arrive; None where a call that was
    begun broke off, which then is text where they are not."""
    machine = OutputParser(replace(form, streams_calls=True))
    segments = _read(machine, pieces)
    return segments if machine.error is None else None


def _read(machine: OutputParser, pieces: Iterable[str]) -> Segments:
    collected = Collected()
    for piece in pieces:
        collected.add(machine.feed(piece))
        if machine.ended:
            break
    collected.add(machine.finish())
    return _segments(collected)


def read_tokens(form: OutputFormat, vocabulary: Vocabulary, tokens: Tokens) -> Segments:
    """Returns the segments that the engine's reader finds in an output's tokens."""
    reader = OutputReader(vocabulary, GenerateRequest("row", (), None, output=form))
    collected = Collected()
    for token in tokens.output:
        collected.add(reader.read(token))
        if reader.ended:
            return _segments(collected)
    collected.add(reader.end(tokens.end))
    return _segments(collected)


def answer_of(segments: Segments) -> Answer:
    """The answer as a client would have it. Raises `ValueError` where arguments are no JSON."""
    return Answer(
        content="".join(text for kind, text, _ in segments if kind is PartKind.CONTENT),
        reasoning="".join(text for kind, text, _ in segments if kind is PartKind.REASONING),
        calls=tuple(
            Call(name, json.loads(text))
            for kind, text, name in segments
            if kind is PartKind.TOOL_START
        ),
    )


def expected_answer(case: Case, form: OutputFormat) -> Answer:
    """Returns the answer that the corpus expects of the output alone: the corpus repeats the
    answer's begin where the prompt ends with that, and the prompt's opener where reasoning is left
    in the content."""
    content, reasoning = case.expected.content, case.expected.reasoning
    messages = case.context.get("messages") or ()
    if case.context.get("continue_final_message") and messages:
        content = content.removeprefix(messages[-1].get("content") or "")
        reasoning = reasoning.removeprefix(messages[-1].get("reasoning_content") or "")
    return Answer(
        _without_overlap(form.prompt_tail, content, case.output),
        _without_overlap(form.prompt_tail, reasoning, case.output),
        case.expected.calls,
    )


def _without_overlap(tail: str, text: str, output: str) -> str:
    """The text without what it repeats of the prompt's end."""
    for begin in range(len(tail)):
        repeated = tail[begin:]
        if text.startswith(repeated) and not output.startswith(repeated):
            return text.removeprefix(repeated)
    return text


def difference(got: Answer, expected: Answer) -> str | None:
    """In words; None where the answers are the same but for white space around texts."""
    for what in ("content", "reasoning"):
        mine, theirs = getattr(got, what).strip(), getattr(expected, what).strip()
        if mine != theirs:
            return f"{what} {_short.repr(mine)}, expected {_short.repr(theirs)}"
    names = [call.name for call in got.calls], [call.name for call in expected.calls]
    if names[0] != names[1]:
        return f"calls {_short.repr(names[0])}, expected {_short.repr(names[1])}"
    for mine, theirs in zip(got.calls, expected.calls, strict=True):
        if not same_json(mine.arguments, theirs.arguments):
            values = f"{_short.repr(mine.arguments)}, expected {_short.repr(theirs.arguments)}"
            return f"arguments of {mine.name} {values}"
    return None


def same_json(left: Any, right: Any) -> bool:
    """Returns True if two JSON values are equal; 1 and 1.0 are, 1 and true are not."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_json(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_json, left, right))
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


def _segments(collected: Collected) -> Segments:
    return tuple((each.kind, each.text, each.name) for each in collected.segments)
