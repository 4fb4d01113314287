"""Answers as clients get them, in each dialect. Each of these was a fault of another server."""

import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.engine.scripted.cache import ScriptedCache
from node.engine.scripted.script import Script
from tests.node.serving import RunningAgent, chat_body, data_of, running
from tests.reports.answers import DIALECTS, Ask, both, chat, messages, post, responses
from tests.reports.samples import ARGUMENTS, CALLS

CALL = CALLS["hermes"]
FIND = ("find", ARGUMENTS)
PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}


@contextlib.asynccontextmanager
async def generating(
    home: Path, *outputs: str, times: int = 6, **fields: Any
) -> AsyncIterator[RunningAgent]:
    """An agent whose model writes the first output in its first answers, and so on: streamed and
    whole in each dialect. `fields` are settings."""
    script = Script(outputs=tuple(output for output in outputs for _ in range(times)))
    known = {"tool_parsers": (("", "hermes"),), "reasoning_parsers": (("", "think"),)}
    async with running(home, script, **{**known, **fields}) as agent:
        yield agent


def limited(ask: Ask, tokens: int) -> dict[str, int]:
    """The field that limits an answer."""
    return {"max_output_tokens" if ask is responses else "max_tokens": tokens}


# --- the output ------------------------------------------------------------------------------

OUTPUTS = {
    "Just text.\n\nOf two paragraphs.": ("Just text.\n\nOf two paragraphs.", "", []),
    "<think>\nHm.\n</think>\n\nSo.": ("So.", "Hm.", []),
    f"<think>\nHm.\n</think>\n\nI look.\n{CALL}": ("I look.", "Hm.", [FIND]),
    f"{CALL}\n{CALL.replace('3', '4')}": ("", "", [FIND, ("find", {"where": "a b", "depth": 4})]),
    '[Calling tool: find({"where": "a b", "depth": 3})]': ("", "", [FIND]),
    f"{CALL}\n" * 13: ("", "", [FIND]),
    "<think>Hm.</think>A <think> begins it.": ("A <think> begins it.", "Hm.", []),
    "Write `<tool_call>` first. <|im_end|>": ("Write `<tool_call>` first. <|im_end|>", "", []),
    '{"name": "John", "age": 25}': ('{"name": "John", "age": 25}', "", []),
    CALL.replace("find", "seek"): (CALL.replace("find", "seek"), "", []),
    CALL.replace("3", "1e999"): (
        "",
        "",
        [("find", {"where": "a b", "depth": sys.float_info.max})],
    ),
    CALL.replace("a b", "\\ud83d"): ("", "", [("find", {"where": "\ufffd", "depth": 3})]),
    CALL[:40]: (CALL[:40], "", []),
}
"""(content, reasoning, calls) of each."""


async def test_an_answer_is_the_same_streamed_and_whole(tmp_path: Path) -> None:
    async with generating(tmp_path, *OUTPUTS) as agent:
        for output, expected in OUTPUTS.items():
            for ask in DIALECTS.values():
                answer = await both(ask, agent)
                assert answer.content_and_calls() == expected
                assert answer.usage is not None
                assert answer.usage.prompt > 0
                assert answer.usage.completion == -(-len(output) // 4)


async def test_a_piece_of_white_space_is_sent(tmp_path: Path) -> None:
    # The model's tokens have four characters.
    text = "One.\n\n\n\nTwo.    \t\t\t\tMore"
    async with generating(tmp_path, text, f"<think>{text}</think>So.") as agent:
        for ask in DIALECTS.values():
            assert (await both(ask, agent)).content == text
        for ask in DIALECTS.values():
            assert (await both(ask, agent)).reasoning == text


async def test_tokens_that_arrive_together_are_all_sent(tmp_path: Path) -> None:
    words = [f"w{number}" for number in range(3000)]
    async with (
        running(tmp_path, Script(text=" ".join(words))) as agent,
        agent.client.stream(
            "POST", "/v1/chat/completions", json=chat_body(stream=True)
        ) as response,
    ):
        # Nobody reads until the model has generated all of it.
        await agent.until_active(0)
        chunks = data_of((await response.aread()).decode())
    contents = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]]
    assert "".join(contents) == " ".join(words)


