"""Sessions of twenty turns with tools, by SDKs through a router to an agent.

The model is scripted with outputs as models write them. Its calls have what breaks parsers: quotes,
line ends, other alphabets, nested values, and text that looks like markup.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai

from node.protocol.ids import parse_id
from tests.acceptance.processes import Router, agent, router

TURNS = 20
MODEL = "scripted"
USAGE_TIMEOUT_S = 30.0
MARKUP = ("<think", "</think", "<tool_call", "</tool_call", "<function", "<parameter")

_TEXT = {"type": "string"}
TOOLS: Mapping[str, Mapping[str, Any]] = {
    "read_file": {
        "type": "object",
        "properties": {"path": _TEXT, "first": {"type": "integer"}, "all": {"type": "boolean"}},
        "required": ["path"],
    },
    "write_file": {
        "type": "object",
        "properties": {"path": _TEXT, "content": _TEXT},
        "required": ["path", "content"],
    },
    "search": {
        "type": "object",
        "properties": {
            "query": _TEXT,
            "where": {"type": "object"},
            "kinds": {"type": "array", "items": _TEXT},
        },
        "required": ["query"],
    },
    "run": {
        "type": "object",
        "properties": {"command": _TEXT, "limits": {"type": "object"}},
        "required": ["command"],
    },
}

Call = tuple[str, dict[str, Any]]

_CALLS: tuple[Call, ...] = (
    ("read_file", {"path": "src/ünï/код.py", "first": 1, "all": False}),
    ("write_file", {"path": "a.txt", "content": 'She said "no".\nThen \\n and \ttabs.\n\nEnd'}),
    ("search", {"query": "日本語 🦊", "where": {"lang": {"in": ["ja", "de"], "not": None}}}),
    ("run", {"command": 'grep -n \'"x"\' <<< "a" && echo $HOME | tr a-z A-Z'}),
    ("write_file", {"path": "page.html", "content": '<div class="a">\n  <b>Hi</b> & bye\n</div>'}),
    ("search", {"query": "</tool_call> in <tool_call>", "kinds": ["text", "code"]}),
    ("read_file", {"path": "C:\\new\\table.txt", "first": 0, "all": True}),
    ("write_file", {"path": "x.md", "content": "Use <think>…</think> and\n`<parameter=a>` here."}),
    ("run", {"command": "true", "limits": {"time": 1.5, "env": {"A": '{"b": [1, 2]}'}}}),
    ("search", {"query": '{"name": "run", "arguments": {}}', "where": {}}),
)
"""The turns take them one after another, and again from the first."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The output that the model generates in one turn."""

    reasoning: str
    text: str
    calls: tuple[Call, ...]


def _turn(number: int) -> Turn:
    """Every third turn calls two tools, every second one has text besides."""
    calls = [_CALLS[number % len(_CALLS)]]
    if number % 3 == 2:
        calls.append(("run", {"command": f"step {number}"}))
    text = f"Now step {number}: «go on»." if number % 2 else ""
    return Turn(f"I am at step {number}.\nIt needs a tool.", text, tuple(calls))


SESSION = (
    *(_turn(number) for number in range(TURNS)),
    Turn("All is done.", "All twenty steps are done.\n\n- No call is left.", ()),
)


def _hermes_call(name: str, arguments: dict[str, Any]) -> str:
    body = {"name": name, "arguments": arguments}
    return f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>"


def _xml_call(name: str, arguments: dict[str, Any]) -> str:
    values = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in arguments.items()
    }
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def _outputs(spell: Callable[[str, dict[str, Any]], str]) -> list[str]:
    outputs = []
    for turn in SESSION:
        pieces = [turn.text, *(spell(name, arguments) for name, arguments in turn.calls)]
        answer = "\n".join(each for each in pieces if each)
        outputs.append(f"<think>\n{turn.reasoning}\n</think>\n\n{answer}")
    return outputs


@contextmanager
def _fleet(
    folder: Path, parser: str, spell: Callable[[str, dict[str, Any]], str]
) -> Iterator[Router]:
    script: dict[str, object] = {"outputs": _outputs(spell), "models": [{"name": MODEL}]}
    options = ("--tool-parser", parser, "--reasoning-parser", "think")
    with (
        router(folder / "router") as front,
        agent(folder / "node1", script, *options) as node,
    ):
        front.must("add-node", node.url, "--name", "node1", "--token", node.token)
        yield front


@dataclass(frozen=True, slots=True)
class Account:
    """The usage of a request, as its answer and as the usage table report it."""

    request_id: str
    reason: str
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int


def _request_id(answer_id: str) -> str:
    found = parse_id(answer_id)
    assert found is not None
    return found.request_id


def _usage(front: Router, count: int) -> set[Account]:
    """The rows of the usage table, once there are `count`; they are written in batches."""
    deadline_s = time.monotonic() + USAGE_TIMEOUT_S
    names = "request_id, reason, prompt_tokens, completion_tokens, reasoning_tokens"
    while True:
        with closing(sqlite3.connect(f"file:{front.registry}?mode=ro", uri=True)) as database:
            rows = database.execute(f"select {names} from usage").fetchall()
        if len(rows) >= count:
            return {Account(*row) for row in rows}
        assert time.monotonic() < deadline_s, f"{len(rows)} usage rows of {count}"
        time.sleep(0.2)


