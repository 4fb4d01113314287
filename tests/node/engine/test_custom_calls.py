"""The text of a custom tool is constrained to its grammar, in the spelling of every family."""

import json
import re
from typing import Any

import pytest

from node.dialects.fields.custom_input import input_of
from node.dialects.fields.custom_tools import InputGrammar, custom_tool
from node.engine.constraints.compile import is_constrained
from node.engine.constraints.grammar import GrammarFailed, Matcher, TooLarge
from node.ipc.generate import Constraint, ConstraintKind, GenerateRequest, OutputFormat, ToolSchema
from node.ipc.messages import PartKind
from node.parsing.constraints.schema import UnsupportedConstraint
from node.parsing.registry import are_compatible, tool_call_names
from tests.node.engine.constraints.test_token_constraints import (
    VOCABULARIES,
    YES,
    generating,
    grammars,
    run,
)

LINES = 'start: line ~ 1..2 "end"\nline: ("+" | "<") /[a-c"\\\\ü]{1,3}/ LF\n%import common.LF'
RECURSIVE = 'start: "(" start? ")"'
FORMATS = [name for name in tool_call_names() if name != "none"]


def schema_of(definition: str, **fields: Any) -> ToolSchema:
    tool = custom_tool("f", None, InputGrammar("lark", definition, "P"), "tools[0]")
    given: dict[str, Any] = {"name": "f", "parameters": dict(tool.constrained_parameters)}
    given |= {"strict_if_possible": tool.pattern is not None, "param": tool.param}
    return ToolSchema(**{**given, **fields})


def request_of(
    name: str, *tools: ToolSchema, must_call: bool, constraint: Constraint | None = None
) -> GenerateRequest:
    output = OutputFormat(
        "none" if are_compatible("think", name) else name,
        name,
        "<|im_start|>assistant\n",
        tools,
        must_call=must_call,
        parallel_calls=False,
    )
    # Where the format lets it reason first, it would not end by itself.
    return GenerateRequest("u", (), 999, output=output, constraint=constraint, thinking_tokens=8)


@pytest.mark.parametrize("kind", VOCABULARIES)
@pytest.mark.parametrize("name", FORMATS)
def test_a_forced_call_of_any_family_has_a_text_of_the_grammar(name: str, kind: str) -> None:
    generated = run(
        VOCABULARIES[kind],
        request_of(name, schema_of(LINES), must_call=True),
        lambda _at, may: min(may) if len(may) == 1 else None,
    )
    assert generated.error is None
    (start,) = [part for part in generated.parts if part.kind is PartKind.TOOL_START]
    arguments = generated.text(PartKind.TOOL_ARGS)
    assert start.name == "f"
    assert json.loads(arguments).keys() == {"input"}
    assert re.fullmatch('(?:[+<][a-c"\\\\ü]{1,3}\n){1,2}end', input_of(arguments))


WISHED = (
    '{"name": "f", "arguments": {"input": "nothing of a grammar"}}</tool_call>',
    "<tool_call>",
)


def test_an_unforced_call_is_constrained_where_a_token_begins_it() -> None:
    vocabulary, text = VOCABULARIES["tokens"], f"I do.{WISHED[1]}{WISHED[0]}"
    request = request_of("hermes", schema_of(LINES), must_call=False)
    generated = run(vocabulary, request, generating(vocabulary, text))
    assert generated.text(PartKind.CONTENT) == "I do."
    written = input_of(generated.text(PartKind.TOOL_ARGS))
    assert re.fullmatch('(?:[+<][a-c"\\\\ü]{1,3}\n){1,2}end', written)
    assert not grammars(VOCABULARIES["tokens"], request).is_empty


def test_elsewhere_it_is_free() -> None:
    assert grammars(
        VOCABULARIES["text"], request_of("hermes", schema_of(LINES), must_call=False)
    ).is_empty


@pytest.mark.parametrize(
    "schema",
    [{"pattern": "(?=a)"}, {"enum": ["x" * 200_000, "y" * 200_000]}],
    ids=["not a pattern", "too large"],
)
def test_a_text_that_cannot_be_constrained_is_free_unless_it_is_forced(
    schema: dict[str, Any],
) -> None:
    vocabulary, text = VOCABULARIES["tokens"], f"{WISHED[1]}{WISHED[0]}"
    tool = schema_of(LINES, parameters={"type": "object", "properties": {"input": schema}})
    generated = run(
        vocabulary, request_of("hermes", tool, must_call=False), generating(vocabulary, text)
    )
    assert input_of(generated.text(PartKind.TOOL_ARGS)) == "nothing of a grammar"
    with pytest.raises(UnsupportedConstraint) as caught:
        grammars(vocabulary, request_of("hermes", tool, must_call=True))
    assert caught.value.param == "P"


def test_texts_that_are_too_large_together_are_free() -> None:
    vocabulary = VOCABULARIES["tokens"]
    large = [{"properties": {"input": {"enum": [char * 200_000]}}} for char in "xy"]
    tools = [schema_of(LINES, name=f"f{i}", parameters=each) for i, each in enumerate(large)]
    request = request_of("hermes", *tools, must_call=False)
    assert grammars(vocabulary, request).is_empty
    strict = ToolSchema("h", {"properties": {"x": {"const": 5}}}, strict=True)
    answer = grammars(vocabulary, request_of("hermes", *tools, strict, must_call=False))
    assert answer.calls is not None
    with pytest.raises(TooLarge):
        grammars(vocabulary, request_of("hermes", *tools, must_call=True))


def test_other_tools_are_constrained_all_the_same() -> None:
    vocabulary = VOCABULARIES["tokens"]
    bad = schema_of(LINES, parameters={"properties": {"input": {"pattern": "(?=a)"}}})
    strict = ToolSchema("g", {"properties": {"x": {"const": 5}}}, strict=True)
    answer = grammars(vocabulary, request_of("hermes", bad, strict, must_call=False))
    assert answer.calls is not None
    assert not answer.is_best_effort
    alone = grammars(vocabulary, request_of("hermes", schema_of(LINES), must_call=False))
    assert alone.is_best_effort
    both = request_of("hermes", bad, must_call=False, constraint=YES)
    assert grammars(vocabulary, both).at_begin is not None


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_grammar_that_becomes_too_complex_ends_only_sequences_that_require_it(
    monkeypatch: pytest.MonkeyPatch, *, is_strict: bool
) -> None:
    vocabulary, text = VOCABULARIES["tokens"], f"{WISHED[1]}{WISHED[0]}"

    def fail(_self: Matcher, token: int) -> None:
        raise GrammarFailed("The grammar has become too complex.")

    monkeypatch.setattr(Matcher, "consume", fail)
    tool = schema_of(LINES, strict=is_strict)
    generated = run(
        vocabulary, request_of("hermes", tool, must_call=False), generating(vocabulary, text)
    )
    assert (generated.error is None) != is_strict
    if not is_strict:
        assert input_of(generated.text(PartKind.TOOL_ARGS)) == "nothing of a grammar"


def test_a_grammar_without_a_pattern_does_not_constrain() -> None:
    tool = schema_of(RECURSIVE)
    assert not tool.strict_if_possible
    assert "pattern" not in tool.parameters["properties"]["input"]
    assert not is_constrained(request_of("hermes", tool, must_call=False))


def test_a_request_without_tools_is_constrained_only_by_its_own_constraint() -> None:
    assert not is_constrained(request_of("hermes", must_call=False))
    plain = Constraint(ConstraintKind.REGEX, "r", "a+")
    assert is_constrained(request_of("hermes", must_call=False, constraint=plain))
