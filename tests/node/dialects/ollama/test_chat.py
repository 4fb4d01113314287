import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ollama import Options as SdkOptions
from ollama._types import ChatRequest, GenerateRequest

from node.dialects.ollama.chat import OLLAMA_CHAT, OllamaRequest, read_ollama_chat
from node.dialects.ollama.generate import OLLAMA_GENERATE, read_ollama_generate
from node.dialects.ollama.options import OPTIONS
from node.dialects.ollama.residency import ResidencyRequest
from node.errors import BadRequest, NodeError, Unsupported
from node.ipc.generate import ConstraintKind

USER = {"role": "user", "content": "hello"}
CALL = {"function": {"name": "f", "arguments": {"a": 1}}}


def parse(**fields: Any) -> OllamaRequest | ResidencyRequest:
    body = {"model": "m", "messages": [USER], **fields}
    return read_ollama_chat(json.dumps(body).encode(), lambda name: name.removesuffix(":latest"))


def chat(**fields: Any) -> OllamaRequest:
    parsed = parse(**fields)
    assert isinstance(parsed, OllamaRequest)
    return parsed


@pytest.mark.parametrize("table", [OLLAMA_CHAT, OPTIONS])
def test_each_field_is_in_one_class(table: Any) -> None:
    applied, refused, ignored = set(table.body.model_fields), set(table.refused), set(table.ignored)
    assert set(table.notes) == applied
    assert not applied & refused and not applied & ignored and not refused & ignored


def test_each_field_of_the_sdk_is_known() -> None:
    for table, model in (
        (OLLAMA_CHAT, ChatRequest),
        (OLLAMA_GENERATE, GenerateRequest),
        (OPTIONS, SdkOptions),
    ):
        known = {*table.body.model_fields, *table.refused, *table.ignored}
        assert set(model.model_fields) <= known


def test_a_stream_is_the_default_and_the_tag_is_optional() -> None:
    assert chat().request.stream and chat(stream=None).request.stream
    assert not chat(stream=False).request.stream
    tagged = chat(model="m:latest")
    assert (tagged.request.model, tagged.model) == ("m", "m:latest")


def test_options_are_applied() -> None:
    request = chat(
        options={
            "temperature": 0,
            "top_k": 5.0,
            "top_p": 0.5,
            "min_p": 0.1,
            "seed": 7,
            "repeat_penalty": 1.2,
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
            "num_predict": 9.0,
            "stop": ["x"],
            "num_ctx": 2048,
            "num_gpu": 1,
            "unknown": 1,
        }
    ).request
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0, 5, 0.5)
    assert (sampling.min_p, sampling.seed, sampling.repetition_penalty) == (0.1, 7, 1.2)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert (request.max_tokens, request.stops) == (9, ("x",))


def test_numbers_that_mean_no_limit_are_none() -> None:
    for limit in (0, -1, -2):
        assert chat(options={"num_predict": limit}).request.max_tokens is None
    assert chat(options={"seed": -1}).request.sampling.seed is None
    unpenalized = {"repeat_penalty": 1.5, "repeat_last_n": 0}
    assert chat(options=unpenalized).request.sampling.repetition_penalty == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"options": {"mirostat": 1}}, "options.mirostat"),
        ({"options": {"typical_p": 0.7}}, "options.typical_p"),
        ({"options": {"top_k": 1.5}}, "options.top_k"),
        ({"options": {"stop": [1]}}, "options.stop"),
        ({"options": []}, "options"),
        ({"format": "yaml"}, "format"),
        ({"think": "much"}, "think"),
        ({"think": "none"}, "think"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"keep_alive": True}, "keep_alive"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"messages": [{"role": "developer", "content": ""}]}, "messages[0].role"),
        ({"messages": [{**USER, "images": [1]}]}, "messages[0].images[0]"),
        ({"messages": [{**USER, "images": ["aGk="]}]}, "messages[0].images[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ],
)
def test_a_field_at_fault_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises((BadRequest, Unsupported)) as caught:
        parse(**fields)
    assert caught.value.param == param


