"""Responses of `/v1/responses`, as events and whole, as OpenAI's client reads them."""

import json
from collections.abc import Sequence
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from node.dialects.base import Collected
from node.dialects.responses.body import read_responses
from node.dialects.responses.events import ResponseWriter
from node.dialects.responses.input import messages_of
from node.errors import BrokenCall, EngineDied, EngineFault, ModelBusy, NodeError
from node.ipc.messages import Accepted, Alternative, Part, PartKind, RowUsage, TokenLogprob
from node.protocol.messages import FinishReason
from node.request import Message, ToolCall
from tests.node.dialects.openai_stream import (
    HEAD,
    call,
    content,
    last,
    reasoning,
    streamed,
    whole,
    with_client,
)

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
RESPONSE = TypeAdapter(Response)

TURN = [
    reasoning("Let me "),
    reasoning("see."),
    content("I call.\n"),
    content('\n"é"'),
    *call(0, "find", '{"q": "', 'é \\"x\\"', '"}'),
    *call(1, "mail__send", "{}"),
]
SUMMARY = {"reasoning": {"summary": "auto"}}
TOOLS = [
    {"type": "function", "name": "find", "parameters": {"type": "object"}, "strict": False},
    {
        "type": "namespace",
        "name": "mail",
        "description": "Letters.",
        "tools": [{"type": "function", "name": "send"}],
    },
]


def writer(**fields: Any) -> ResponseWriter:
    body = {"model": "m", "input": "hi", "tools": TOOLS, **fields}
    return read_responses(json.dumps(body).encode()).writer(HEAD)


def events(body: bytes) -> list[Any]:
    """Returns the events of a stream, each valid for the SDK and numbered in order."""
    found = []
    for number, block in enumerate(body.decode().split("\n\n")[:-1]):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        EVENT.validate_python(event)
        found.append(event)
    return found


def kinds(found: Sequence[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in found]


def without_time(response: Any) -> Any:
    return {**response, "completed_at": None}


def test_a_stream_opens_each_item_adds_to_it_and_ends_it_in_order() -> None:
    found = events(streamed(writer(), TURN))
    opening = ["created", "in_progress"]
    thought = ["output_item.added", "content_part.added", *["reasoning_text.delta"] * 2]
    thought += ["reasoning_text.done", "content_part.done", "output_item.done"]
    text = ["output_item.added", "content_part.added", *["output_text.delta"] * 2]
    text += ["output_text.done", "content_part.done", "output_item.done"]
    first = ["output_item.added", *["function_call_arguments.delta"] * 3]
    second = ["output_item.added", "function_call_arguments.delta"]
    ends = ["function_call_arguments.done", "output_item.done"]
    assert kinds(found) == [*opening, *thought, *text, *first, *ends, *second, *ends, "completed"]
    indexes = [event["output_index"] for event in found if "output_index" in event]
    assert indexes == sorted(indexes)
    assert indexes[-1] == 3


def test_a_summary_is_streamed_in_place_of_the_reasoning() -> None:
    plain, found = (events(streamed(writer(**fields), TURN)) for fields in ({}, SUMMARY))
    thought = ["output_item.added", "reasoning_summary_part.added"]
    thought += [*["reasoning_summary_text.delta"] * 2, "reasoning_summary_text.done"]
    thought += ["reasoning_summary_part.done", "output_item.done"]
    assert kinds(found) == [*kinds(plain)[:2], *thought, *kinds(plain)[9:]]
    # What is not about the reasoning is the same, by its number too.
    assert found[9:-1] == plain[9:-1]
    added, *deltas, text, part, done = found[3:9]
    place = {"item_id": "rs_0123456789abcdef-r1-0", "output_index": 0, "summary_index": 0}
    for event in (added, *deltas, text, part):
        assert {name: event[name] for name in place} == place
        assert "content_index" not in event
    assert added["part"] == {"type": "summary_text", "text": ""}
    assert [event["delta"] for event in deltas] == ["Let me ", "see."]
    assert text["text"] == "Let me see."
    assert part["part"] == {"type": "summary_text", "text": "Let me see."}
    assert "status" not in part
    assert (done["item"]["summary"], done["item"]["content"]) == ([part["part"]], [])


def test_a_truncated_summary_is_incomplete() -> None:
    found = events(streamed(writer(**SUMMARY), TURN[:1], last(FinishReason.LENGTH)))
    part, done = found[-3:-1]
    assert (part["status"], done["item"]["status"]) == ("incomplete", "incomplete")
    assert done["item"]["summary"] == [{"type": "summary_text", "text": "Let me "}]


def test_the_response_reports_which_summary_was_requested() -> None:
    assert whole(writer(), [])["reasoning"] == {"effort": None, "summary": None}
    for kind in ("auto", "detailed"):
        response = whole(writer(reasoning={"effort": "low", "summary": kind}), TURN[:1])
        assert response["reasoning"] == {"effort": "low", "summary": kind}
        assert response["output"][0]["summary"] == [{"type": "summary_text", "text": "Let me "}]


@pytest.mark.parametrize("fields", [{}, SUMMARY])
def test_the_deltas_of_an_item_are_its_text(fields: dict[str, Any]) -> None:
    found = events(streamed(writer(**fields), TURN))
    for index, item in enumerate(found[-1]["response"]["output"]):
        mine = [event for event in found if event.get("output_index") == index]
        text = "".join(event["delta"] for event in mine if "delta" in event)
        ids = {event["item_id"] for event in mine if "item_id" in event}
        assert ids == {item["id"]}
        assert mine[-1]["item"] == item
        if item["type"] == "function_call":
            assert text == item["arguments"]
            json.loads(text)
        else:
            parts = [*item.get("summary", ()), *item["content"]]
            assert [part["text"] for part in parts] == [text]


@pytest.mark.parametrize("fields", [{}, SUMMARY])
def test_a_stream_and_the_whole_end_in_the_same_response(fields: dict[str, Any]) -> None:
    for finish in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED):
        for parts in (TURN, TURN[:3], TURN[:1], []):
            found = events(streamed(writer(**fields), parts, last(finish)))
            response = whole(writer(**fields), parts, finish)
            RESPONSE.validate_python(response)
            assert without_time(found[-1]["response"]) == without_time(response)


