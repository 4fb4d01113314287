"""Grammars of answers: what compiles, what is refused, and with which sentence."""

import json
import threading
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from node.engine.constraints.compile import AnswerGrammars, compile_answer, is_constrained
from node.engine.constraints.grammar import (
    MAX_GRAMMAR_LENGTH,
    Compiler,
    GrammarFailed,
    Matcher,
    TooLarge,
)
from node.engine.model.detokenizer import Vocabulary
from node.engine.sampling.token_mask import only
from node.ipc.generate import (
    JSON_KINDS,
    Constraint,
    ConstraintKind,
    GenerateRequest,
    OutputFormat,
    ToolSchema,
)
from node.parsing.constraints.schema import UnsupportedConstraint
from tests.node.engine.byte_vocabulary import END, MERGED, byte_vocabulary

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
VOCABULARY = byte_vocabulary(MARKERS, MERGED)
SIZE = 320
TOKENS = {token.text: number for number, token in VOCABULARY.added.items()}
ANY = {"type": "object"}
IMPOSSIBLE = {"type": "string", "enum": [1]}


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    made = Compiler(VOCABULARY, SIZE, {TOKENS[END]})
    yield made
    made.close()


def request(
    constraint: Constraint | None = None, output: OutputFormat | None = None
) -> GenerateRequest:
    return GenerateRequest("u", (1,), 9, constraint=constraint, output=output)


def compiled(compiler: Compiler, generate_request: GenerateRequest) -> AnswerGrammars:
    return compiler.submit(lambda: compile_answer(compiler, generate_request, TOKENS)).result(60)


def refusal(compiler: Compiler, generate_request: GenerateRequest) -> UnsupportedConstraint:
    with pytest.raises(UnsupportedConstraint) as caught:
        compiled(compiler, generate_request)
    return caught.value


def at_begin(answer: AnswerGrammars) -> Matcher:
    assert answer.at_begin is not None
    return answer.at_begin.open()


def behind_reasoning(answer: AnswerGrammars) -> Matcher:
    assert answer.behind_reasoning is not None
    return answer.behind_reasoning.open()


def allows(matcher: Matcher, text: str) -> bool:
    """Returns True if the whole output may be the text, spelled in bytes and markers."""
    for token in (*VOCABULARY.encode(text), TOKENS[END]):
        bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
        if not bits[token]:
            return False
        if token != TOKENS[END]:
            matcher.consume(token)
    return True


def follows(matcher: Matcher, text: str) -> bool:
    """Returns True if the output may continue with the text, spelled in bytes alone."""
    for character in text:
        token = VOCABULARY.encode(character)[0]
        if not np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")[token]:
            return False
        matcher.consume(token)
    return True


def constraint(kind: ConstraintKind, text: str = "") -> Constraint:
    return Constraint(kind, "field", text)


@pytest.mark.parametrize(
    ("given", "good", "bad"),
    [
        (constraint(ConstraintKind.JSON_OBJECT), '{"a": [1, null]}', "[1]"),
        (constraint(ConstraintKind.JSON_SCHEMA, '{"type": "integer"}'), "17", '"a"'),
        (constraint(ConstraintKind.REGEX, "[ab]+/c"), "abba/c", "abc"),
        (constraint(ConstraintKind.REGEX, "^(ab|cd)$"), "cd", "abcd"),
        (constraint(ConstraintKind.CHOICE, '["yes", "<think>"]'), "yes", "no"),
        (constraint(ConstraintKind.LARK, 'start: "a" r0\nr0: "b"'), "ab", "ba"),
        (constraint(ConstraintKind.LARK, 'start: %json {"const": 1} "!"'), "1!", "1"),
    ],
)
@pytest.mark.parametrize("output", [None, OutputFormat("think", "hermes")])
def test_a_constraint_applies_to_the_text_with_formats_and_without(
    compiler: Compiler, given: Constraint, good: str, bad: str, output: OutputFormat | None
) -> None:
    answer = compiled(compiler, request(given, output))
    for opened in (at_begin, behind_reasoning):
        assert allows(opened(answer), good)
        assert not allows(opened(answer), bad)
    assert allows(at_begin(answer), "<think>") is (output is not None)
    assert not allows(behind_reasoning(answer), "<think>")


