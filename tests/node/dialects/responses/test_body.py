"""The body of `/v1/responses` and its fields."""

import json
from typing import Any

import pytest
from openai.types.responses import response_create_params

from node.dialects.base import DialectRequest, ResponseHead, Writer
from node.dialects.responses.body import ResponsesRequest, read_responses
from node.dialects.responses.fields import LOGPROBS, RESPONSES, ResponsesBody
from node.dialects.responses.input import History
from node.errors import BadRequest, UnknownItem
from node.ipc.generate import Constraint, ConstraintKind
from node.request import NO_ITEM, LeftOut, Message, TemplateOptions, TextPart, TextRequest

HI = {"model": "m", "input": "hi"}


def read(**fields: Any) -> ResponsesRequest:
    return read_responses(json.dumps({**HI, **fields}).encode())


def request(**fields: Any) -> TextRequest:
    return read(**fields).request


def refused(**fields: Any) -> str:
    """Returns the field that the refusal names."""
    with pytest.raises(BadRequest) as caught:
        read(**fields)
    assert caught.value.param is not None
    return caught.value.param


def test_a_plain_body_gets_the_defaults() -> None:
    parsed = read()
    assert parsed.request.messages == (Message("user", "hi"),)
    assert (parsed.request.stream, parsed.request.max_tokens) == (False, None)
    assert parsed.request.prompt_field == "input"
    assert parsed.request.parallel_tool_calls
    assert parsed.request.template == TemplateOptions()
    assert (parsed.facts.store, parsed.facts.previous_id, parsed.needs_history) == (
        True,
        None,
        False,
    )


def test_a_read_body_is_what_every_dialect_gives() -> None:
    parsed: DialectRequest = read()
    writer: Writer = parsed.writer(ResponseHead("0123456789abcdef-r1", "m", 1))
    assert writer.keep_alive.startswith(b":")


def test_sampling_and_ends_are_applied() -> None:
    text_request = request(
        temperature=0, top_p=0.5, top_k=3, seed=4, max_output_tokens=9, stop=["a"], stream=True
    )
    sampling = text_request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0, 0.5, 3, 4)
    assert (text_request.max_tokens, text_request.stops, text_request.stream) == (9, ("a",), True)


def test_instructions_precede_all_else_as_they_are() -> None:
    # The prompt is made without lines that always change, and without a turn of nothing else.
    text = "x-anthropic-billing-header: cc=1\nBe brief."
    messages = request(instructions=text).messages
    assert messages == (Message("system", text), Message("user", "hi"))


def test_the_effort_is_passed_to_the_template_and_none_turns_thinking_off() -> None:
    assert request(reasoning={"effort": "low"}).template == TemplateOptions(None, "low")
    assert request(reasoning={"effort": "none"}).template == TemplateOptions(enable_thinking=False)
    assert request(enable_thinking=True).template == TemplateOptions(enable_thinking=True)
    assert request(chat_template_kwargs={"x": 1}).template.kwargs == {"x": 1}


@pytest.mark.parametrize("field", ["summary", "generate_summary"])
def test_a_summary_is_requested_by_either_name(field: str) -> None:
    for kind in ("auto", "concise", "detailed", None):
        assert read(reasoning={field: kind}).facts.summary == kind
    assert read(reasoning={field: "auto", "summary": "detailed"}).facts.summary == "detailed"


def test_hints_change_nothing() -> None:
    plain = read().request
    for fields in (
        {"text": {"verbosity": "low"}},
        {"reasoning": {"context": "all_turns"}},
        {"service_tier": "priority"},
        {"verbosity": "high"},
        {"context_management": [{"type": "compaction", "compact_threshold": 200000}]},
    ):
        assert read(**fields).request == plain
    with pytest.raises(BadRequest) as caught:
        read(reasoning={"summary": "long"})
    assert caught.value.param == "reasoning.summary"


def test_an_empty_input_that_requests_one_token_is_answered() -> None:
    parsed = read(input=[], max_output_tokens=1)
    assert parsed.request.messages == (Message("user"),)
    assert parsed.request.messages[0].source == NO_ITEM
    assert parsed.items == ()
    assert refused(input=[]) == refused(input=[], max_output_tokens=2) == "input"


FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
ADDING = {"type": "additional_tools", "role": "developer", "tools": [FUNCTION]}
USER = {"type": "message", "role": "user", "content": "hi"}


