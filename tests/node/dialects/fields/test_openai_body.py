"""Fields that chat and completions share are parsed in the same way."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from node.dialects.base import DialectRequest
from node.dialects.chat.body import CHAT, read_chat
from node.dialects.completions.completions import COMPLETIONS, read_completion
from node.dialects.fields.openai_body import REFUSED, usage_fields
from node.dialects.fields.refusals import IGNORED
from node.errors import BadRequest, EngineFault, Unsupported
from node.ipc.generate import Constraint, ConstraintKind, SamplingParams
from node.ipc.messages import RowUsage
from node.request import TextRequest
from tests.node.dialects.openai_stream import HEAD, chunks, last

SAMPLING = {
    "temperature": 0,
    "top_p": 0.5,
    "top_k": 40,
    "min_p": 0.1,
    "seed": -3,
    "repetition_penalty": 1.1,
    "presence_penalty": -2,
    "frequency_penalty": 2,
}


def chat(**fields: Any) -> DialectRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return read_chat(json.dumps(body).encode())


def completion(**fields: Any) -> DialectRequest:
    return read_completion(json.dumps({"model": "m", "prompt": "hi", **fields}).encode())


READERS = pytest.mark.parametrize("read", [chat, completion])


def request(parsed: DialectRequest) -> TextRequest:
    return parsed.request


def usages(parsed: DialectRequest) -> list[Any]:
    return [chunk.get("usage") for chunk in chunks(parsed.writer(HEAD).ending(last()))]


@READERS
def test_absent_fields_take_openais_defaults(read: Callable[..., DialectRequest]) -> None:
    text_request = read().request
    assert text_request.sampling == SamplingParams(temperature=1.0)
    assert text_request.stops == ()
    assert text_request.max_tokens is None
    assert not text_request.stream
    assert usages(read()) == [None] * len(usages(read()))


@READERS
def test_null_means_absent(read: Callable[..., DialectRequest]) -> None:
    table = CHAT if read is chat else COMPLETIONS
    fields = {*table.body.model_fields, *table.refused, *table.ignored}
    nulls = dict.fromkeys(fields - {"model", "messages", "prompt"})
    assert read(**nulls) == read()


@READERS
def test_sampling_stops_and_stream_arrive(read: Callable[..., DialectRequest]) -> None:
    text_request = read(**SAMPLING, logit_bias={"5": 1}, stop=["a", "b"], stream=True).request
    assert text_request.sampling == SamplingParams(**SAMPLING, logit_bias=((5, 1),))  # type: ignore[arg-type]
    assert text_request.stops == ("a", "b")
    assert text_request.stream


@READERS
def test_max_completion_tokens_wins(read: Callable[..., DialectRequest]) -> None:
    assert read(max_tokens=3, max_completion_tokens=5).request.max_tokens == 5
    assert read(max_tokens=3).request.max_tokens == 3
    assert read(max_tokens=10**30).request.max_tokens == 2**31 - 1


@READERS
def test_a_chunk_of_usage_is_sent_where_stream_options_request_it(
    read: Callable[..., DialectRequest],
) -> None:
    assert usages(read(stream=True, stream_options={"include_usage": True}))[-1] is not None
    for options in ({}, {"include_usage": False}, {"include_obfuscation": True}):
        assert not any(usages(read(stream=True, stream_options=options)))


@READERS
def test_a_refusal_states_what_is_allowed(read: Callable[..., DialectRequest]) -> None:
    with pytest.raises(Unsupported, match="it may be null or 1"):
        read(typical_p=0.5)
    with pytest.raises(Unsupported, match="does not support prompt_logprobs; leave it out"):
        read(prompt_logprobs=3)


@READERS
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}, "n": 1, "best_of": 1},
        {"logprobs": False, "top_logprobs": 0, "echo": False, "suffix": ""},
        {"store": False, "service_tier": "auto", "timeout": None},
        {"service_tier": "priority", "user": "me", "metadata": {"a": "b"}},
        {"prompt_cache_key": "k", "safety_identifier": "s", "prompt_cache_retention": "24h"},
        {"tools": [], "tool_choice": "none", "functions": [], "function_call": "none"},
        {"dry_multiplier": 0, "dry_base": 2, "xtc_probability": 0.0, "typical_p": 1.0},
        {"skip_special_tokens": True, "ignore_eos": False, "min_tokens": 0},
        {"nobody_knows_this": {"at": "all"}},
    ],
)
def test_values_without_effect_pass(
    read: Callable[..., DialectRequest], fields: dict[str, Any]
) -> None:
    assert read(**fields) == read()


@READERS
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"structured_outputs": "a"}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_grammar": 5}, "guided_grammar"),
    ],
)
def test_a_value_that_is_not_valid_is_refused_with_its_field(
    read: Callable[..., DialectRequest], fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        read(**fields)
    assert not isinstance(caught.value, Unsupported)
    assert caught.value.param == param
    assert caught.value.status == 400
    assert caught.value.message.endswith(".")


@READERS
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag"),
        (
            {"structured_outputs": {"whitespace_pattern": "a"}},
            "structured_outputs.whitespace_pattern",
        ),
        ({"regex": "a"}, "regex"),
        ({"grammar": "root ::= a"}, "grammar"),
        ({"json_schema": {}}, "json_schema"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"dry_multiplier": 0.8}, "dry_multiplier"),
        ({"xtc_probability": 0.1}, "xtc_probability"),
        ({"min_tokens": 5}, "min_tokens"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"timeout": 5}, "timeout"),
        ({"store": True}, "store"),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_and_not_ignored(
    read: Callable[..., DialectRequest], fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(Unsupported, match=r"\.$") as caught:
        read(**fields)
    assert caught.value.param == param


@READERS
def test_an_answer_has_one_constraint_by_any_name(read: Callable[..., DialectRequest]) -> None:
    assert read().request.constraint is None
    constraint = read(response_format={"type": "json_object"}).request.constraint
    assert constraint == Constraint(ConstraintKind.JSON_OBJECT, "response_format")
    constraint = read(guided_regex="a+", response_format={"type": "text"}).request.constraint
    assert constraint == Constraint(ConstraintKind.REGEX, "guided_regex", "a+")


@READERS
def test_several_answers_are_several_choices(read: Callable[..., DialectRequest]) -> None:
    assert read().request.choices == read(n=1).request.choices == 1
    assert read(n=16).request.choices == 16


@READERS
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_every_refused_field_accepts_null_and_refuses_an_object(
    read: Callable[..., DialectRequest], name: str
) -> None:
    assert REFUSED[name].is_neutral(None)
    with pytest.raises(Unsupported) as caught:
        read(**{name: {"a": 1}})
    assert caught.value.param == name


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_labels_and_hints_change_nothing(name: str) -> None:
    assert chat(**{name: {"a": 1}}) == chat()


@pytest.mark.parametrize("parse", [read_chat, read_completion])
@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[]", b"5", b"null", b"[" * 5000, b'{"model": "\\ud800"}']
)
def test_a_body_that_is_no_json_object_is_refused_with_a_sentence(
    parse: Callable[[bytes], DialectRequest], body: bytes
) -> None:
    with pytest.raises(BadRequest, match=r"\.$"):
        parse(body)


def test_usage_counts_cached_and_reasoning_tokens_and_must_be_there() -> None:
    usage = usage_fields(last().usage)
    assert usage["total_tokens"] == 12
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 2}
    with pytest.raises(EngineFault):
        usage_fields(None)


def test_reasoning_beyond_its_limit_is_reported_where_there_is_some() -> None:
    over = RowUsage(7, 3, 5, 0.1, 0.2, 0.3, reasoning_tokens=4, reasoning_overflow_tokens=1)
    assert usage_fields(over)["completion_tokens_details"] == {
        "reasoning_tokens": 4,
        "reasoning_overflow_tokens": 1,
    }