@pytest.mark.parametrize("kind", ConstraintKind)
def test_only_json_may_stand_in_a_code_fence_and_only_where_that_is_read(
    compiler: Compiler, kind: ConstraintKind
) -> None:
    text = {
        ConstraintKind.JSON_SCHEMA: '{"type": "object"}',
        ConstraintKind.REGEX: r"\{\}",
        ConstraintKind.CHOICE: '["{}"]',
        ConstraintKind.LARK: 'start: "{}"',
    }.get(kind, "")
    fenced = "```json\n{}\n```"
    for tail in ("", "</think>\n\n", "So it is"):
        for is_json in (True, False):
            output = OutputFormat("think", "hermes", tail, is_json=is_json)
            answer = compiled(compiler, request(constraint(kind, text), output))
            assert allows(at_begin(answer), "{}")
            assert allows(at_begin(answer), fenced) is (
                is_json and kind in JSON_KINDS and tail != "So it is"
            )
            assert allows(behind_reasoning(answer), fenced) is (is_json and kind in JSON_KINDS)
    assert not allows(at_begin(compiled(compiler, request(constraint(kind, text)))), fenced)


SEPARATED = {"type": "object", "properties": {"</think>": {"enum": ["<|im_end|>", "<think>"]}}}
SEPARATOR = '{"</think>": "<|im_end|>"}'


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (constraint(ConstraintKind.CHOICE, '["a <|im_end|> b"]'), "a <|im_end|> b"),
        (constraint(ConstraintKind.REGEX, r"<think>(a|</think>)"), "<think></think>"),
        (constraint(ConstraintKind.JSON_SCHEMA, '{"const": "<tool_call>"}'), '"<tool_call>"'),
        (constraint(ConstraintKind.JSON_SCHEMA, json.dumps(SEPARATED)), SEPARATOR),
        (constraint(ConstraintKind.LARK, 'start: "<|im_end|>" x\nx: "b" # no'), "<|im_end|>b"),
        (
            constraint(ConstraintKind.LARK, '%llguidance {"no_forcing": false}\nstart: "<think>"'),
            "<think>",
        ),
        (
            constraint(ConstraintKind.LARK, 'start: "<think>"\n%llguidance {"no_forcing": false}'),
            "<think>",
        ),
        (constraint(ConstraintKind.LARK, 'start: %lark {\nstart: "<think>"\n}'), "<think>"),
    ],
)
@pytest.mark.parametrize("output", [None, OutputFormat("think", "hermes")])
def test_markup_in_a_constraint_is_text(
    compiler: Compiler, given: Constraint, text: str, output: OutputFormat | None
) -> None:
    matcher = behind_reasoning(compiled(compiler, request(given, output)))
    assert follows(matcher, text)
    assert matcher.is_accepting


def test_markup_in_arguments_is_text(compiler: Compiler) -> None:
    schema = {**SEPARATED, "required": ["</think>"], "additionalProperties": False}
    tools = (ToolSchema("f", schema),)
    output = OutputFormat("think", "hermes", tools=tools, must_call=True)
    matcher = behind_reasoning(compiled(compiler, request(None, output)))
    matcher.consume(TOKENS["<tool_call>"])
    assert follows(matcher, '\n{"name": "f", "arguments": ' + SEPARATOR + "}\n")
    matcher.consume(TOKENS["</tool_call>"])
    assert matcher.is_accepting


def test_a_marker_that_a_clients_grammar_means_as_a_token_is_one(compiler: Compiler) -> None:
    given = constraint(ConstraintKind.LARK, 'start: "a" <think> "b"')
    assert allows(at_begin(compiled(compiler, request(given))), "a<think>b")


def test_markup_in_a_choice_is_text(compiler: Compiler) -> None:
    given = constraint(ConstraintKind.CHOICE, '["<think>"]')
    matcher = at_begin(compiled(compiler, request(given)))
    for character in "<think>":
        matcher.consume(VOCABULARY.encode(character)[0])
    assert matcher.is_accepting


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            constraint(ConstraintKind.JSON_SCHEMA, json.dumps(IMPOSSIBLE)),
            "field cannot be enforced: Unsatisfiable schema: incompatible types.",
        ),
        (
            constraint(ConstraintKind.REGEX, "(ab"),
            "field cannot be enforced: unclosed group, in a regular expression.",
        ),
        (
            constraint(ConstraintKind.LARK, 'start: "a" tail\n'),
            'field cannot be enforced: line 1, column 8: unknown name: "tail".',
        ),
        (
            constraint(ConstraintKind.LARK, "start: @other"),
            "field cannot be enforced: unknown grammar @other.",
        ),
        (
            constraint(ConstraintKind.LARK, "start: TEXT\nTEXT: /a/ & /b/"),
            "field cannot be enforced: nothing matches it.",
        ),
        (
            constraint(ConstraintKind.LARK, 'start: "a" start | "b" start'),
            "field cannot be enforced: nothing matches it.",
        ),
        (
            constraint(ConstraintKind.REGEX, r"[^\s\S]"),
            "field cannot be enforced: nothing matches it.",
        ),
    ],
)
@pytest.mark.parametrize("output", [None, OutputFormat("think", "hermes")])
def test_what_cannot_be_enforced_is_reported_in_a_sentence(
    compiler: Compiler, given: Constraint, reason: str, output: OutputFormat | None
) -> None:
    error = refusal(compiler, request(given, output))
    assert (str(error), error.param) == (reason, "field")