@pytest.mark.parametrize("fields", [{}, SUMMARY])
def test_the_clients_own_reader_puts_the_stream_together(fields: dict[str, Any]) -> None:
    def use(client: openai.OpenAI) -> Any:
        with client.responses.stream(model="m", input="hi") as stream:
            for _ in stream:
                pass
            return stream.get_final_response()

    response = with_client(streamed(writer(**fields), TURN), use)
    thought = response.output[0].summary if fields else response.output[0].content
    assert [part.text for part in thought] == ["Let me see."]
    assert response.output_text == 'I call.\n\n"é"'
    assert [item.type for item in response.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert response.output[2].arguments == '{"q": "é \\"x\\""}'
    assert response.output[2].call_id == "call_0"
    assert response.usage.total_tokens == 12


def test_the_response_repeats_the_request_and_reports_the_usage() -> None:
    response = whole(writer(instructions="Be.", metadata={"a": "b"}, temperature=0.5), [])
    assert response["id"] == "resp_0123456789abcdef-r1"
    assert (response["model"], response["created_at"]) == ("alias", 99)
    assert (response["status"], response["output"]) == ("completed", [])
    assert response["completed_at"] > 99
    assert (response["instructions"], response["metadata"]) == ("Be.", {"a": "b"})
    assert (response["temperature"], response["top_p"]) == (0.5, 1.0)
    assert whole(writer(top_p=0), [])["top_p"] == 0
    assert [tool["type"] for tool in response["tools"]] == ["function", "namespace"]
    assert response["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 12,
    }


def test_a_call_of_a_namespace_is_sent_with_both_names_apart() -> None:
    found = events(streamed(writer(), TURN))
    added = [event["item"] for event in found if event["type"] == "response.output_item.added"][-1]
    done = found[-2]["item"]
    for item in (added, done):
        assert (item["namespace"], item["name"]) == ("mail", "send")
    assert found[-3]["name"] == "send"
    assert "namespace" not in found[-1]["response"]["output"][2]


def test_a_limit_leaves_the_last_item_and_the_response_incomplete() -> None:
    found = events(streamed(writer(), TURN[:3], last(FinishReason.LENGTH)))
    response = found[-1]["response"]
    assert found[-1]["type"] == "response.incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert response["completed_at"] is None


def test_a_call_is_whole_whatever_ended_the_answer() -> None:
    for finish in (FinishReason.LENGTH, FinishReason.CANCELLED):
        (item,) = whole(writer(), call(0, "find", "{}"), finish)["output"]
        assert item["status"] == "completed"


@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.CANCELLED])
def test_a_truncated_call_is_incomplete_and_never_reported_as_done(finish: FinishReason) -> None:
    begun = call(0, "find", '{"a": ', '"b')
    found = events(streamed(writer(), begun, last(finish)))
    assert not [kind for kind in kinds(found) if kind.endswith(".done")]
    (item,) = found[-1]["response"]["output"]
    assert (item["arguments"], item["status"]) == ('{"a": "b', "incomplete")
    (again,) = whole(writer(), begun, finish)["output"]
    assert again == item