async def test_a_call_that_is_repeated_is_sent_again_if_the_node_is_set_so(
    tmp_path: Path,
) -> None:
    async with generating(tmp_path, CALL * 3, repeated_tool_calls=True) as agent:
        for ask in DIALECTS.values():
            assert (await both(ask, agent)).content_and_calls()[2] == [FIND] * 3
            ids = {call.call_id for call in (await ask(agent, stream=True)).calls}
            assert len(ids) == 3


# --- markup that is none ---------------------------------------------------------------------


async def test_without_tools_no_call_is_read(tmp_path: Path) -> None:
    text = f"So:\n{CALL}\nor [Calling tool: find({{}})]."
    async with generating(tmp_path, text) as agent:
        for ask in DIALECTS.values():
            assert (await both(ask, agent, tools=None)).content_and_calls() == (text, "", [])


async def test_no_call_is_ever_made_where_none_is_wanted(tmp_path: Path) -> None:
    async with generating(tmp_path, f"<think>Hm.</think>So:\n{CALL}") as agent:
        for ask in DIALECTS.values():
            choice: Any = {"type": "none"} if ask is messages else "none"
            answer = await both(ask, agent, tool_choice=choice)
            assert answer.content_and_calls() == (f"So:\n{CALL}", "Hm.", [])
            assert answer.finish in ("stop", "end_turn", "completed")


async def test_a_node_reads_nothing_out_of_outputs_if_it_is_set_so(tmp_path: Path) -> None:
    text = f"<think>Hm.</think>\n{CALL}"
    parsers: dict[str, Any] = {
        "tool_parsers": (("", "none"),),
        "reasoning_parsers": (("", "none"),),
    }
    async with generating(tmp_path, text, **parsers) as agent:
        for ask in DIALECTS.values():
            assert (await both(ask, agent)).content_and_calls() == (text, "", [])
    parsers["reasoning_parsers"] = (("", "think"),)
    async with generating(tmp_path, text, **parsers) as agent:
        assert (await both(chat, agent)).content_and_calls() == (CALL, "Hm.", [])


# --- how calls are sent ----------------------------------------------------------------------


async def test_the_pieces_of_the_arguments_are_exactly_their_json(tmp_path: Path) -> None:
    arguments = {"where": '"quoted"\n\\ {"a": 1} é \N{SAILBOAT}', "filter": {"a": [None, 1.5]}}
    written = json.dumps({"name": "find", "arguments": arguments})
    async with generating(tmp_path, f"<tool_call>\n{written}\n</tool_call>") as agent:
        for ask in DIALECTS.values():
            (call,) = (await both(ask, agent)).calls
            assert json.loads(call.arguments) == arguments


async def test_a_call_keeps_its_id_over_chunks_and_none_shares_it(tmp_path: Path) -> None:
    ids: list[str] = []
    async with generating(tmp_path, CALL + CALL.replace("3", "4")) as agent:
        for ask in DIALECTS.values():
            for stream in (True, False):
                # That the chunks of a stream agree is seen as they are read.
                ids += [call.call_id for call in (await ask(agent, stream=stream)).calls]
    assert len(set(ids)) == len(ids) == 12


async def test_the_first_chunk_of_a_call_has_no_piece_of_the_arguments(tmp_path: Path) -> None:
    async with generating(tmp_path, CALL) as agent:
        response = await agent.chat(stream=True, tools=[_FUNCTION])
    deltas = [chunk["choices"][0]["delta"] for chunk in data_of(response.text)[:-1]]
    first, *rest = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert first["function"] == {"name": "find", "arguments": ""}
    assert json.loads("".join(call["function"]["arguments"] for call in rest)) == ARGUMENTS


_FUNCTION = {"type": "function", "function": {"name": "find"}}