def test_an_item_adds_tools_to_the_body_s_own() -> None:
    plain = {**FUNCTION, "name": "g"}
    parsed = read(input=[ADDING, USER], tools=[plain])
    assert [tool.name for tool in parsed.request.tools] == ["g", "f"]
    assert [tool["name"] for tool in parsed.facts.tool_set.shown] == ["g", "f"]
    assert parsed.request.messages == (Message("user", "hi"),)
    named = read(input=[ADDING, USER], tool_choice={"type": "function", "name": "f"})
    assert named.request.callable_tools == ("f",)
    # A tool that is added again is the one added last; the template still shows the first.
    newer = {**ADDING, "tools": [{**FUNCTION, "description": "New."}]}
    later = read(input=[ADDING, USER, newer]).request
    assert later.tools == parsed.request.tools[1:]
    assert [tool.function.get("description") for tool in later.late_tools] == ["New."]
    assert later.callable == later.late_tools
    assert read(input=[ADDING, USER], tool_choice="none").request.tools == ()


def test_tools_that_are_added_later_are_called_and_not_in_front() -> None:
    found = {
        "type": "tool_search_output",
        "call_id": "c",
        "execution": "client",
        "tools": [{"type": "namespace", "name": "mail", "tools": [{**FUNCTION, "name": "send"}]}],
    }
    call = {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {}}
    parsed = read(input=[USER, call, found, USER], tools=[FUNCTION])
    assert parsed.request.tools == read(tools=[FUNCTION]).request.tools
    assert [tool.name for tool in parsed.request.late_tools] == ["mail__send"]
    assert [tool.name for tool in parsed.request.callable] == ["f", "mail__send"]
    assert parsed.facts.tool_set.namespaces == {"mail__send": ("mail", "send")}
    named = {"type": "function", "namespace": "mail", "name": "send"}
    forced = read(input=[USER, call, found], tool_choice=named).request
    assert (forced.must_call, forced.callable_tools) == (True, ("mail__send",))
    assert read(input=[USER, call, found], tool_choice="none").request.callable == ()


def test_a_follow_up_has_the_tools_that_earlier_items_added() -> None:
    choice = {"type": "function", "name": "f"}
    parsed = read(previous_response_id="resp_1", input=[USER], tool_choice=choice)
    assert parsed.with_history(History([ADDING, USER])).request.callable_tools == ("f",)
    with pytest.raises(BadRequest) as caught:
        parsed.with_history(History([USER]))
    assert caught.value.param == "tool_choice.name"


@pytest.mark.parametrize("tools", [None, {}, [{"name": "f"}]])
def test_added_tools_that_are_not_valid_are_refused_by_path(tools: object) -> None:
    with pytest.raises(BadRequest) as caught:
        read(input=[USER, {**ADDING, "tools": tools}])
    assert str(caught.value.param).startswith("input[1].tools")


def test_what_only_a_host_could_run_is_left_out() -> None:
    search = {"type": "web_search", "external_web_access": True}
    hosted = ("image_generation", "tool_search", "file_search", "code_interpreter", "local_shell")
    tools = [FUNCTION, search, *({"type": kind} for kind in hosted), {"type": "mcp"}]
    parsed = read(tools=tools, input=[USER, {"type": "web_search_call"}])
    assert parsed.request.tools == read(tools=[FUNCTION]).request.tools
    assert [tool["name"] for tool in parsed.facts.tool_set.shown] == ["f"]
    kinds = ("web_search", *hosted, "mcp")
    assert parsed.request.left_out == (
        *(LeftOut(f"tools[{at}]", kind) for at, kind in enumerate(kinds, 1)),
        LeftOut("input[1]", "web_search_call"),
    )
    some: dict[str, Any] = {"type": "allowed_tools", "mode": "auto", "tools": [search]}
    assert read(tools=tools, tool_choice=some).request.callable_tools == ()
    some["tools"].append({"type": "function", "name": "f"})
    assert read(tools=tools, tool_choice=some).request.callable_tools == ("f",)


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "web_search"}, "tool_choice.type"),
        ("required", "tool_choice"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
            "tool_choice.tools",
        ),
    ],
)
def test_a_forced_tool_of_a_host_is_refused(choice: object, param: str) -> None:
    assert refused(tools=[{"type": "web_search"}], tool_choice=choice) == param


