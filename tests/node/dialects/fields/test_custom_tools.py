"""Custom tools of OpenAI's dialects: declared, called, and sent back in later requests."""

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from node.dialects.chat.body import read_chat
from node.dialects.chat.messages import MessageBody, read_messages
from node.dialects.fields.custom_input import PARAMETERS
from node.dialects.responses.body import ResponsesRequest, read_responses
from node.dialects.responses.input import messages_of
from node.dialects.responses.items import stored_item
from node.errors import BadRequest, Unsupported
from node.ipc.messages import Part
from node.protocol.messages import FinishReason
from node.request import ToolCall
from tests.node.dialects.openai_stream import (
    HEAD,
    call,
    chunks,
    content,
    last,
    streamed,
    whole,
)

GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: A B\nA: /a+/\nB: "\\n"'}
RECURSIVE = {**GRAMMAR, "definition": 'start: "(" start? ")"'}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": GRAMMAR}
EXEC = {"type": "custom", "name": "exec"}
FUNCTION = {"type": "function", "name": "look"}
SPACE = {"type": "namespace", "name": "repl", "tools": [EXEC]}
INPUT = '*** Begin Patch\n+"a"\n*** End Patch'


def parsed(**fields: Any) -> ResponsesRequest:
    body = {"model": "m", "input": "hi", **fields}
    return read_responses(json.dumps(body).encode())


def in_chat(tool: dict[str, Any]) -> dict[str, Any]:
    """Returns the same tool, or the same choice of one, in the chat dialect's form."""
    kind, more = tool["type"], {key: value for key, value in tool.items() if key != "type"}
    if isinstance(given := more.get("format"), dict) and given["type"] == "grammar":
        grammar = {key: value for key, value in given.items() if key != "type"}
        more["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": kind, kind: more}


def chat_of(*tools: dict[str, Any], **fields: Any) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return json.dumps({**body, "tools": [in_chat(tool) for tool in tools]}).encode()


def test_a_custom_tool_is_a_function_with_its_text_as_the_only_argument() -> None:
    for tools in (read_chat(chat_of(EXEC)).request.tools, parsed(tools=[EXEC]).request.tools):
        (tool,) = tools
        assert tool.is_custom
        assert "description" not in tool.function
        assert tool.parameters["required"] == PARAMETERS["required"] == ["input"]
        assert tool.parameters["properties"]["input"]["type"] == "string"
        assert tool.parameters["additionalProperties"] is False


def test_the_model_is_shown_the_grammar_of_the_text() -> None:
    chat, responses = read_chat(chat_of(PATCH)).request, parsed(tools=[PATCH]).request
    assert chat.tools[0].function == responses.tools[0].function
    about = chat.tools[0].function["description"]
    assert (
        about == f"Edits.\n\n`input` is text that fits this Lark grammar:\n{GRAMMAR['definition']}"
    )
    assert chat.tools[0].param == "tools[0].custom.format.grammar.definition"
    assert responses.tools[0].param == "tools[0].format.definition"


def test_a_call_is_constrained_to_a_grammar_that_is_a_pattern() -> None:
    for tools in (read_chat(chat_of(PATCH)).request.tools, parsed(tools=[PATCH]).request.tools):
        (tool,) = tools
        assert "pattern" not in tool.parameters["properties"]["input"]
        assert tool.constrained_parameters["properties"]["input"]["pattern"] == r"^(?:(?:a+)\n)$"
        assert not tool.is_unenforceable
    regex = {"type": "grammar", "syntax": "regex", "definition": "^a+$"}
    (tool,) = parsed(tools=[{**EXEC, "format": regex}]).request.tools
    assert tool.constrained_parameters["properties"]["input"]["pattern"] == "^(?:a+)$"
    (tool,) = parsed(tools=[EXEC]).request.tools
    assert tool.constrained_parameters == tool.parameters


def test_a_grammar_that_is_none_is_shown_and_cannot_be_forced() -> None:
    tool = {**PATCH, "format": RECURSIVE}
    request = parsed(tools=[tool]).request
    assert request.tools[0].is_unenforceable
    assert RECURSIVE["definition"] in request.tools[0].function["description"]
    with pytest.raises(Unsupported) as caught:
        parsed(tools=[tool], tool_choice="required")
    assert caught.value.param == "tools[0].format.definition"
    with pytest.raises(Unsupported) as caught:
        read_chat(chat_of(tool, tool_choice=in_chat({"type": "custom", "name": "apply_patch"})))
    assert caught.value.param == "tools[0].custom.format.grammar.definition"


