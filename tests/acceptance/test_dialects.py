"""Errors in the caller's dialect, running requests and stored responses, through a router."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import openai
import pytest
from openai.types.responses import Response

from node.protocol.ids import parse_id
from tests.acceptance.processes import Router, fleet

MODEL = "scripted"
LONG_TOKENS = 5000
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """A router before two slow agents, which both have the model loaded."""
    script: dict[str, object] = {"token_interval_s": 0.01}
    with fleet(tmp_path_factory.mktemp("dialects"), script, script) as (running, _agents):
        for node in ("node1", "node2"):
            running.must("load", MODEL, "--node", node)
        yield running


@pytest.fixture(scope="module")
def other_key(front: Router) -> str:
    made = json.loads(front.must("keys", "create", "other", "--json"))
    return str(made["key"])


@contextmanager
def _openai(front: Router, key: str = "") -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=front.url + "/v1", api_key=key or front.key, max_retries=0, timeout=TIMEOUT_S
    ) as client:
        yield client


@contextmanager
def _anthropic(front: Router, key: str = "") -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=front.url, api_key=key or front.key, max_retries=0, timeout=TIMEOUT_S
    ) as client:
        yield client


# --- errors ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asker:
    """One path, called by its SDK; `ask(front, key, fields)` adds fields to the body."""

    path: str
    sdk: Any
    ask: Callable[[Router, str, dict[str, Any]], object]
    refused: tuple[str, object]
    """A field that is refused, and its value."""

    def kind(self, error: Any) -> str:
        """Returns the error's type, as its envelope names it."""
        if self.sdk is anthropic:
            assert error.body["type"] == "error"
            return str(error.body["error"]["type"])
        return str(error.type)


def _ask_chat(front: Router, key: str, fields: dict[str, Any]) -> object:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], **fields}
    with _openai(front, key) as client:
        return client.post("/chat/completions", body=body, cast_to=object)


def _ask_response(front: Router, key: str, fields: dict[str, Any]) -> object:
    with _openai(front, key) as client:
        body = {"model": MODEL, "input": "hello", **fields}
        return client.post("/responses", body=body, cast_to=object)


def _ask_message(front: Router, key: str, fields: dict[str, Any]) -> object:
    body: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 4,
        "messages": [{"role": "user", "content": "hello"}],
    }
    with _anthropic(front, key) as client:
        return client.messages.create(**body, extra_body=fields)


ASKERS = (
    Asker("chat", openai, _ask_chat, ("prediction", {"type": "content"})),
    Asker("responses", openai, _ask_response, ("conversation", "conv_1")),
    Asker("messages", anthropic, _ask_message, ("container", "box")),
)
_each_path = pytest.mark.parametrize("asker", ASKERS, ids=lambda asker: asker.path)


@_each_path
@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model_is_not_found(front: Router, asker: Asker, stream: bool) -> None:
    with pytest.raises(asker.sdk.NotFoundError) as caught:
        asker.ask(front, "", {"model": "scriptd", "stream": stream})
    assert "scripted" in str(caught.value)
    expected = "not_found_error" if asker.sdk is anthropic else "invalid_request_error"
    assert asker.kind(caught.value) == expected
    if asker.sdk is openai:
        assert caught.value.param == "model"
        assert caught.value.code == "model_not_found"


@_each_path
def test_a_bad_key_is_an_authentication_error(front: Router, asker: Asker) -> None:
    with pytest.raises(asker.sdk.AuthenticationError) as caught:
        asker.ask(front, "mlxf-wrong", {})
    assert asker.kind(caught.value) == "authentication_error"


@_each_path
@pytest.mark.parametrize("stream", [False, True])
def test_a_refused_field_is_named(front: Router, asker: Asker, stream: bool) -> None:
    name, value = asker.refused
    with pytest.raises(asker.sdk.BadRequestError) as caught:
        asker.ask(front, "", {name: value, "stream": stream})
    assert asker.kind(caught.value) == "invalid_request_error"
    assert name in caught.value.message
    if asker.sdk is openai:
        assert caught.value.param == name
    assert caught.value.response.headers["x-request-id"].startswith("req_")


def test_anthropic_clients_may_show_their_key_as_bearer(front: Router) -> None:
    with anthropic.Anthropic(base_url=front.url, auth_token=front.key, max_retries=0) as client:
        counted = client.messages.count_tokens(
            model=MODEL, messages=[{"role": "user", "content": "hello"}]
        )
    assert counted.input_tokens > 0


# --- running requests ------------------------------------------------------------------------


def _delete(front: Router, request_id: str, key: str = "") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else front.headers
    return httpx.delete(f"{front.url}/v1/requests/{request_id}", headers=headers, timeout=TIMEOUT_S)


def _listed(front: Router, key: str = "") -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {key}"} if key else front.headers
    answer = httpx.get(f"{front.url}/v1/requests", headers=headers, timeout=TIMEOUT_S)
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