def test_what_codex_sends_is_accepted() -> None:
    parsed = read(
        instructions="You are a coding agent.",
        input=[
            {"type": "message", "role": "developer", "content": [part("a"), part("b")]},
            {"type": "message", "role": "user", "content": [part("go")]},
        ],
        tools=[{"type": "function", "name": "shell", "strict": False, "parameters": {}}],
        tool_choice="auto",
        parallel_tool_calls=False,
        reasoning={"effort": "medium", "summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="0199",
        client_metadata={"x": "y"},
        text={"verbosity": "medium"},
    )
    assert parsed.request.messages == (
        Message("system", "You are a coding agent."),
        Message("developer", (TextPart("a"), TextPart("b"))),
        Message("user", "go"),
    )
    assert [tool.name for tool in parsed.request.tools] == ["shell"]
    assert not parsed.request.parallel_tool_calls
    assert not parsed.facts.store
    assert parsed.facts.seals_reasoning
    assert parsed.facts.summary == "auto"


TOOLS = [{"type": "function", "name": name} for name in "fg"]


def part(text: str) -> dict[str, str]:
    return {"type": "input_text", "text": text}


def test_tool_choice_none_shows_the_model_no_tools() -> None:
    tools = [{"type": "function", "name": "f"}]
    parsed = read(tools=tools, tool_choice="none")
    assert parsed.request.tools == ()
    assert parsed.facts.tool_choice == "none"
    assert [shown["name"] for shown in parsed.facts.tool_set.shown] == ["f"]


def test_a_call_can_be_forced_of_any_tool_or_of_one() -> None:
    parsed = read(tools=TOOLS, tool_choice="required")
    assert (parsed.request.must_call, parsed.request.callable_tools) == (True, None)
    assert parsed.request.parallel_tool_calls
    assert parsed.facts.tool_choice == "required"
    assert not request(
        tools=TOOLS, tool_choice="required", parallel_tool_calls=False
    ).parallel_tool_calls
    chosen = {"type": "function", "name": "g"}
    parsed = read(tools=TOOLS, tool_choice=chosen)
    assert (parsed.request.must_call, parsed.request.callable_tools) == (True, ("g",))
    assert not parsed.request.parallel_tool_calls
    assert parsed.facts.tool_choice == chosen


@pytest.mark.parametrize(("mode", "must"), [("auto", False), ("required", True)])
def test_allowed_tools_narrow_what_is_called_and_not_what_is_shown(mode: str, must: bool) -> None:
    chosen = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "g"}]}
    parsed = read(tools=TOOLS, tool_choice=chosen)
    assert (parsed.request.must_call, parsed.request.callable_tools) == (must, ("g",))
    assert [tool.name for tool in parsed.request.tools] == ["f", "g"]
    assert parsed.request.parallel_tool_calls
    assert parsed.facts.tool_choice == chosen


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, None]}}}