def test_a_format_of_text_is_none() -> None:
    plain = {**EXEC, "format": {"type": "text"}}
    assert parsed(tools=[plain]).request == parsed(tools=[EXEC]).request
    assert read_chat(chat_of(plain)).request == read_chat(chat_of(EXEC)).request


@pytest.mark.parametrize(
    ("given", "path", "error"),
    [
        ({"type": "json"}, "format.type", Unsupported),
        ({"type": "grammar"}, "format.syntax", BadRequest),
        ({"type": "grammar", "syntax": "ebnf", "definition": "x"}, "format.syntax", BadRequest),
        ({"type": "grammar", "syntax": "lark"}, "format.definition", BadRequest),
        ({"type": "grammar", "syntax": "lark", "definition": ""}, "format.definition", BadRequest),
        (
            {"type": "grammar", "syntax": "regex", "definition": "x" * 300_000},
            "format.definition",
            BadRequest,
        ),
    ],
)
def test_a_format_that_is_not_valid_is_refused_by_path(
    given: dict[str, Any], path: str, error: type[BadRequest]
) -> None:
    with pytest.raises(error) as caught:
        parsed(tools=[FUNCTION, {**EXEC, "format": given}])
    assert caught.value.param == f"tools[1].{path}"


def test_a_response_repeats_the_tool_as_it_was_sent() -> None:
    shown = parsed(tools=[PATCH, EXEC, SPACE]).facts.tool_set.shown
    assert shown[0] == PATCH
    assert shown[1] == {**EXEC, "description": None, "format": {"type": "text"}}
    assert shown[2]["tools"] == [shown[1]]


@pytest.mark.parametrize("choice", [{"type": "custom", "name": "exec"}])
def test_a_custom_tool_is_chosen_by_name(choice: dict[str, Any]) -> None:
    some = {"type": "allowed_tools", "mode": "required", "tools": [choice]}
    for request in (
        parsed(tools=[FUNCTION, EXEC], tool_choice=choice).request,
        read_chat(chat_of(FUNCTION, EXEC, tool_choice=in_chat(choice))).request,
        parsed(tools=[FUNCTION, EXEC], tool_choice=some).request,
    ):
        assert request.must_call
        assert request.callable_tools == ("exec",)


# --- answers ---------------------------------------------------------------------------------

CALLS = [
    content("I patch."),
    *call(
        0, "apply_patch", '{"inp', 'ut": "*** Begin Patch\\n+\\"', 'a\\"\\n*** End', ' Patch"', "}"
    ),
    *call(1, "look", "{}"),
    *call(2, "apply_patch", '{"patch": "x"}'),
]


def test_a_chat_streams_the_text_of_a_custom_tool() -> None:
    writer = read_chat(chat_of(PATCH, FUNCTION)).writer(HEAD)
    deltas = [each["choices"][0] for each in chunks(streamed(writer, CALLS))]
    calls = [each["delta"]["tool_calls"][0] for each in deltas if "tool_calls" in each["delta"]]
    assert calls == [
        {
            "index": 0,
            "id": "call_0",
            "type": "custom",
            "custom": {"name": "apply_patch", "input": ""},
        },
        {"index": 0, "custom": {"input": '*** Begin Patch\n+"'}},
        {"index": 0, "custom": {"input": 'a"\n*** End'}},
        {"index": 0, "custom": {"input": " Patch"}},
        {
            "index": 1,
            "id": "call_1",
            "type": "function",
            "function": {"name": "look", "arguments": ""},
        },
        {"index": 1, "function": {"arguments": "{}"}},
        {
            "index": 2,
            "id": "call_2",
            "type": "custom",
            "custom": {"name": "apply_patch", "input": ""},
        },
        {"index": 2, "custom": {"input": "x"}},
    ]
    assert deltas[-1]["finish_reason"] == "tool_calls"


def test_a_chat_returns_a_whole_call_of_a_custom_tool() -> None:
    message = whole(read_chat(chat_of(PATCH, FUNCTION)).writer(HEAD), CALLS)["choices"][0][
        "message"
    ]
    assert [each["type"] for each in message["tool_calls"]] == ["custom", "function", "custom"]
    first, _, second = message["tool_calls"]
    assert first == {
        "id": "call_0",
        "type": "custom",
        "custom": {"name": "apply_patch", "input": INPUT},
    }
    assert second["custom"] == {"name": "apply_patch", "input": "x"}