async def test_no_empty_block_stands_between_thinking_and_a_call(tmp_path: Path) -> None:
    output = f"<think>\nHm.\n</think>\n\n\n{CALL}\n\n{CALL.replace('3', '4')}\n"
    async with generating(tmp_path, output) as agent:
        assert (await both(messages, agent)).kinds == ["thinking", "tool_use", "tool_use"]
        assert (await both(responses, agent)).kinds == ["reasoning", *["function_call"] * 2]
        answer = await both(chat, agent)
        assert answer.content == ""


async def test_a_call_of_a_namespace_is_returned_with_it(tmp_path: Path) -> None:
    inner = {"type": "function", "name": "find", "parameters": {}}
    tools = [{"type": "namespace", "name": "files", "description": "Of files.", "tools": [inner]}]
    tools.append({"type": "function", "name": "ping"})
    called = CALL.replace("find", "files__find") + '<tool_call>{"name": "ping"}</tool_call>'
    body = {"input": "hello", "tools": tools, "store": False}
    async with generating(tmp_path, called, "Done.", times=2) as agent:
        whole = (await post(agent, "/v1/responses", body)).json()["output"]
        events = data_of((await post(agent, "/v1/responses", {**body, "stream": True})).text)
        again = [{"role": "user", "content": "hello"}, *whole]
        for item in whole:
            result = {"type": "function_call_output", "call_id": item["call_id"], "output": "ok"}
            again.append(result)
        assert (await post(agent, "/v1/responses", {**body, "input": again})).status_code == 200
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    for items in (whole, done, added):
        assert [(item.get("namespace"), item["name"]) for item in items] == [
            ("files", "find"),
            (None, "ping"),
        ]


@pytest.mark.parametrize(
    ("setting", "fields"),
    [
        ("reasoning_content", {"reasoning_content"}),
        ("reasoning", {"reasoning"}),
        ("both", {"reasoning_content", "reasoning"}),
    ],
)
async def test_reasoning_is_sent_in_the_field_that_the_node_is_set_to(
    tmp_path: Path, setting: str, fields: set[str]
) -> None:
    known = {"reasoning_content", "reasoning"}
    async with generating(tmp_path, "<think>Hm.</think>So.", reasoning_field=setting) as agent:
        whole = (await agent.chat()).json()["choices"][0]["message"]
        chunks = data_of((await agent.chat(stream=True)).text)[:-1]
    assert {name: whole[name] for name in known & set(whole)} == dict.fromkeys(fields, "Hm.")
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    streamed = {name: "".join(delta.get(name, "") for delta in deltas) for name in known}
    assert {name: text for name, text in streamed.items() if text} == dict.fromkeys(fields, "Hm.")


# --- how answers end -------------------------------------------------------------------------

LAST_WORDS = {
    "So": ("So", False),
    "So <tool_c": ("So <tool_c", False),
    "So <": ("So <", False),
    "<think>": ("", False),
    "<think>Hm": ("Hm", False),
    "<think>Hm.</think>": ("Hm.", False),
    "<think>Hm.</th": ("Hm.</th", False),
    "\n\n": ("", False),
    CALL: ("", True),
    f"So.\n{CALL}\n": ("So.", True),
    CALL[:40]: (CALL[:40], False),
    "[Calling tool: find({": ("[Calling tool: find({", False),
}
"""Outputs whose last tokens are text, markup, or something withheld: (what is sent, whether there
is a call)."""


async def test_a_stream_always_reports_how_it_ended(tmp_path: Path) -> None:
    async with generating(tmp_path, *LAST_WORDS) as agent:
        for output, (text, is_call) in LAST_WORDS.items():
            for ask in DIALECTS.values():
                answer = await both(ask, agent)
                assert (answer.content + answer.reasoning).strip() == text
                assert len(answer.calls) == is_call
                ends = ("tool_calls", "tool_use") if is_call else ("stop", "end_turn")
                assert answer.finish in (*ends, "completed"), output