def test_the_schema_of_a_tool_that_must_be_called_is_at_fault_by_its_own_field(
    compiler: Compiler,
) -> None:
    tools = (ToolSchema("f", ANY), ToolSchema("g", IMPOSSIBLE, param="tools[1].parameters"))
    output = OutputFormat("think", "hermes", tools=tools, must_call=True)
    error = refusal(compiler, request(None, output))
    assert error.param == "tools[1].parameters"
    assert str(error).startswith("tools[1].parameters cannot be enforced: ")


def test_beside_a_constraint_a_schema_that_cannot_be_enforced_is_any_object(
    compiler: Compiler,
) -> None:
    tools = (ToolSchema("f", IMPOSSIBLE),)
    given = constraint(ConstraintKind.CHOICE, '["yes"]')
    answer = compiled(compiler, request(given, OutputFormat("think", "hermes", tools=tools)))
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert allows(behind_reasoning(answer), call)
    assert allows(behind_reasoning(answer), "yes")


def test_beside_a_constraint_a_strict_schema_must_be_enforceable(compiler: Compiler) -> None:
    tools = (ToolSchema("f", IMPOSSIBLE, strict=True, param="tools[0]"),)
    given = constraint(ConstraintKind.CHOICE, '["yes"]')
    error = refusal(compiler, request(given, OutputFormat("think", "hermes", tools=tools)))
    assert error.param == "tools[0]"


def test_a_forced_call_is_the_whole_answer(compiler: Compiler) -> None:
    output = OutputFormat("think", "hermes", tools=(ToolSchema("f", ANY),), must_call=True)
    generate_request = request(constraint(ConstraintKind.CHOICE, '["yes"]'), output)
    assert is_constrained(generate_request)
    answer = compiled(compiler, generate_request)
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert allows(at_begin(answer), call)
    assert allows(at_begin(answer), "<think>hm")
    assert not allows(at_begin(answer), "yes")


@pytest.mark.parametrize(
    "bad", [{"type": "string", "enum": [1]}, {"type": "object", "not": {"const": 1}}]
)
def test_a_constraint_that_a_call_precedes_must_be_enforceable(
    compiler: Compiler, bad: object
) -> None:
    output = OutputFormat("think", "hermes", tools=(ToolSchema("f", ANY),), must_call=True)
    given = constraint(ConstraintKind.JSON_SCHEMA, json.dumps(bad))
    assert refusal(compiler, request(given, output)).param == "field"


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "harmony", "qwen3_coder"])
def test_a_strict_schema_that_cannot_be_enforced_is_refused_where_calls_begin_with_text_too(
    compiler: Compiler, name: str
) -> None:
    good = ToolSchema("g", ANY, strict=True)
    for parameters in ({"type": "object", "properties": {"a": IMPOSSIBLE}, "required": ["a"]}, ANY):
        tools = (good, ToolSchema("f", parameters, strict=True, param="tools[1]"))
        generate_request = request(None, OutputFormat("none", name, tools=tools))
        job = compiler.submit(
            partial(compile_answer, compiler, generate_request, {END: TOKENS[END]})
        )
        if parameters is ANY:
            assert job.result(60) == AnswerGrammars(None, None)
            continue
        with pytest.raises(UnsupportedConstraint) as caught:
            job.result(60)
        assert caught.value.param == "tools[1]"
        assert "cannot be constrained" in str(caught.value)


def test_only_an_answer_with_a_grammar_is_constrained() -> None:
    tools = (ToolSchema("f", ANY),)
    assert not is_constrained(request(None, OutputFormat("think", "hermes", tools=tools)))


def test_a_repeated_grammar_is_not_compiled_again(compiler: Compiler) -> None:
    generate_request = request(constraint(ConstraintKind.REGEX, "ab"))
    first, second = compiled(compiler, generate_request), compiled(compiler, generate_request)
    assert first.at_begin is second.at_begin
    for number in range(80):
        compiled(compiler, request(constraint(ConstraintKind.REGEX, f"a{number}")))
    assert compiled(compiler, generate_request).at_begin is not first.at_begin


def test_outputs_of_a_grammar_continue_independently(compiler: Compiler) -> None:
    answer = compiled(compiler, request(constraint(ConstraintKind.REGEX, "ab")))
    one, other = at_begin(answer), at_begin(answer)
    one.consume(VOCABULARY.encode("a")[0])
    assert allows(one, "b")
    assert allows(other, "ab")