def events(body: bytes) -> list[Any]:
    """Returns the events, each valid for the SDK."""
    found = []
    for number, block in enumerate(body.decode().split("\n\n")[:-1]):
        event = json.loads(block.split("\n")[1].removeprefix("data: "))
        assert event["sequence_number"] == number
        TypeAdapter[Any](ResponseStreamEvent).validate_python(event)
        found.append(event)
    return found


def test_a_response_streams_the_text_of_a_custom_tool() -> None:
    found = events(streamed(parsed(tools=[PATCH, FUNCTION]).writer(HEAD), CALLS))
    of_call = [event for event in found if event.get("output_index") == 1]
    added, *deltas, text, done = of_call
    item = {
        "id": "ctc_0123456789abcdef-r1-1",
        "type": "custom_tool_call",
        "call_id": "call_0",
        "name": "apply_patch",
    }
    assert added["type"] == "response.output_item.added"
    assert added["item"] == {**item, "input": "", "status": "in_progress"}
    assert {event["type"] for event in deltas} == {"response.custom_tool_call_input.delta"}
    assert [event["delta"] for event in deltas] == [
        '*** Begin Patch\n+"',
        'a"\n*** End',
        " Patch",
    ]
    assert text["type"] == "response.custom_tool_call_input.done"
    assert text["input"] == INPUT
    assert all(event["item_id"] == item["id"] for event in (*deltas, text))
    assert done["item"] == {**item, "input": INPUT, "status": "completed"}
    # Input that is known only at the end is sent before it.
    late = [event["type"] for event in found if event.get("output_index") == 3]
    assert [kind.rpartition(".")[2] for kind in late] == ["added", "delta", "done", "done"]
    assert found[-1]["response"]["output"][3]["input"] == "x"


def test_a_whole_response_is_the_one_that_was_streamed() -> None:
    made = whole(parsed(tools=[PATCH, FUNCTION]).writer(HEAD), CALLS)
    TypeAdapter(Response).validate_python(made)
    final = events(streamed(parsed(tools=[PATCH, FUNCTION]).writer(HEAD), CALLS))[-1]["response"]
    assert made["output"] == final["output"]
    assert made["output"][1]["input"] == INPUT


def test_a_custom_tool_of_a_namespace_is_returned_with_both_names() -> None:
    made = whole(parsed(tools=[SPACE]).writer(HEAD), call(0, "repl__exec", '{"input": "1"}'))
    item = made["output"][0]
    assert (item["type"], item["namespace"], item["name"]) == ("custom_tool_call", "repl", "exec")
    assert item["input"] == "1"


def test_a_truncated_call_contains_what_there_is_of_it() -> None:
    parts: list[Part] = call(0, "apply_patch", '{"input": "*** Beg')
    found = events(streamed(parsed(tools=[PATCH]).writer(HEAD), parts, last(FinishReason.LENGTH)))
    (item,) = found[-1]["response"]["output"]
    assert (item["input"], item["status"]) == ("*** Beg", "incomplete")
    assert not [event for event in found if event["type"].endswith(".done")]


@pytest.mark.parametrize("arguments", ['{"input": "a"', '{"patch": "a"}', '"a"'])
def test_a_call_whose_text_is_whole_is_done_whatever_ended_the_answer(arguments: str) -> None:
    parts: list[Part] = call(0, "apply_patch", arguments)
    found = events(streamed(parsed(tools=[PATCH]).writer(HEAD), parts, last(FinishReason.LENGTH)))
    (item,) = found[-1]["response"]["output"]
    assert (item["input"], item["status"]) == ("a", "completed")


# --- history ---------------------------------------------------------------------------------


def test_an_answer_is_read_back_as_it_was_sent() -> None:
    output = whole(parsed(tools=[PATCH, FUNCTION, SPACE]).writer(HEAD), CALLS)["output"]
    (message,) = messages_of(output)
    assert message.tool_calls == (
        ToolCall("call_0", "apply_patch", json.dumps({"input": INPUT})),
        ToolCall("call_1", "look", "{}"),
        ToolCall("call_2", "apply_patch", '{"input": "x"}'),
    )
    (again,) = messages_of([stored_item(item, "msg_1") for item in output])
    assert again == message
    sent = whole(read_chat(chat_of(PATCH, FUNCTION)).writer(HEAD), CALLS)["choices"][0]["message"]
    (in_a_chat,) = read_messages([MessageBody.model_validate(sent)])
    assert in_a_chat.tool_calls == message.tool_calls