async def test_reasoning_that_the_limit_cuts_is_reasoning_alone(tmp_path: Path) -> None:
    async with generating(tmp_path, "<think>\nOne. Two. Three. Four. Five.</think>So.") as agent:
        for ask in DIALECTS.values():
            answer = await both(ask, agent, **limited(ask, 5))
            assert answer.content_and_calls() == ("", "One. Two. Th", [])
            assert answer.finish in ("length", "max_tokens", "max_output_tokens")
            assert answer.usage is not None
            # Two of its tokens are what opens the reasoning, which is none of it.
            assert (answer.usage.completion, answer.usage.reasoning) == (5, 3)


@pytest.mark.parametrize("streams", [True, False])
async def test_a_call_of_which_nothing_was_sent_is_text_where_the_limit_cuts_it(
    tmp_path: Path, streams: bool
) -> None:
    text = f"I look.\n{CALL}"
    async with generating(tmp_path, text, tool_stream=streams) as agent:
        for tokens in (2, 5, 9, 14) if streams else (2, 5, 9, 14, 18):
            for ask in DIALECTS.values():
                answer = await both(ask, agent, **limited(ask, tokens))
                assert (answer.content.strip(), answer.calls) == (text[: 4 * tokens].strip(), ())
                assert answer.finish in ("length", "max_tokens", "max_output_tokens")


async def test_a_stop_string_is_looked_for_in_the_answer_alone(tmp_path: Path) -> None:
    called = CALL.replace("a b", "a. b")
    output = f"<think>Hm. Well.</think>It rains{called}\nDone. So."
    async with generating(tmp_path, output) as agent:
        for ask in DIALECTS.values():
            stops: Any = {"stop_sequences": ["."]} if ask is messages else {"stop": "."}
            answer = await both(ask, agent, **stops)
            content, reasoning, calls = answer.content_and_calls()
            assert content.split() == ["It", "rains", "Done"]
            assert (reasoning, calls) == ("Hm. Well.", [("find", {"where": "a. b", "depth": 3})])
            assert answer.finish in ("tool_calls", "stop_sequence", "completed")


# --- usage -----------------------------------------------------------------------------------


async def test_usage_is_the_same_streamed_and_whole(tmp_path: Path) -> None:
    cache = ScriptedCache(capacity_tokens=10_000)
    script = Script(outputs=("<think>Hm. Hm.</think>So.",), cache=cache)
    async with running(tmp_path, script, reasoning_parsers=(("", "think"),)) as agent:
        first = (await chat(agent, stream=False)).usage
        assert first is not None
        assert first.cached == 0
        assert 0 < first.reasoning < first.completion
        for ask in DIALECTS.values():
            usage = (await both(ask, agent)).usage
            # The last token of a prompt is always computed.
            assert usage == replace(first, cached=first.prompt - 1)


# --- failures --------------------------------------------------------------------------------


def _body(dialect: str, **fields: Any) -> dict[str, Any]:
    user = [{"role": "user", "content": "hello"}]
    if dialect == "responses":
        return {"input": user, "store": False, **fields}
    return {"messages": user, **({"max_tokens": 99} if dialect == "messages" else {}), **fields}


async def test_a_failure_is_a_status_before_the_first_byte(tmp_path: Path) -> None:
    script = Script(text="one two three", step_failure_after_tokens=0)
    async with running(tmp_path, script) as agent:
        for dialect, path in PATHS.items():
            # An engine that fails twice in a row ends; a new one serves the next request.
            for stream, status in ((True, 500), (False, 503)):
                failed = await post(agent, path, _body(dialect, stream=stream))
                assert failed.status_code == status
                assert failed.headers["content-type"] == "application/json"
                assert failed.json()["error"]["message"]


async def test_a_failure_is_one_event_in_a_stream_that_has_begun(tmp_path: Path) -> None:
    script = Script(text="one two three", token_interval_s=0.05, step_failure_after_tokens=2)
    async with running(tmp_path, script) as agent:
        for dialect, path in PATHS.items():
            streamed = await post(agent, path, _body(dialect, stream=True))
            whole = await post(agent, path, _body(dialect))
            assert (streamed.status_code, whole.status_code) == (200, 500)
            *_, last = data_of(streamed.text)
            failed = last["response"] if dialect == "responses" else last
            assert failed["error"]["message"] == whole.json()["error"]["message"]
            # No end behind it, and nothing that reports success.
            for word in ("[DONE]", '"finish_reason":"', "message_stop", "response.completed"):
                assert word not in streamed.text