def test_a_token_that_the_grammar_does_not_allow_is_an_error(compiler: Compiler) -> None:
    matcher = at_begin(compiled(compiler, request(constraint(ConstraintKind.REGEX, "ab"))))
    with pytest.raises(GrammarFailed, match="The answer's grammar cannot be followed"):
        matcher.consume(VOCABULARY.encode("x")[0])


@pytest.mark.parametrize("size", [SIZE, SIZE + 1])
def test_a_mask_is_as_long_as_the_vocabulary(size: int) -> None:
    compiler = Compiler(VOCABULARY, size, {TOKENS[END]})
    matcher = at_begin(compiled(compiler, request(constraint(ConstraintKind.REGEX, "ab"))))
    compiler.close()
    assert matcher.mask().shape == only([0], size).shape


def test_a_grammar_of_tokens_that_the_model_has_not_allows_none() -> None:
    # The logits are narrower than the vocabulary.
    compiler = Compiler(VOCABULARY, 256, set(VOCABULARY.encode("a")))
    grammar = compiler.submit(lambda: compiler.compile("start: <[258]>", "p")).result(60)
    compiler.close()
    with pytest.raises(GrammarFailed, match="no token of the model"):
        grammar.open().mask()


def test_a_grammar_that_is_too_large_is_refused(compiler: Compiler) -> None:
    given = constraint(ConstraintKind.REGEX, "a" * (MAX_GRAMMAR_LENGTH + 1))
    assert str(refusal(compiler, request(given))) == "field makes a grammar that is too large."


def test_tools_that_are_too_large_together_are_refused_at_once(compiler: Compiler) -> None:
    names = ("a" * 1000, "b" * 1000)
    tools = tuple(
        ToolSchema(name[0], {"properties": {"p": {"enum": [f"{name}{at}" for at in range(200)]}}})
        for name in names
    )
    output = OutputFormat("none", "hermes", tools=tools, must_call=True)
    error = refusal(compiler, request(None, output))
    assert (type(error), error.param) == (TooLarge, "tool_choice")


def test_an_engine_that_ends_does_not_wait_for_a_grammar_and_begins_none() -> None:
    compiler = Compiler(VOCABULARY, SIZE, {TOKENS[END]})
    began, goes_on = threading.Event(), threading.Event()

    def slow() -> bool:
        began.set()
        return goes_on.wait(60)

    running = compiler.submit(slow)
    assert began.wait(60)
    waiting = compiler.submit(lambda: True)
    compiler.close()
    assert waiting.cancelled()
    assert not running.done()
    goes_on.set()
    assert running.result(60)


def test_the_vocabulary_is_prepared_for_the_first_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    read = type(VOCABULARY).tokenizer_json
    prepared: list[bool] = []

    def tokenizer_json(self: Vocabulary) -> str:
        prepared.append(True)
        return read(self)

    monkeypatch.setattr(type(VOCABULARY), "tokenizer_json", tokenizer_json)
    unused, used = (Compiler(VOCABULARY, SIZE, {TOKENS[END]}) for _ in range(2))
    unused.close()
    unused._thread.shutdown(wait=True)
    assert prepared == []
    compiled(used, request(constraint(ConstraintKind.REGEX, "ab")))
    used.close()
    assert prepared == [True]


def test_a_model_without_an_end_token_enforces_nothing() -> None:
    compiler = Compiler(VOCABULARY, SIZE, set())
    error = refusal(compiler, request(constraint(ConstraintKind.REGEX, "a")))
    compiler.close()
    assert str(error) == "field cannot be enforced: the model has no end token."


def test_a_vocabulary_that_the_library_cannot_read_enforces_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(VOCABULARY), "tokenizer_json", lambda self: "{}")
    compiler = Compiler(VOCABULARY, SIZE, {TOKENS[END]})
    error = refusal(compiler, request(constraint(ConstraintKind.REGEX, "a")))
    compiler.close()
    assert str(error).startswith(
        "field cannot be enforced: the model's vocabulary has no known form"
    )


def test_an_end_of_reasoning_that_is_text_is_ended_with_its_last_token(compiler: Compiler) -> None:
    generate_request = request(
        constraint(ConstraintKind.REGEX, "a"), OutputFormat("think", "hermes")
    )
    assert not compiled(compiler, generate_request).straddling
    plain = {END: TOKENS[END]}
    answer = compiler.submit(lambda: compile_answer(compiler, generate_request, plain)).result(60)
    assert {VOCABULARY.spelled(token)[0] for token in answer.straddling} == {">\n", ">>"}