def test_a_call_that_breaks_off_is_never_reported_as_done() -> None:
    own = writer()
    stream = own.parts(call(0, "find", '{"a": ')) + own.error(BrokenCall("It broke off."))
    found = events(stream)
    assert found[-1]["type"] == "response.failed"
    assert not [kind for kind in kinds(found) if kind.endswith(".done")]
    assert found[-1]["response"]["output"][0]["status"] == "incomplete"


def test_a_cancelled_answer_is_marked_as_such_and_needs_no_usage() -> None:
    found = events(streamed(writer(), TURN[:1], last(FinishReason.CANCELLED, None)))
    assert found[-1]["response"]["status"] == "cancelled"
    assert "usage" not in found[-1]["response"]
    with pytest.raises(EngineFault):
        writer().ending(last(usage=None))


def test_nothing_is_written_before_the_first_part() -> None:
    own = writer()
    own.accepted(Accepted("r1", 7, 3))
    assert own.parts([]) == b""
    assert kinds(events(own.parts([content("x")])))[:2] == ["created", "in_progress"]


@pytest.mark.parametrize(
    ("error", "code"), [(EngineDied(), "server_error"), (ModelBusy(), "invalid_prompt")]
)
def test_a_failure_after_the_first_part_fails_the_response(error: NodeError, code: str) -> None:
    own = writer()
    found = events(own.parts(TURN[:3]) + own.error(error))
    assert found[-1]["type"] == "response.failed"
    response = found[-1]["response"]
    assert response["status"] == "failed"
    assert response["error"] == {"code": code, "message": error.message}
    assert kinds(found)[-2] == "output_item.done"


def test_a_failure_before_any_part_is_an_event_of_its_own() -> None:
    own = writer()
    (event,) = events(own.error(EngineDied()))
    assert (event["type"], event["code"], event["param"]) == ("error", "engine_died", None)
    assert own.record() is None

    def use(client: openai.OpenAI) -> Any:
        with pytest.raises(openai.APIError, match="engine process ended"):
            list(client.responses.create(model="m", input="hi", stream=True))

    with_client(writer().error(EngineDied()), use)


def test_an_answer_sent_back_as_input_is_the_same_message() -> None:
    answer = Message(
        "assistant",
        'I call.\n\n"é"',
        "Let me see.",
        (
            ToolCall("call_0", "find", '{"q": "é \\"x\\""}'),
            ToolCall("call_1", "mail__send", "{}"),
        ),
    )
    for include in (None, ["reasoning.encrypted_content"]):
        output = whole(writer(include=include), TURN)["output"]
        assert messages_of(output) == (answer,)
        del output[0]["content"]
        assert (messages_of(output) == (answer,)) == (include is not None)
        output = whole(writer(include=include, **SUMMARY), TURN)["output"]
        assert messages_of(output) == (answer,)
        del output[0]["summary"]
        assert (messages_of(output) == (answer,)) == (include is not None)


