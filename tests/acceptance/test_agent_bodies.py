"""Tests requests of agent clients, through a router to an agent."""

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.acceptance.processes import Router, admin, fleet

MODEL = "scripted"
TIMEOUT_S = 30.0
PIXELS = "iVBORw0KGgo="


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """A router before an agent whose model generates little."""
    script: dict[str, object] = {"text": "fine", "cache": {"capacity_tokens": 100_000}}
    with fleet(tmp_path_factory.mktemp("bodies"), script) as (running, _agents):
        running.must("load", MODEL)
        yield running


def ask(front: Router, path: str, body: dict[str, Any]) -> httpx.Response:
    headers = {"authorization": f"Bearer {front.key}"}
    body = {"model": MODEL, **body}
    return httpx.post(front.url + path, headers=headers, json=body, timeout=TIMEOUT_S)


def entries(front: Router) -> float:
    """Returns the number of prefixes that the router knows its node to have cached."""
    text = httpx.get(front.url + "/metrics", headers=admin(front), timeout=TIMEOUT_S).text
    found = re.search(r"^mlx_fleet_prefix_index_entries\{.*\} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def until_known(front: Router, before: float) -> None:
    """Until what a request has stored has been reported to the router."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while entries(front) <= before:
        assert time.monotonic() < deadline_s, "no prefixes are reported"
        time.sleep(0.02)


def message_turns() -> list[dict[str, Any]]:
    """Returns the messages of a session in which a tool shows a picture and a PDF, as Claude Code
    returns them."""
    image = {"type": "image", "source": {"type": "base64", "data": PIXELS}}
    pdf = {"type": "document", "source": {"type": "base64", "data": "JVBERi0="}}
    turns: list[dict[str, Any]] = [{"role": "user", "content": "Look at pic.png, please. " * 40}]
    for name, content, beside in (("a", [image], []), ("b", "PDF read.", [pdf])):
        call = {"type": "tool_use", "id": name, "name": "Read", "input": {"path": name}}
        result = {"type": "tool_result", "tool_use_id": name, "content": content}
        turns.append({"role": "assistant", "content": [call]})
        turns.append({"role": "user", "content": [result, *beside]})
    turns.append({"role": "assistant", "content": "fine"})
    turns.append({"role": "user", "content": "Go on without it. " * 20})
    return turns


def response_items() -> list[dict[str, Any]]:
    """Returns the items of a session in which a tool shows a picture, as Codex returns them."""
    picture = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXELS}"}
    call = {"type": "function_call", "call_id": "a", "name": "view_image", "arguments": "{}"}
    output = {"type": "output_text", "text": "fine"}
    return [
        {"type": "message", "role": "user", "content": "View pic.png for me. " * 40},
        call,
        {"type": "function_call_output", "call_id": "a", "output": [picture]},
        {"type": "message", "role": "assistant", "content": [output]},
        {"type": "message", "role": "user", "content": "Go on without it. " * 20},
    ]


@pytest.mark.parametrize(
    ("path", "field", "turns"),
    [
        ("/v1/messages", "messages", message_turns()),
        ("/v1/responses", "input", response_items()),
    ],
)
def test_a_session_goes_on_behind_a_picture_and_reuses_all_before_it(
    front: Router, path: str, field: str, turns: list[dict[str, Any]]
) -> None:
    most = {"max_tokens": 8} if field == "messages" else {"max_output_tokens": 8}
    prompts: list[int] = []
    for count in range(1, len(turns) + 1):
        if turns[count - 1].get("role") == "assistant" or "name" in turns[count - 1]:
            continue
        known = entries(front)
        answer = ask(front, path, {field: turns[:count], **most})
        assert answer.status_code == 200, answer.text
        predicted, actual = map(int, answer.headers["x-fleet-cached-tokens"].split("/"))
        if prompts:
            # All of the prompt before, but for what may merge with the text that follows.
            assert prompts[-1] - 4 <= predicted <= actual <= prompts[-1]
        usage = answer.json()["usage"]
        prompts.append(usage["input_tokens"] + usage.get("cache_read_input_tokens", 0))
        until_known(front, known)
    assert len(prompts) >= 3


# --- tools that only a host could run --------------------------------------------------------

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def of_path(path: str) -> dict[str, Any]:
    """A body with tools of a host behind one of the client's own."""
    hosted = [{"type": "web_search"}, {"type": "image_generation"}]
    user = {"role": "user", "content": "hi"}
    if path == "/v1/responses":
        return {"input": "hi", "tools": [FUNCTION, *hosted]}
    if path == "/v1/chat/completions":
        own = {"type": "function", "function": {"name": "f"}}
        return {"messages": [user], "tools": [own, *hosted]}
    own = {"name": "f", "input_schema": {"type": "object"}}
    named = [{**each, "name": each["type"]} for each in hosted]
    most = {} if path.endswith("count_tokens") else {"max_tokens": 8}
    return {"messages": [user], "tools": [own, *named], **most}


@pytest.mark.parametrize(
    ("path", "stream"),
    [
        ("/v1/chat/completions", False),
        ("/v1/chat/completions", True),
        ("/v1/responses", False),
        ("/v1/responses", True),
        ("/v1/messages", False),
        ("/v1/messages", True),
        ("/v1/messages/count_tokens", False),
    ],
)
def test_what_is_left_out_is_reported_to_the_caller_behind_the_router(
    front: Router, path: str, stream: bool
) -> None:
    body = of_path(path)
    answer = ask(front, path, {**body, "stream": True} if stream else body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-fleet-ignored"] == "tools[1],tools[2]"
    assert answer.headers["warning"] == (
        '299 mlx-fleet "Left out, since only a host could run it: tools[1] (web_search), '
        'tools[2] (image_generation)"'
    )
    plain = ask(front, path, {**body, "tools": body["tools"][:1]})
    assert "x-fleet-ignored" not in plain.headers
    assert "warning" not in plain.headers


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_forced_tool_of_a_host_is_a_400_that_names_the_field(front: Router, path: str) -> None:
    answer = ask(front, path, {**of_path(path), "tool_choice": {"type": "web_search"}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tool_choice.type"


@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_input_with_a_limit_of_one_token_is_a_probe(front: Router, stream: bool) -> None:
    answer = ask(front, "/v1/responses", {"input": [], "max_output_tokens": 1, "stream": stream})
    assert answer.status_code == 200
    assert '"output_tokens":1' in answer.text


def test_a_client_may_look_whether_somebody_is_there(front: Router) -> None:
    answer = httpx.head(front.url + "/", timeout=TIMEOUT_S)
    assert (answer.status_code, answer.content) == (200, b"")
