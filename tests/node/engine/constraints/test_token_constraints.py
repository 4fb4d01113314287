"""Tests the constraint of a sequence's next token, with sequences that generate anything else as
soon as they may."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from node.engine.constraints.compile import (
    MAX_CHOICES,
    AnswerGrammars,
    compile_answer,
    is_constrained,
)
from node.engine.constraints.grammar import Compiler
from node.engine.constraints.token_constraints import (
    NOT_ENDED,
    RequestConstraint,
    RowConstraint,
    request_constraint,
)
from node.engine.decoding.output import OutputReader
from node.engine.model.detokenizer import Vocabulary
from node.engine.sampling.token_mask import Mask, all_but, only
from node.ipc.generate import Constraint, ConstraintKind, GenerateRequest, OutputFormat, ToolSchema
from node.ipc.messages import Part, PartKind
from node.parsing.constraints.schema import UnsupportedConstraint
from node.parsing.output_parser import OutputParser
from node.parsing.registry import layout_for
from tests.node.engine.byte_vocabulary import END, MERGED, byte_vocabulary

SIZE = 352
THINK = ("<think>", "</think>", "<tool_call>", "</tool_call>")
HARMONY = ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>")
OPENED = "<|im_start|>assistant\n<think>\n"
VOCABULARIES = {
    "tokens": byte_vocabulary((*THINK, *HARMONY), MERGED),
    "text": byte_vocabulary((), MERGED),
}
YES = Constraint(ConstraintKind.CHOICE, "choice", '["yes"]')


@dataclass
class Generated:
    tokens: list[int]
    reader: OutputReader
    parts: list[Part]
    error: str | None

    def text(self, kind: PartKind) -> str:
        return "".join(part.text for part in self.parts if part.kind is kind)


def request(
    thinking_tokens: int | None = None,
    output: OutputFormat | None = None,
    constraint: Constraint | None = None,
) -> GenerateRequest:
    output = output or OutputFormat("think", "none", OPENED)
    return GenerateRequest(
        "u", (), 999, output=output, thinking_tokens=thinking_tokens, constraint=constraint
    )


def end_token(vocabulary: Vocabulary) -> int:
    return vocabulary.encode(END)[0]


def grammars(vocabulary: Vocabulary, generate_request: GenerateRequest) -> AnswerGrammars:
    compiler = Compiler(vocabulary, SIZE, {end_token(vocabulary)})
    tokens = {token.text: number for number, token in vocabulary.added.items()}
    answer = compiler.submit(lambda: compile_answer(compiler, generate_request, tokens)).result(60)
    compiler.close()
    return answer


def allowed(mask: Mask | None) -> set[int]:
    if mask is None:
        return set(range(SIZE))
    return set(np.nonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:SIZE])[0].tolist())


def run(
    vocabulary: Vocabulary,
    generate_request: GenerateRequest,
    wish: Callable[[int, set[int]], int | None],
) -> Generated:
    """A sequence that takes the token it wishes where it may, and any that it may where not; None
    ends it."""
    ends = frozenset({end_token(vocabulary)})
    answer = grammars(vocabulary, generate_request) if is_constrained(generate_request) else None
    reader = OutputReader(vocabulary, generate_request)
    shared = request_constraint(generate_request, vocabulary, SIZE, ends, answer)
    assert shared is not None
    constraint, generated = shared.open(reader), Generated([], reader, [], None)
    source = random.Random(1)
    while len(generated.tokens) < 500 and constraint.error is None:
        may = allowed(constraint.next())
        token = wish(len(generated.tokens), may)
        if token is None or token not in may:
            if token is None and ends <= may:
                break
            token = source.choice(sorted(may))
        if token in ends:
            break
        generated.tokens.append(token)
        generated.parts += reader.read(token)
        constraint.advance(token)
    generated.parts += reader.end()
    generated.error = constraint.error
    return generated


def generating(vocabulary: Vocabulary, text: str) -> Callable[[int, set[int]], int | None]:
    """Generates the text token by token, waiting where something else is forced; then ends."""
    rest = list(vocabulary.encode(text))

    def wish(at: int, may: set[int]) -> int | None:
        if not rest:
            return None
        return rest.pop(0) if rest[0] in may else -1

    return wish


@pytest.mark.parametrize("kind", VOCABULARIES)
@pytest.mark.parametrize("budget", [0, 1, 17])
def test_reasoning_ends_where_its_budget_is_used_up(kind: str, budget: int) -> None:
    vocabulary = VOCABULARIES[kind]
    generated = run(vocabulary, request(budget), generating(vocabulary, "a" * 40))
    closing = len(vocabulary.encode("</think>"))
    assert generated.reader.reasoning_tokens == budget + closing
    assert generated.reader.reasoning_overflow_tokens == closing
    assert generated.text(PartKind.REASONING) == "a" * budget
    assert generated.text(PartKind.CONTENT) == "a" * (40 - budget)


def test_without_reasoning_a_budget_limits_nothing() -> None:
    vocabulary = VOCABULARIES["tokens"]
    output = OutputFormat("think", "none", "<|im_start|>assistant\n")
    generated = run(vocabulary, request(0, output), generating(vocabulary, "abc"))
    assert (generated.text(PartKind.CONTENT), generated.reader.reasoning_tokens) == ("abc", 0)


def test_reasoning_within_the_budget_ends_by_itself() -> None:
    vocabulary = VOCABULARIES["tokens"]
    generated = run(vocabulary, request(9), generating(vocabulary, "abc</think>d"))
    assert generated.text(PartKind.REASONING) == "abc"
    assert (generated.reader.reasoning_tokens, generated.reader.reasoning_overflow_tokens) == (4, 0)


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_an_incomplete_character_is_completed_first(kind: str) -> None:
    vocabulary = VOCABULARIES[kind]
    generated = run(vocabulary, request(2), generating(vocabulary, "a€b"))
    assert generated.text(PartKind.REASONING) == "a€"
    assert generated.text(PartKind.CONTENT) == "b"
    assert generated.reader.reasoning_overflow_tokens == 2 + len(vocabulary.encode("</think>"))


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_incomplete_characters_without_end_are_cut_off(kind: str) -> None:
    vocabulary = VOCABULARIES[kind]
    lead = vocabulary.encode("€")[0]
    generated = run(vocabulary, request(2), lambda at, may: lead if at < 20 else None)
    assert generated.reader.reasoning_tokens == 2 + 3 + len(vocabulary.encode("</think>"))
    assert not generated.reader.parser.in_reasoning


def test_reasoning_that_begins_again_is_ended_at_once() -> None:
    vocabulary = VOCABULARIES["tokens"]
    output = OutputFormat("mixed_think", "none", OPENED)
    generated = run(vocabulary, request(2, output), generating(vocabulary, "abc<think>d"))
    assert generated.text(PartKind.REASONING) == "ab"
    assert generated.text(PartKind.CONTENT) == "cd"


def test_a_call_within_the_reasoning_does_not_keep_its_end() -> None:
    vocabulary = VOCABULARIES["text"]
    output = OutputFormat("think", "hermes", OPENED, (ToolSchema("f"),))
    text = '<tool_call>{"name": "f", "arguments": {"a": "b'
    generated = run(vocabulary, request(len(text), output), generating(vocabulary, text + "c"))
    assert generated.text(PartKind.REASONING) == text
    assert generated.text(PartKind.CONTENT) == "c"


def test_a_forced_end_is_followed_by_a_header_that_begins_no_reasoning() -> None:
    vocabulary = VOCABULARIES["tokens"]
    output = OutputFormat("harmony", "harmony", "<|start|>assistant")
    begin = "<|channel|>analysis<|message|>"
    generated = run(vocabulary, request(3, output), generating(vocabulary, begin + "abcdef"))
    assert generated.text(PartKind.REASONING) == "abc"
    assert generated.text(PartKind.CONTENT) == "def"
    openings = layout_for("harmony", "harmony").answer_openings(reads_calls=False)
    expected = [vocabulary.encode(f"{begin}abc<|end|>{opening}def") for opening in openings]
    assert tuple(generated.tokens) in expected


def test_reasoning_that_cannot_be_ended_ends_the_sequence() -> None:
    @dataclass
    class Stubborn:
        parser: OutputParser
        reasoning_tokens: int = 5
        has_partial_utf8: bool = False

    parser = OutputParser(OutputFormat("think", prompt_tail="<think>\n"))
    vocabulary = VOCABULARIES["tokens"]
    constraint = RowConstraint(
        RequestConstraint(SIZE, 5, (7, 8), (), None, None, vocabulary), Stubborn(parser)
    )
    for token in (7, 8):
        assert allowed(constraint.next()) == {token}
        constraint.advance(token)
    assert constraint.error == NOT_ENDED


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_a_grammar_constrains_the_answer_and_not_the_reasoning(kind: str) -> None:
    vocabulary = VOCABULARIES[kind]
    generated = run(
        vocabulary, request(None, None, YES), generating(vocabulary, "no, {1}</think>no")
    )
    assert generated.text(PartKind.REASONING) == "no, {1}"
    assert generated.text(PartKind.CONTENT) == "yes"


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_a_grammar_and_a_budget_may_be_combined(kind: str) -> None:
    vocabulary = VOCABULARIES[kind]
    generated = run(vocabulary, request(4, None, YES), generating(vocabulary, "abcdefgh"))
    assert generated.text(PartKind.REASONING) == "abcd"
    assert generated.text(PartKind.CONTENT) == "yes"


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_reasoning_does_not_end_a_sequence_that_owes_an_answer(kind: str) -> None:
    vocabulary = VOCABULARIES[kind]
    shared = request_constraint(
        request(None, None, YES),
        vocabulary,
        SIZE,
        frozenset({end_token(vocabulary)}),
        grammars(vocabulary, request(None, None, YES)),
    )
    assert shared is not None
    may = allowed(shared.open(OutputReader(vocabulary, request(None, None, YES))).next())
    assert end_token(vocabulary) not in may
    # Its end as text must be the end of a token.
    straddling = {token for token in range(SIZE) if vocabulary.spelled(token)[0] in (">\n", ">>")}
    assert len(straddling) == 2
    assert straddling <= may if kind == "tokens" else not straddling & may


@pytest.mark.parametrize("kind", VOCABULARIES)
@pytest.mark.parametrize("wish", ["<think>hm</think>", ""])
def test_an_answer_may_begin_with_reasoning_where_the_prompt_has_not_begun_it(
    kind: str, wish: str
) -> None:
    vocabulary = VOCABULARIES[kind]
    generate_request = request(None, OutputFormat("think", "none", "<|im_start|>assistant\n"), YES)
    generated = run(vocabulary, generate_request, generating(vocabulary, wish or "yes"))
    assert generated.text(PartKind.REASONING) == ("hm" if wish else "")
    assert generated.text(PartKind.CONTENT) == "yes"


COUNTED = ToolSchema(
    "f", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, True
)


def called(generated: Generated) -> list[str]:
    return [part.text for part in generated.parts if part.kind is PartKind.TOOL_ARGS]


def test_a_strict_tool_is_enforced_from_where_a_call_begins_to_where_it_ends() -> None:
    vocabulary = VOCABULARIES["tokens"]
    generate_request = request(
        None, OutputFormat("think", "hermes", "<|im_start|>assistant\n", (COUNTED,))
    )
    call = '<tool_call>{"name": "g", "arguments": {"n": 1}}</tool_call>'
    generated = run(vocabulary, generate_request, generating(vocabulary, f"ab{call}cd{call}e"))
    assert [text for text in called(generated) if json.loads(text).keys() != {"n"}] == []
    assert called(generated)
    assert generated.text(PartKind.CONTENT).startswith("ab")


def test_a_strict_tool_leaves_other_text_and_reasoning_free() -> None:
    vocabulary = VOCABULARIES["tokens"]
    generate_request = request(None, OutputFormat("think", "hermes", OPENED, (COUNTED,)))
    text = "a<tool_call>b</think>c, {1"
    generated = run(vocabulary, generate_request, generating(vocabulary, text))
    assert generated.tokens == list(vocabulary.encode(text))


def test_without_a_token_that_begins_calls_a_strict_tool_is_not_enforced() -> None:
    vocabulary = VOCABULARIES["text"]
    generate_request = request(None, OutputFormat("think", "hermes", OPENED, (COUNTED,)))
    assert grammars(vocabulary, generate_request) == AnswerGrammars(None, None)


def test_an_answer_may_be_one_of_as_many_texts_as_can_be_followed() -> None:
    def choices_of(count: int) -> GenerateRequest:
        texts = json.dumps([f"c{number}" for number in range(count)])
        return request(None, OutputFormat(), Constraint(ConstraintKind.CHOICE, "choice", texts))

    vocabulary, last = VOCABULARIES["tokens"], f"c{MAX_CHOICES - 1}"
    generated = run(vocabulary, choices_of(MAX_CHOICES), generating(vocabulary, last))
    assert (generated.text(PartKind.CONTENT), generated.error) == (last, None)
    with pytest.raises(
        UnsupportedConstraint, match=r"^choice cannot be enforced: it has more than 1900 texts\.$"
    ):
        grammars(vocabulary, choices_of(MAX_CHOICES + 1))


def test_a_grammar_that_fails_ends_the_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = VOCABULARIES["tokens"]
    generate_request = request(None, OutputFormat(), YES)
    reader = OutputReader(vocabulary, generate_request)
    shared = request_constraint(
        generate_request, vocabulary, SIZE, frozenset(), grammars(vocabulary, generate_request)
    )
    assert shared is not None
    constraint = shared.open(reader)
    constraint.advance(vocabulary.encode("n")[0])
    assert constraint.error is not None
    constraint.next()
    assert constraint.error.startswith("The answer's grammar cannot be followed: ")


@pytest.mark.parametrize("size", [1, 31, 32, 33, 64])
def test_masks_allow_exactly_their_tokens(size: int) -> None:
    def of(mask: Mask) -> Sequence[int]:
        assert mask.dtype == np.uint32
        return [token for token in range(size) if mask[token // 32] >> (token % 32) & 1]

    assert of(only([0, size - 1], size)) == sorted({0, size - 1})
    assert of(all_but([0], size)) == list(range(1, size))