def test_a_snapshot_contains_what_there_is_so_far() -> None:
    own = writer()
    assert json.loads(own.snapshot())["output"] == []
    own.parts(TURN[:3])
    response = json.loads(own.snapshot())
    RESPONSE.validate_python(response)
    assert response["status"] == "in_progress"
    assert [item["status"] for item in response["output"]] == ["completed", "in_progress"]
    assert response["output"][1]["content"][0]["text"] == "I call.\n"
    assert own.record() is None
    summarised = writer(**SUMMARY)
    summarised.parts(TURN[:1])
    (item,) = json.loads(summarised.snapshot())["output"]
    assert (item["summary"][0]["text"], item["content"]) == ("Let me ", [])
    own.parts(TURN[3:])
    final = events(streamed(writer(), TURN))[-1]["response"]
    own.ending(last())
    assert without_time(json.loads(own.snapshot())) == without_time(final)


def test_what_is_kept_is_the_response_and_the_input_of_this_turn() -> None:
    own = writer(instructions="Be.", previous_response_id=None)
    response = whole(own, TURN)
    record = own.record()
    assert record is not None
    assert record.response_id == response["id"]
    assert (record.model, record.created_s, record.previous_id) == ("alias", 99, None)
    assert json.loads(record.body) == response
    assert [item["id"] for item in record.items] == ["msg_0123456789abcdef-r1-i0"]
    assert record.items[0]["content"] == [{"type": "input_text", "text": "hi"}]


def test_nothing_is_kept_for_a_client_that_wants_nothing_kept() -> None:
    own = writer(store=False)
    response = whole(own, [])
    assert response["store"] is False
    assert own.record() is None


def test_nothing_is_kept_of_what_was_forgotten() -> None:
    own = writer()
    own.forget()
    whole(own, [])
    assert own.record() is None


def test_a_cancellation_returns_what_there_is_and_that_it_is_cancelled() -> None:
    own = writer()
    own.parts(TURN[:3])
    returned = json.loads(own.cancelled())
    RESPONSE.validate_python(returned)
    found = events(streamed(writer(), TURN[:3], last(FinishReason.CANCELLED, None)))
    assert returned == found[-1]["response"]
    assert [item["status"] for item in returned["output"]] == ["completed", "incomplete"]
    own.ending(last())
    assert json.loads(own.cancelled())["status"] == "completed"


def test_parts_of_one_step_are_sent_as_if_each_arrived_by_itself() -> None:
    def at_once(parts: list[Part]) -> bytes:
        own = writer()
        return own.parts(parts) + own.ending(last())

    one_by_one = events(streamed(writer(), TURN))
    together = events(at_once(TURN))
    assert together[:-1] == one_by_one[:-1]


def test_a_collected_answer_without_usage_is_a_fault() -> None:
    with pytest.raises(EngineFault):
        writer().whole([Collected()])


# --- logprobs --------------------------------------------------------------------------------

TORN = Alternative("\ufffd", b"\xc3", -0.25)
YES = TokenLogprob(Alternative("Yes", b"Yes", -0.5), (Alternative("Yes", b"Yes", -0.5), TORN))
NEXT = TokenLogprob(Alternative(".", b".", -1.5))
PROBABLE = [
    reasoning("Hm."),
    Part(PartKind.CONTENT, "Yes", logprobs=(YES,)),
    content(" "),
    Part(PartKind.CONTENT, ".", logprobs=(NEXT, NEXT)),
]
YES_FIELDS = {
    "token": "Yes",
    "bytes": [89, 101, 115],
    "logprob": -0.5,
    "top_logprobs": [
        {"token": "Yes", "bytes": [89, 101, 115], "logprob": -0.5},
        {"token": "\ufffd", "bytes": [195], "logprob": -0.25},
    ],
}
NEXT_FIELDS = {"token": ".", "bytes": [46], "logprob": -1.5, "top_logprobs": []}
INCLUDE = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