def test_a_streaming_chat_is_listed_and_ended_by_its_key_only(
    front: Router, other_key: str
) -> None:
    with _openai(front) as client:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=LONG_TOKENS,
            stream=True,
        )
        answer_id = next(iter(stream)).id
        request_id = answer_id.replace("chatcmpl-", "req_")
        assert [each["id"] for each in _listed(front)] == [request_id]
        assert _listed(front, other_key) == []
        assert _delete(front, request_id, other_key).status_code == 404
        ended = _delete(front, answer_id)
        with pytest.raises(openai.APIError) as caught:
            for _ in stream:
                pass
    assert ended.status_code == 200
    assert ended.json() == {"id": answer_id, "object": "request", "cancelled": True}
    assert caught.value.code == "request_cancelled"
    assert _listed(front) == []
    assert _delete(front, request_id).status_code == 404


def test_a_streaming_message_is_ended(front: Router) -> None:
    with (
        _anthropic(front) as client,
        client.messages.stream(
            model=MODEL,
            max_tokens=LONG_TOKENS,
            messages=[{"role": "user", "content": "hello"}],
        ) as stream,
    ):
        next(iter(stream.text_stream))
        ended = _delete(front, stream.current_message_snapshot.id)
        with pytest.raises(anthropic.APIStatusError) as caught:
            stream.get_final_message()
    assert ended.status_code == 200
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["message"]


# --- stored responses ------------------------------------------------------------------------


def _node_of(answer_id: str) -> str:
    found = parse_id(answer_id)
    assert found is not None
    return found.node_id


def test_a_stored_response_is_followed_up_on_its_node(front: Router) -> None:
    with _openai(front) as client, ThreadPoolExecutor(8) as threads:

        def create(number: int) -> Response:
            return client.responses.create(
                model=MODEL, input=f"number {number}", max_output_tokens=20
            )

        made = list(threads.map(create, range(8)))
        found = [client.responses.retrieve(each.id) for each in made]
        more = [
            client.responses.create(
                model=MODEL, input="And?", previous_response_id=each.id, max_output_tokens=3
            )
            for each in made
        ]
        listed = [len(client.responses.input_items.list(each.id).data) for each in made]
        for each in made:
            client.responses.delete(each.id)
        with pytest.raises(openai.NotFoundError) as caught:
            client.responses.retrieve(made[0].id)
    nodes = [_node_of(each.id) for each in made]
    assert len(set(nodes)) == 2
    assert [_node_of(each.id) for each in more] == nodes
    assert found == made
    assert listed == [1] * len(made)
    assert caught.value.code == "response_not_found"


def test_a_stored_response_of_another_key_is_not_found(front: Router, other_key: str) -> None:
    with _openai(front) as client, _openai(front, other_key) as other:
        made = client.responses.create(model=MODEL, input="mine", max_output_tokens=3)
        for ask in (
            other.responses.retrieve,
            other.responses.cancel,
            other.responses.input_items.list,
            other.responses.delete,
        ):
            with pytest.raises(openai.NotFoundError) as caught:
                ask(made.id)
            assert caught.value.code == "response_not_found"
        with pytest.raises(openai.NotFoundError) as caught:
            other.responses.create(model=MODEL, input="And?", previous_response_id=made.id)
        assert caught.value.code == "previous_response_not_found"
        assert caught.value.param == "previous_response_id"
        assert client.responses.retrieve(made.id).id == made.id


@pytest.mark.parametrize("how", ["delete", "cancel"])
def test_a_response_that_is_ended_before_it_is_sent_is_returned_as_cancelled_and_stored(
    front: Router, how: str
) -> None:
    with _openai(front) as client, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(
            client.responses.create, model=MODEL, input="hello", max_output_tokens=LONG_TOKENS
        )
        while not (found := _listed(front)):
            pass
        response_id = found[0]["id"].replace("req_", "resp_")
        while not _is_in_work(client, response_id):
            pass
        if how == "delete":
            assert _delete(front, found[0]["id"]).json()["cancelled"] is True
        else:
            assert client.responses.cancel(response_id).status == "cancelled"
        answer = waiting.result(TIMEOUT_S)
        kept = client.responses.retrieve(response_id)
    assert (answer.id, answer.status) == (response_id, "cancelled")
    assert (kept.status, kept.output_text) == ("cancelled", answer.output_text)


def _is_in_work(client: openai.OpenAI, response_id: str) -> bool:
    try:
        return client.responses.retrieve(response_id).status == "in_progress"
    except openai.NotFoundError:  # It is still on its way to the node.
        return False


def test_a_running_response_is_cancelled_by_its_key_only(front: Router, other_key: str) -> None:
    with _openai(front) as client, _openai(front, other_key) as other:
        stream = client.responses.create(
            model=MODEL, input="hello", max_output_tokens=LONG_TOKENS, stream=True
        )
        events = iter(stream)
        first = next(events)
        assert first.type == "response.created"
        with pytest.raises(openai.NotFoundError):
            other.responses.cancel(first.response.id)
        cancelled = client.responses.cancel(first.response.id)
        *_, last = events
        kept = client.responses.retrieve(first.response.id)
    assert cancelled.status == kept.status == "cancelled"
    assert last.type == "response.incomplete"
    assert last.response.status == "cancelled"