async def test_what_can_never_be_answered_is_refused_and_no_failed_response(
    tmp_path: Path,
) -> None:
    # Agents try again on a failed response, for ever.
    async with running(tmp_path, Script(text="one two three four")) as agent:
        for body in ({"input": "x" * 4 * 40_000}, {"input": "x", "background": True}):
            for stream in (True, False):
                refused = await post(agent, "/v1/responses", {**body, "stream": stream})
                assert refused.status_code == 400
                assert refused.json()["error"]["message"]
        cut = await both(responses, agent, max_output_tokens=2)
        assert cut.finish == "max_output_tokens"


Refused = tuple[tuple[str, str, dict[str, Any]], ...]
"""(dialect, field at fault, fields) of bodies."""


async def _refuses(home: Path, bodies: Refused) -> None:
    """Checks that each is a 400 that names the field, streamed or not."""
    async with running(home) as agent:
        for dialect, param, fields in bodies:
            for stream in (True, False):
                body = {**_body(dialect), "stream": stream, **fields}
                refused = await post(agent, PATHS[dialect], body)
                assert refused.status_code == 400
                error = refused.json()["error"]
                # Anthropic's errors have no field for it.
                assert error.get("param", param) == param
                assert "param" in error or param in error["message"]


_SCHEMA = {"type": "object", "properties": {"a": {"type": "no such type"}}}
_JSON: dict[str, Any] = {"type": "json_schema", "schema": _SCHEMA}


async def test_a_schema_that_cannot_constrain_the_answer_is_refused_by_name(
    tmp_path: Path,
) -> None:
    bodies: Refused = (
        ("chat", "response_format", {"response_format": {"type": "json_object"}}),
        (
            "chat",
            "response_format.json_schema.schema",
            {"response_format": {**_JSON, "json_schema": _JSON}},
        ),
        ("chat", "guided_json", {"guided_json": _SCHEMA}),
        ("responses", "text.format.schema", {"text": {"format": _JSON}}),
        ("messages", "output_config.format.schema", {"output_config": {"format": _JSON}}),
    )
    await _refuses(tmp_path, bodies)


async def test_a_call_that_cannot_be_forced_is_refused_by_name(tmp_path: Path) -> None:
    named: dict[str, Any] = {"type": "function", "name": "find"}
    tool = {"name": "find", "input_schema": {}}
    bodies: list[tuple[str, str, dict[str, Any]]] = []
    for dialect, tools, choices in (
        ("chat", [_FUNCTION], ("required", _FUNCTION)),
        ("responses", [named], ("required", named)),
        ("messages", [tool], ({"type": "any"}, {"type": "tool", "name": "find"})),
    ):
        forced = [{"tools": tools, "tool_choice": choice} for choice in choices]
        bodies += [(dialect, "tool_choice", body) for body in forced]
    await _refuses(tmp_path, tuple(bodies))


async def test_thinking_is_limited_to_a_budget_by_any_of_its_names(tmp_path: Path) -> None:
    output = f"<think>{'Hm. ' * 40}</think>So."
    budgets: tuple[tuple[Ask, dict[str, Any]], ...] = (
        (chat, {"max_thinking_tokens": 5}),
        (chat, {"thinking_token_budget": 5}),
        (chat, {"reasoning": {"max_tokens": 5}}),
        (responses, {"thinking_budget": 5}),
        (messages, {"thinking": {"type": "enabled", "budget_tokens": 5}}),
    )
    async with generating(tmp_path, output) as agent:
        free = await both(chat, agent)
        assert free.usage is not None
        for ask, fields in budgets:
            limited_answer = await both(ask, agent, **fields)
            assert limited_answer.usage is not None
            assert limited_answer.usage.reasoning < free.usage.reasoning / 4
            assert free.reasoning.startswith(limited_answer.reasoning)
            assert limited_answer.content.endswith("So.")