def test_a_format_constrains_the_text() -> None:
    shape = {"type": "json_schema", "name": "n", "strict": True, "schema": SCHEMA}
    parsed = read(text={"format": shape})
    assert parsed.request.constraint == Constraint(
        ConstraintKind.JSON_SCHEMA, "text.format.schema", json.dumps(SCHEMA)
    )
    parsed = read(text={"format": {"type": "json_object"}})
    assert parsed.request.constraint == Constraint(ConstraintKind.JSON_OBJECT, "text.format")
    assert request(text={"format": {"type": "text"}}).constraint is None
    assert request(text={}).constraint is None


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, None),
        ({"reasoning": {"max_tokens": 0}}, 0),
        ({"max_thinking_tokens": 17, "reasoning": {"max_tokens": 17}}, 17),
        ({"thinking_token_budget": 1}, 1),
        ({"thinking_budget": 2}, 2),
        ({"reasoning_max_tokens": 3}, 3),
        ({"max_thinking_tokens": -1}, 2**31 - 1),
    ],
)
def test_reasoning_is_limited_by_any_of_its_names(
    fields: dict[str, Any], tokens: int | None
) -> None:
    assert request(**fields).thinking_tokens == tokens


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"top_logprobs": 0}, None),
        ({"include": [LOGPROBS]}, 0),
        ({"include": [LOGPROBS], "top_logprobs": 20}, 20),
        ({"top_logprobs": 2}, 2),
    ],
)
def test_logprobs_are_requested_where_they_are_included(
    fields: dict[str, Any], logprobs: int | None
) -> None:
    parsed = read(**fields)
    assert parsed.request.logprobs == logprobs
    assert not parsed.facts.seals_reasoning


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("background", True),
        ("conversation", "conv_1"),
        ("prompt", {"id": "p"}),
        ("truncation", "auto"),
        ("max_tool_calls", 1),
        ("n", 2),
        ("logprobs", True),
        ("guided_json", {"type": "object"}),
        ("guided_regex", "a+"),
        ("structured_outputs", {"regex": "a+"}),
        ("output_format", {"type": "json_object"}),
        ("prompt_cache_options", {"mode": "explicit"}),
        ("max_tokens", 10),
        ("response_format", {"type": "json_object"}),
        ("context_management", [{"type": "compaction"}, {"type": "forget"}]),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(field: str, value: object) -> None:
    assert refused(**{field: value}) == field


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "schema": []}}}, "text.format.schema"),
        ({"text": {"format": {}}}, "text.format.type"),
        ({"reasoning": {"max_tokens": -2}}, "reasoning.max_tokens"),
        ({"thinking_budget": 1, "reasoning": {"max_tokens": 2}}, "reasoning.max_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"include": ["everything"]}, "include[0]"),
        ({"stream_options": {}}, "stream_options"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
        ({"enable_thinking": True, "reasoning": {"effort": "none"}}, "enable_thinking"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": ["hi"]}, "input[0]"),
    ],
)
def test_a_refusal_names_the_path(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields) == param


def test_values_without_effect_are_accepted() -> None:
    read(
        background=False,
        conversation=None,
        truncation="disabled",
        top_logprobs=0,
        service_tier="auto",
        text={"format": {"type": "text"}},
        include=["web_search_call.results"],
        prompt_cache_options={"mode": "implicit", "ttl": "30m"},
        user="u",
        no_such_field=1,
    )


def test_each_field_of_the_sdk_is_in_one_class_and_each_applied_one_is_explained() -> None:
    known = set(response_create_params.ResponseCreateParamsBase.__annotations__) | {"stream"}
    classes = (set(ResponsesBody.model_fields), set(RESPONSES.refused), set(RESPONSES.ignored))
    for field in known:
        assert sum(field in each for each in classes) == 1, field
    assert not classes[0] & classes[1] | classes[1] & classes[2] | classes[0] & classes[2]
    assert set(RESPONSES.notes) == classes[0]


def test_a_follow_up_continues_the_history_with_its_own_instructions() -> None:
    parsed = read(previous_response_id="resp_1", instructions="New.")
    assert parsed.needs_history
    history = History(
        [
            {"type": "message", "role": "user", "content": "one", "id": "msg_a-i0"},
            {"type": "message", "role": "assistant", "content": [text_out("two")], "id": "msg_a-0"},
        ]
    )
    whole = parsed.with_history(history)
    assert whole.request.messages == (
        Message("system", "New."),
        Message("user", "one"),
        Message("assistant", "two"),
        Message("user", "hi"),
    )
    assert list(whole.items) == [{"type": "message", "role": "user", "content": "hi"}]


def text_out(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def test_a_follow_up_may_have_no_input() -> None:
    parsed = read(previous_response_id="resp_1", input=None)
    history = History([{"role": "user", "content": "one"}])
    assert parsed.with_history(history).request.messages == (Message("user", "one"),)
    with pytest.raises(BadRequest):
        parsed.with_history(History())


def test_a_call_of_the_history_and_its_result_of_the_input_find_each_other() -> None:
    parsed = read(
        previous_response_id="resp_1",
        input=[{"type": "function_call_output", "call_id": "c1", "output": "5"}],
    )
    call = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
    messages = parsed.with_history(
        History([{"role": "user", "content": "?"}, call])
    ).request.messages
    assert messages is not None
    assert messages[-1] == Message("tool", "5", tool_call_id="c1", name="add")


def test_a_summary_of_the_history_is_read_as_the_reasoning() -> None:
    summary = [{"type": "summary_text", "text": "Hm."}]
    thought = {"type": "reasoning", "id": "rs_a-0", "summary": summary, "content": []}
    message = {
        "type": "message",
        "role": "assistant",
        "content": [text_out("two")],
        "id": "msg_a-1",
    }
    answer = Message("assistant", "two", "Hm.")
    parsed = read(previous_response_id="resp_a")
    messages = parsed.with_history(History([thought, message])).request.messages
    assert messages == (answer, Message("user", "hi"))
    parsed = read(input=[{"type": "item_reference", "id": "rs_a-0"}, message])
    whole = parsed.with_history(History(found={"rs_a-0": thought}))
    assert whole.request.messages == (answer,)


def test_references_are_resolved_from_what_was_found_and_from_the_history() -> None:
    items = [
        {"type": "item_reference", "id": "msg_a-0"},
        {"id": "msg_b-0"},
        {"role": "user", "content": "go on"},
    ]
    parsed = read(input=items)
    assert parsed.references == ("msg_a-0", "msg_b-0")
    found = {
        "msg_a-0": {"role": "user", "content": "one", "id": "msg_a-0"},
        "msg_b-0": {"role": "assistant", "content": "two", "id": "msg_b-0"},
    }
    whole = parsed.with_history(History(found=found))
    assert whole.request.messages == (
        Message("user", "one"),
        Message("assistant", "two"),
        Message("user", "go on"),
    )
    assert [item["id"] for item in whole.items[:2]] == ["msg_a-0", "msg_b-0"]


def test_a_reference_to_nothing_is_a_404_that_names_it() -> None:
    parsed = read(
        input=[{"role": "user", "content": "a"}, {"type": "item_reference", "id": "rs_x"}]
    )
    with pytest.raises(UnknownItem) as caught:
        parsed.with_history(History())
    assert (caught.value.status, caught.value.param) == (404, "input[1].id")
    assert "rs_x" in caught.value.message


def test_a_bad_item_is_refused_before_any_history_is_requested() -> None:
    path = refused(previous_response_id="resp_1", input=[{"role": "user", "content": 1}])
    assert path == "input[0].content"