def test_a_format_is_json_or_a_schema() -> None:
    assert chat(format="").request.constraint is None
    anything = chat(format="json").request.constraint
    assert anything is not None and anything.kind is ConstraintKind.JSON_OBJECT
    fitting = chat(format={"type": "object"}).request.constraint
    assert fitting is not None and fitting.kind is ConstraintKind.JSON_SCHEMA


@pytest.mark.parametrize(
    ("think", "thinks", "effort", "hides"),
    [
        (None, None, None, False),
        (True, True, None, False),
        (False, False, None, True),
        ("low", True, "low", False),
        ("max", True, "max", False),
    ],
)
def test_thinking_is_a_switch_or_an_effort(
    think: object, thinks: bool | None, effort: str | None, hides: bool
) -> None:
    parsed = chat(think=think)
    template = parsed.request.template
    assert (template.enable_thinking, template.reasoning_effort) == (thinks, effort)
    assert (parsed.hides_thinking, "reasoning" in parsed.needs) == (hides, bool(thinks))


def test_results_belong_to_the_open_call_of_their_name() -> None:
    other = {"id": "x", "function": {"name": "g", "arguments": {}}}
    messages = [
        USER,
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [CALL, other, CALL]},
        {"role": "tool", "content": "1", "tool_name": "g"},
        {"role": "tool", "content": "2", "tool_name": "f"},
        {"role": "tool", "content": "3"},
        {"role": "tool", "content": "4", "tool_call_id": "x"},
        {"role": "tool", "content": "5", "tool_name": "h"},
    ]
    read = chat(messages=messages).request.messages or ()
    assert read[1].reasoning == "hm"
    ids = [call.call_id for call in read[1].tool_calls]
    assert ids == ["call_1_0", "x", "call_1_2"]
    assert json.loads(read[1].tool_calls[0].arguments) == {"a": 1}
    assert [each.tool_call_id for each in read[2:]] == ["x", "call_1_0", "call_1_2", "x", ""]
    assert read[-1].name == "h"


def test_an_assistant_s_last_message_is_continued() -> None:
    assert chat(messages=[USER, {"role": "assistant", "content": "It"}]).request.continue_final
    assert not chat(messages=[USER]).request.continue_final
    called = {"role": "assistant", "content": "x", "tool_calls": [CALL]}
    assert not chat(messages=[USER, called]).request.continue_final


def test_a_picture_in_the_history_is_a_line_of_text() -> None:
    messages = [{**USER, "images": ["aGk="]}, {"role": "assistant", "content": "ok"}, USER]
    first = (chat(messages=messages).request.messages or ())[0]
    assert [part.text for part in first.content if not isinstance(part, str)] == [
        "[image left out: this model takes text only]",
        "hello",
    ]


def test_tools_may_lack_their_type() -> None:
    (tool,) = chat(tools=[{"function": {"name": "f", "parameters": {}}}]).request.tools
    assert tool.name == "f"
    assert "tools" in chat(tools=[{"function": {"name": "f", "parameters": {}}}]).needs
    assert chat().needs == {}


@pytest.mark.parametrize("messages", [None, []])
def test_without_messages_the_model_is_only_loaded_or_unloaded(messages: object) -> None:
    load = parse(messages=messages)
    assert load == ResidencyRequest("m", None, is_chat=True) and not load.unloads
    unload = parse(messages=messages, keep_alive=0)
    assert isinstance(unload, ResidencyRequest) and unload.unloads


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
MEMBERS = ("role", "content", "images", "tool_calls", "num_predict", "seed", "function", "name")


@given(
    st.dictionaries(
        st.sampled_from([*OLLAMA_CHAT.body.model_fields, *OLLAMA_GENERATE.body.model_fields]),
        JSON | st.lists(st.dictionaries(st.sampled_from(MEMBERS), JSON, max_size=4), max_size=3),
    )
)
def test_any_body_is_read_or_refused(fields: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", **fields}).encode()
    for read in (read_ollama_chat, read_ollama_generate):
        with contextlib.suppress(NodeError):
            read(body, str)