def _check(parsed: list[Turn], accounts: list[Account], front: Router) -> None:
    assert parsed == list(SESSION)
    for turn in parsed:
        assert not [mark for mark in MARKUP if mark in turn.text + turn.reasoning]
    lengths = [account.prompt_tokens for account in accounts]
    assert lengths == sorted(set(lengths))
    assert all(0 < a.reasoning_tokens < a.completion_tokens for a in accounts)
    assert len({account.request_id for account in accounts}) == len(SESSION)
    assert _usage(front, len(SESSION)) == set(accounts)


# --- Anthropic -------------------------------------------------------------------------------


def _message(
    client: anthropic.Anthropic, messages: list[Any]
) -> tuple[anthropic.types.Message, str]:
    """A streamed message, and the text of its deltas."""
    tools: Any = [{"name": name, "input_schema": schema} for name, schema in TOOLS.items()]
    with client.messages.stream(
        model=MODEL, max_tokens=8000, messages=messages, tools=tools
    ) as stream:
        text = "".join(stream.text_stream)
        return stream.get_final_message(), text


def _parsed(message: anthropic.types.Message) -> Turn:
    thinking = "".join(each.thinking for each in message.content if each.type == "thinking")
    text = "".join(each.text for each in message.content if each.type == "text")
    uses = [each for each in message.content if each.type == "tool_use"]
    return Turn(thinking, text, tuple((each.name, dict(each.input)) for each in uses))


def _message_account(message: anthropic.types.Message) -> Account:
    usage = message.usage
    assert usage.output_tokens_details is not None
    return Account(
        _request_id(message.id),
        "stop",
        usage.input_tokens + (usage.cache_read_input_tokens or 0),
        usage.output_tokens,
        usage.output_tokens_details.thinking_tokens,
    )


def test_twenty_turns_of_the_anthropic_sdk_are_structured_calls_only(tmp_path: Path) -> None:
    messages: list[Any] = [{"role": "user", "content": "Do all twenty steps."}]
    parsed: list[Turn] = []
    accounts = []
    with (
        _fleet(tmp_path, "qwen3_coder", _xml_call) as front,
        anthropic.Anthropic(base_url=front.url, api_key=front.key, max_retries=0) as client,
    ):
        while not parsed or parsed[-1].calls:
            message, text = _message(client, messages)
            parsed.append(_parsed(message))
            accounts.append(_message_account(message))
            assert text == parsed[-1].text
            assert message.stop_reason == ("tool_use" if parsed[-1].calls else "end_turn")
            messages.append({"role": "assistant", "content": message.content})
            results = [
                {"type": "tool_result", "tool_use_id": each.id, "content": f"<ok> {each.name}"}
                for each in message.content
                if each.type == "tool_use"
            ]
            messages.append({"role": "user", "content": results})
        _check(parsed, accounts, front)


# --- OpenAI ----------------------------------------------------------------------------------


def _completion(
    client: openai.OpenAI, messages: list[Any], *, stream: bool
) -> openai.types.chat.ChatCompletion:
    tools: Any = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in TOOLS.items()
    ]
    if not stream:
        return client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
    with client.chat.completions.stream(
        model=MODEL, messages=messages, tools=tools, stream_options={"include_usage": True}
    ) as events:
        return events.get_final_completion()


def _chat_account(answer: openai.types.chat.ChatCompletion) -> Account:
    usage = answer.usage
    assert usage is not None and usage.completion_tokens_details is not None
    return Account(
        _request_id(answer.id),
        "stop",
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.completion_tokens_details.reasoning_tokens or 0,
    )


def test_twenty_turns_of_the_openai_sdk_are_structured_calls_only(tmp_path: Path) -> None:
    messages: list[Any] = [{"role": "user", "content": "Do all twenty steps."}]
    parsed: list[Turn] = []
    accounts = []
    with (
        _fleet(tmp_path, "hermes", _hermes_call) as front,
        openai.OpenAI(base_url=front.url + "/v1", api_key=front.key, max_retries=0) as client,
    ):
        while not parsed or parsed[-1].calls:
            answer = _completion(client, messages, stream=len(parsed) % 2 == 0)
            (choice,) = answer.choices
            message = choice.message.model_dump(exclude_none=True)
            calls = message.get("tool_calls", [])
            functions = [each["function"] for each in calls]
            named = tuple((each["name"], json.loads(each["arguments"])) for each in functions)
            parsed.append(Turn(message["reasoning_content"], message.get("content", ""), named))
            accounts.append(_chat_account(answer))
            assert choice.finish_reason == ("tool_calls" if named else "stop")
            messages.append({"role": "assistant", **message})
            messages += [
                {"role": "tool", "tool_call_id": each["id"], "content": "<ok>"} for each in calls
            ]
        _check(parsed, accounts, front)