def test_the_result_of_a_custom_tool_is_a_result() -> None:
    items: list[dict[str, Any]] = [
        {
            "type": "custom_tool_call",
            "call_id": "c",
            "namespace": "repl",
            "name": "exec",
            "input": "",
        },
        {"type": "custom_tool_call_output", "call_id": "c", "output": "2"},
        {"type": "custom_tool_call", "call_id": "d", "name": "exec", "input": "1"},
        {
            "type": "custom_tool_call_output",
            "call_id": "d",
            "output": [{"type": "input_text", "text": "3"}],
        },
    ]
    calling, result, _, second = messages_of(items)
    assert calling.tool_calls == (ToolCall("c", "repl__exec", '{"input": ""}'),)
    assert (result.role, result.content, result.name) == ("tool", "2", "repl__exec")
    assert second.content == "3"
    assert messages_of([stored_item(item, "msg_1") for item in items]) == messages_of(items)


@pytest.mark.parametrize("lacks", ["call_id", "name", "input"])
def test_a_call_of_a_custom_tool_that_is_not_valid_is_refused_by_path(lacks: str) -> None:
    item = {"type": "custom_tool_call", "call_id": "c", "name": "exec", "input": "1"}
    with pytest.raises(BadRequest) as caught:
        messages_of([{key: value for key, value in item.items() if key != lacks}])
    assert caught.value.param == f"input[0].{lacks}"
    with pytest.raises(BadRequest) as caught:
        read_chat(chat_of(messages=[{"role": "assistant", "tool_calls": [{"type": "custom"}]}]))
    assert caught.value.param == "messages[0].tool_calls[0].custom"


# --- the client's search for tools -----------------------------------------------------------

SEARCH = {"type": "tool_search", "execution": "client", "description": "Finds tools."}


def test_the_client_s_search_is_a_function_and_answered_as_a_search() -> None:
    read = parsed(tools=[SEARCH, FUNCTION])
    tool = read.request.tools[0]
    assert (tool.name, tool.function["description"]) == ("tool_search", "Finds tools.")
    assert tool.parameters["required"] == ["query"]
    assert read.facts.tool_set.shown[0]["execution"] == "client"
    parts = [*call(0, "tool_search", '{"query": ', '"mail"}'), *call(1, "look", "{}")]
    item = {
        "id": "tsc_0123456789abcdef-r1-0",
        "type": "tool_search_call",
        "call_id": "call_0",
        "execution": "client",
        "arguments": {"query": "mail"},
        "status": "completed",
    }
    assert whole(read.writer(HEAD), parts)["output"][0] == item
    found = events(streamed(read.writer(HEAD), parts))
    of_search = [event for event in found if event.get("output_index") == 0]
    assert [event["type"] for event in of_search] == [
        "response.output_item.added",
        "response.output_item.done",
    ]
    assert of_search[0]["item"] == {**item, "arguments": {}, "status": "in_progress"}
    assert of_search[1]["item"] == item
    TypeAdapter(Response).validate_python(found[-1]["response"])
    (message,) = messages_of([item])
    assert message.tool_calls == (ToolCall("call_0", "tool_search", '{"query": "mail"}'),)


def test_its_own_schema_overrides_ours() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    (tool,) = parsed(tools=[{**SEARCH, "parameters": schema}]).request.tools
    assert tool.parameters == schema
    with pytest.raises(BadRequest) as caught:
        parsed(tools=[SEARCH, {**FUNCTION, "name": "tool_search"}])
    assert caught.value.param == "tools[1].name"


def test_it_may_be_forced_and_a_host_s_may_not() -> None:
    forced = parsed(tools=[SEARCH], tool_choice={"type": "tool_search"}).request
    assert forced.callable_tools == ("tool_search",)
    with pytest.raises(Unsupported) as caught:
        parsed(tools=[{"type": "tool_search"}], tool_choice={"type": "tool_search"})
    assert caught.value.param == "tool_choice.type"


def test_a_function_of_its_name_stays_a_function() -> None:
    read = parsed(tools=[{**FUNCTION, "name": "tool_search"}])
    item = whole(read.writer(HEAD), call(0, "tool_search", "{}"))["output"][0]
    assert item["type"] == "function_call"


def test_a_truncated_search_has_no_arguments() -> None:
    parts = call(0, "tool_search", '{"query": "ma')
    found = events(streamed(parsed(tools=[SEARCH]).writer(HEAD), parts, last(FinishReason.LENGTH)))
    (item,) = found[-1]["response"]["output"]
    assert (item["arguments"], item["status"]) == ({}, "incomplete")