def test_logprobs_are_sent_with_the_deltas_and_all_of_them_with_what_is_done() -> None:
    found = events(streamed(writer(**INCLUDE), PROBABLE))
    by_kind: dict[str, list[Any]] = {}
    for event in found:
        by_kind.setdefault(event["type"], []).append(event)
    deltas = by_kind["response.output_text.delta"]
    assert [event["logprobs"] for event in deltas] == [[YES_FIELDS], [], [NEXT_FIELDS] * 2]
    every = [YES_FIELDS, NEXT_FIELDS, NEXT_FIELDS]
    (done,) = by_kind["response.output_text.done"]
    assert done["logprobs"] == every
    assert by_kind["response.content_part.done"][-1]["part"]["logprobs"] == every
    assert by_kind["response.content_part.added"][-1]["part"]["logprobs"] == []
    response = found[-1]["response"]
    assert response["output"][1]["content"][0]["logprobs"] == every
    assert response["top_logprobs"] == 2
    assert without_time(response) == without_time(whole(writer(**INCLUDE), PROBABLE))


def test_the_clients_own_reader_reads_logprobs() -> None:
    def use(client: openai.OpenAI) -> Any:
        with client.responses.stream(model="m", input="hi") as stream:
            for _ in stream:
                pass
            return stream.get_final_response()

    response = with_client(streamed(writer(**INCLUDE), PROBABLE), use)
    first = response.output[1].content[0].logprobs[0]
    assert (first.token, first.logprob, first.bytes) == ("Yes", -0.5, [89, 101, 115])
    assert [other.token for other in first.top_logprobs] == ["Yes", "\ufffd"]


def test_an_answer_with_logprobs_is_read_back_without_them() -> None:
    output = whole(writer(**INCLUDE), PROBABLE)["output"]
    assert messages_of(output) == (Message("assistant", "Yes .", "Hm."),)


# --- the request -----------------------------------------------------------------------------

SHAPE = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, {"type": "text"}),
        ({"type": "text"}, {"type": "text"}),
        ({"type": "json_object"}, {"type": "json_object"}),
        ({**SHAPE, "strict": False}, {**SHAPE, "strict": False, "description": None}),
        (SHAPE, {**SHAPE, "strict": True, "description": None}),
        (
            {"type": "json_schema", "schema": {}},
            {"type": "json_schema", "name": "schema", "schema": {}, "strict": True},
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
            {**SHAPE, "strict": True, "description": None},
        ),
    ],
)
def test_the_response_repeats_the_format(given: object, expected: dict[str, Any]) -> None:
    response = whole(writer(text={"format": given}), [])
    RESPONSE.validate_python(response)
    assert response["text"]["format"] == {**response["text"]["format"], **expected}
    assert "json_schema" not in response["text"]["format"]
    assert response["text"]["verbosity"] == "medium"


@pytest.mark.parametrize(
    "choice",
    [
        "auto",
        "none",
        "required",
        {"type": "function", "name": "find"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "find"}],
        },
    ],
)
def test_the_response_repeats_the_choice_of_tools(choice: object) -> None:
    response = whole(writer(tool_choice=choice), [])
    RESPONSE.validate_python(response)
    assert response["tool_choice"] == choice
    assert response["parallel_tool_calls"] is True
    response = whole(writer(tool_choice=choice, parallel_tool_calls=False), [])
    assert response["parallel_tool_calls"] is False


def test_the_response_reports_the_limit_of_the_reasoning_and_what_went_beyond_it() -> None:
    response = whole(writer(thinking_budget=3), [])
    assert response["reasoning"] == {"effort": None, "summary": None, "max_tokens": 3}
    response = whole(writer(max_thinking_tokens=-1), [])
    assert response["reasoning"] == {"effort": None, "summary": None, "max_tokens": -1}
    own = writer()
    usage = RowUsage(7, 3, 5, 0.1, 0.2, 0.3, reasoning_tokens=4, reasoning_overflow_tokens=1)
    (*_, end) = events(streamed(own, TURN[:1], last(usage=usage)))
    details = end["response"]["usage"]["output_tokens_details"]
    assert details == {"reasoning_tokens": 4, "reasoning_overflow_tokens": 1}
