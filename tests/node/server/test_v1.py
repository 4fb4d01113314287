"""`/v1/*` over a real socket, with a real engine process that follows a script."""

import asyncio
import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from node.agent import requests
from node.dialects.chat.body import ChatRequest, read_chat
from node.dialects.chat.response import ReasoningField
from node.engine.scripted.cache import ScriptedCache
from node.engine.scripted.script import Script, ScriptedModel
from node.protocol.messages import (
    CancelMarked,
    Finished,
    FinishReason,
    ModelState,
    StatusEvent,
)
from node.protocol.overflow import Overflow
from node.server import v1 as api
from node.settings import THREAD_BODY_BYTES
from serving.stay_awake import StayAwake
from tests.fakes import AT_ONCE_S
from tests.node.serving import WAIT_S, RunningAgent, chat_body, closed, data_of, running
from tests.serving.caffeinate import TERMINATED, begun, install


def _texts(chunks: list[Any]) -> list[str]:
    return [
        chunk["choices"][0]["delta"]["content"]
        for chunk in chunks[:-1]
        if chunk["choices"] and "content" in chunk["choices"][0]["delta"]
    ]


async def _engine_pid(agent: RunningAgent) -> int:
    children = psutil.Process().children()
    return next(int(child.pid) for child in children if "node.engine.worker" in child.cmdline())


async def test_streams_words_in_order_and_ends_with_done(tmp_path: Path) -> None:
    async with running(tmp_path, Script(text="one two three")) as agent:
        response = await agent.chat(stream=True)
    chunks = data_of(response.text)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-fleet-model"] == "scripted"
    assert chunks[0]["id"] == response.headers["x-request-id"].replace("req_", "chatcmpl-")
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "one"}
    assert _texts(chunks) == ["one", " two", " three"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1] == "[DONE]"
    assert "usage" not in chunks[0]


async def test_usage_is_sent_in_its_own_chunk_when_requested(tmp_path: Path) -> None:
    async with running(tmp_path) as agent:
        response = await agent.chat(
            "12345678", stream=True, stream_options={"include_usage": True}, max_tokens=3
        )
    chunks = data_of(response.text)
    assert [chunk["usage"] for chunk in chunks[:-2]] == [None] * (len(chunks) - 2)
    assert chunks[-2]["choices"] == []
    assert chunks[-2]["usage"]["prompt_tokens"] == 2
    assert chunks[-2]["usage"]["completion_tokens"] == 3
    assert chunks[-3]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_whole_answer_equals_the_collected_stream(tmp_path: Path, path: str) -> None:
    body: dict[str, Any] = chat_body("same", max_tokens=7)
    if path == "/v1/completions":
        body = {"model": "scripted", "prompt": "same", "max_tokens": 7}
    async with running(tmp_path) as agent:
        streamed = await agent.client.post(path, json=body | {"stream": True})
        whole = await agent.client.post(path, json=body)
    chunks = data_of(streamed.text)[:-1]
    choice = whole.json()["choices"][0]
    if path.endswith("chat/completions"):
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
    else:
        assert choice["text"] == "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert choice["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert whole.json()["usage"]["completion_tokens"] == 7


async def test_the_first_chunk_arrives_before_the_last_is_made(tmp_path: Path) -> None:
    script = Script(text="first never", stall_after_tokens=1)
    async with running(tmp_path, script) as agent, asyncio.timeout(WAIT_S):
        reader, writer = await agent.send_raw(json.dumps(chat_body(stream=True)).encode())
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        assert b'"content":"first"' in await reader.readuntil(b"\n\n")
        await closed(writer)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(Script(accept_delay_s=30), id="waiting"),
        pytest.param(Script(first_token_delay_s=30), id="before-first-token"),
        pytest.param(Script(stall_after_tokens=2), id="mid-stream"),
        pytest.param(Script(token_interval_s=0.01, tokens=10_000), id="running"),
    ],
)
async def test_a_client_that_leaves_is_marked_at_once(
    tmp_path: Path, script: Script, *, stream: bool
) -> None:
    async with running(tmp_path, script) as agent, agent.events() as events:
        await agent.client.post("/fleet/load", json={"model": "scripted"})
        _, writer = await agent.send_raw(json.dumps(chat_body(stream=stream)).encode())
        await agent.until_active()
        left_s = time.monotonic()
        await closed(writer)
        marked = await events.next(CancelMarked)
        finished = await events.next(Finished)
    assert marked.marked_monotonic_s - left_s < AT_ONCE_S
    assert finished.request_id == marked.request_id
    assert finished.reason is FinishReason.CANCELLED
    assert finished.prompt_tokens == 2


async def test_a_client_that_leaves_while_the_model_loads_is_accounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A load may take long beside other work.
    monkeypatch.setattr("node.engines.swap_policy.ABANDONED_S", WAIT_S)
    async with running(tmp_path, Script(load_delay_s=0.5)) as agent, agent.events() as events:
        _, writer = await agent.send_raw(json.dumps(chat_body()).encode())
        await events.next(
            StatusEvent, lambda event: event.status.models[0].state is ModelState.LOADING
        )
        await closed(writer)
        finished = await events.next(Finished)
        assert finished.reason is FinishReason.CANCELLED
        assert finished.ttft_s is None
        await events.next(
            StatusEvent, lambda event: event.status.models[0].state is ModelState.READY
        )


async def test_an_engine_killed_in_mid_stream_ends_it_with_one_error(tmp_path: Path) -> None:
    script = Script(stall_after_tokens=1)
    async with running(tmp_path, script) as agent, asyncio.timeout(WAIT_S):
        reader, writer = await agent.send_raw(json.dumps(chat_body(stream=True)).encode())
        await reader.readuntil(b"\n\n")
        os.kill(await _engine_pid(agent), signal.SIGKILL)
        rest = await reader.readuntil(b"0\r\n\r\n")
        assert b'data: {"error":{"message":"The engine process ended' in rest
        assert b'"code":"engine_died"' in rest
        assert b"[DONE]" not in rest
        await closed(writer)
        following = await agent.chat(max_tokens=1)
    assert following.status_code == 200


async def test_an_engine_that_dies_before_the_first_token_is_a_503(tmp_path: Path) -> None:
    async with running(tmp_path, Script(crash_after_tokens=0)) as agent, agent.events() as events:
        for _ in range(2):
            response = await agent.chat(stream=True)
            assert response.status_code == 503
            assert response.headers["retry-after"] == "1"
            assert response.json()["error"]["code"] == "engine_died"
            assert (await events.next(Finished)).reason is FinishReason.ERROR


async def test_a_load_and_a_request_keep_the_machine_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caffeinate = install(tmp_path / "bin", monkeypatch)
    monkeypatch.setattr("serving.awake.RELEASE_S", 0.0)
    async with running(tmp_path, Script(stall_after_tokens=1)) as agent:
        await agent.client.post("/fleet/load", json={"model": "scripted"})
        await caffeinate.until(begun(), TERMINATED)
        chat = asyncio.create_task(agent.chat())
        await agent.until_active()
        await caffeinate.until(begun(), TERMINATED, begun())
        chat.cancel()
        await caffeinate.until(begun(), TERMINATED, begun(), TERMINATED)
    async with running(tmp_path, stay_awake=StayAwake.ALWAYS):
        await caffeinate.until(begun(), TERMINATED, begun(), TERMINATED, begun())
    assert caffeinate.notes[-1] == TERMINATED


async def test_an_engine_that_breaks_is_a_503_and_the_next_request_gets_a_new_one(
    tmp_path: Path,
) -> None:
    script = Script(step_failure_after_tokens=1, step_failure_text="[METAL] No more.")
    async with running(tmp_path, script) as agent, agent.events() as events:
        generations = []
        for _ in range(3):
            assert (await agent.chat(max_tokens=1)).status_code == 200
            generations.append((await agent.status()).models[0].generation)
            response = await agent.chat()
            assert response.status_code == 503
            error = response.json()["error"]
            assert error["code"] == "engine_died" and "[METAL] No more" in error["message"]
            record = await events.next(Finished, lambda event: event.completion_tokens == 1)
            record = await events.next(Finished)
            assert (record.reason, record.completion_tokens) == (FinishReason.ERROR, 1)
            assert (await agent.status()).models[0].state is ModelState.ON_DISK
        assert len(set(generations)) == 3


async def test_a_failed_step_is_a_500_before_the_head_and_an_event_after(tmp_path: Path) -> None:
    # Its first tokens are out before the failure, however busy the machine is.
    slow = Script(step_failure_after_tokens=2, token_interval_s=0.2)
    async with running(tmp_path / "a", Script(step_failure_after_tokens=0)) as agent:
        response = await agent.chat(stream=True)
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "engine_error"
    async with running(tmp_path / "b", slow) as agent:
        response = await agent.chat(stream=True)
        chunks = data_of(response.text)
        assert response.status_code == 200
        assert chunks[-1]["error"]["code"] == "engine_error"
        assert (await agent.chat()).status_code == 500


async def test_fifty_first_requests_share_one_load(tmp_path: Path) -> None:
    async with running(tmp_path, Script(load_delay_s=0.3)) as agent, agent.events() as events:
        answers = await asyncio.gather(*(agent.chat(max_tokens=2) for _ in range(50)))
        assert {answer.status_code for answer in answers} == {200}
        for _ in range(50):
            await events.next(Finished)
    states = [
        event.status.models[0].state for event in events.seen if isinstance(event, StatusEvent)
    ]
    assert states.count(ModelState.READY) >= 1
    first_ready = states.index(ModelState.READY)
    assert ModelState.LOADING not in states[first_ready:]
    assert [event.seq for event in events.seen if isinstance(event, Finished)] == [*range(1, 51)]


async def test_a_model_that_does_not_fit_is_a_503_with_the_numbers(tmp_path: Path) -> None:
    script = Script(models=(ScriptedModel("scripted", weight_bytes=100 * 1024**3),))
    async with running(tmp_path, script, memory_limit_bytes=8 * 1024**3) as agent:
        response = await agent.chat(stream=True)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "30"
    assert "scripted needs 100." in response.json()["error"]["message"]
    assert "8.0 GiB" in response.json()["error"]["message"]


async def test_a_load_that_fails_is_a_503_with_the_reason(tmp_path: Path) -> None:
    async with running(tmp_path, Script(load_failure="The weights are torn.")) as agent:
        for _ in range(2):
            response = await agent.chat()
            assert response.status_code == 503
            assert "The weights are torn." in response.json()["error"]["message"]
            assert 1 <= int(response.headers["retry-after"]) <= 5


async def test_silence_is_filled_with_comments(tmp_path: Path) -> None:
    script = Script(load_delay_s=0.5, first_token_delay_s=0.8, tokens=2)
    async with running(tmp_path, script, stream_keepalive_s=0.05) as agent:
        response = await agent.chat(stream=True)
    assert re.match(r": loading scripted \d+ %\n\n", response.text)
    assert ": keep-alive\n\n: keep-alive\n\n" in response.text
    assert len(_texts(data_of(response.text))) == 2


async def test_the_keep_alives_of_a_prefill_report_its_progress(tmp_path: Path) -> None:
    script = Script(prefill_s_per_token=0.01, progress_interval_s=0.02, tokens=1)
    async with running(tmp_path, script, stream_keepalive_s=0.05) as agent:
        response = await agent.chat("x" * 200, stream=True)
    comments = [line for line in response.text.split("\n") if line.startswith(": prefill ")]
    percents = [int(line.split()[2]) for line in comments]
    assert percents == sorted(percents)
    assert 0 < percents[-1] <= 100


async def test_cached_tokens_are_in_usage_and_head(tmp_path: Path) -> None:
    script = Script(cache=ScriptedCache(capacity_tokens=1000))
    async with running(tmp_path, script) as agent:
        first = await agent.chat("x" * 200)
        again = await agent.chat("x" * 200)
        streamed = await agent.chat("x" * 200, stream=True, stream_options={"include_usage": True})
    counts = [each.headers["x-fleet-cached-tokens"] for each in (first, again, streamed)]
    assert counts == ["0", "49", "49"]
    for usage in (again.json()["usage"], data_of(streamed.text)[-2]["usage"]):
        assert usage["prompt_tokens_details"] == {"cached_tokens": 49}


async def test_the_head_of_a_stream_predicts_what_its_usage_reports(tmp_path: Path) -> None:
    cache = ScriptedCache(capacity_tokens=1000)
    script = Script(max_rows=1, first_token_delay_s=0.2, tokens=1, cache=cache)
    async with running(tmp_path, script) as agent:
        first = asyncio.create_task(agent.chat("x" * 200))
        await agent.until_active()
        # Taken while the first is prefilled, and started when that is stored.
        streamed = await agent.chat("x" * 200, stream=True, stream_options={"include_usage": True})
        assert (await first).status_code == 200
    assert streamed.headers["x-fleet-cached-tokens"] == "0"
    usage = data_of(streamed.text)[-2]["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 49}


async def test_a_failure_after_a_comment_is_in_the_stream(tmp_path: Path) -> None:
    script = Script(load_delay_s=0.2, load_failure="No.")
    async with running(tmp_path, script, stream_keepalive_s=0.05) as agent:
        response = await agent.chat(stream=True)
    assert response.status_code == 200
    assert data_of(response.text)[0]["error"]["code"] == "load_failed"


async def test_a_body_beyond_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async with running(tmp_path) as agent, asyncio.timeout(WAIT_S):
        reader, writer = await agent.send_raw(b"{", head=f"content-length: {40 * 1024**2}")
        assert b"413" in await reader.readline()
        await closed(writer)


async def test_a_chunked_body_is_counted_as_it_arrives(tmp_path: Path) -> None:
    async def pieces() -> Any:
        for _ in range(40):
            yield b" " * 1024**2

    async with running(tmp_path) as agent:
        response = await agent.client.post("/v1/chat/completions", content=pieces())
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"
        assert (await agent.chat(max_tokens=1)).status_code == 200


async def test_a_body_cut_in_half_just_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as agent:
        _, writer = await agent.send_raw(b'{"model":', head="content-length: 1000")
        await closed(writer)
        assert (await agent.chat(max_tokens=1)).status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(("size", "in_thread"), [(1000, False), (THREAD_BODY_BYTES, True)])
async def test_a_large_body_is_parsed_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, *, in_thread: bool
) -> None:
    threads: list[threading.Thread] = []

    def read(body: bytes, field: ReasoningField) -> ChatRequest:
        threads.append(threading.current_thread())
        return read_chat(body, field)

    monkeypatch.setattr(api, "read_chat", read)
    script = Script(models=(ScriptedModel(context_tokens=10**6),))
    async with running(tmp_path, script) as agent:
        assert (await agent.chat("x" * size, max_tokens=1)).status_code == 200
    assert [thread is not threading.main_thread() for thread in threads] == [in_thread]


async def test_the_token_is_checked_first(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as agent,
        httpx.AsyncClient(base_url=str(agent.client.base_url)) as stranger,
    ):
        refused = await stranger.get("/v1/models")
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
        wrong = {"authorization": "Bearer wrong"}
        assert (await stranger.get("/v1/nothing", headers=wrong)).status_code == 401
        key = {"x-api-key": agent.token}
        assert (await stranger.get("/v1/models", headers=key)).status_code == 200


async def test_errors_of_wrong_paths_methods_and_models_have_openais_shape(tmp_path: Path) -> None:
    async with running(tmp_path) as agent:
        missing = await agent.client.get("/v1/nothing")
        method = await agent.client.get("/v1/chat/completions")
        model = await agent.client.post(
            "/v1/chat/completions", json=chat_body() | {"model": "scrpted"}
        )
        invalid = await agent.chat(temperature=3)
        listed = await agent.client.get("/v1/models")
        one = await agent.client.get("/v1/models/scripted")
        none = await agent.client.get("/v1/models/nothing")
        unversioned = await agent.client.post("/chat/completions", json=chat_body())
    assert unversioned.status_code == 404
    assert "/v1/chat/completions is there" in unversioned.json()["message"]
    assert (missing.status_code, method.status_code) == (404, 405)
    assert model.status_code == none.status_code == 404
    assert model.json()["error"]["code"] == "model_not_found"
    assert "Did you mean scripted?" in model.json()["error"]["message"]
    assert (invalid.status_code, invalid.json()["error"]["param"]) == (400, "temperature")
    assert listed.json()["data"] == [one.json()]


async def test_a_prompt_beyond_the_context_is_a_400_with_its_code(tmp_path: Path) -> None:
    script = Script(models=(ScriptedModel("scripted", context_tokens=10),))
    async with running(tmp_path, script) as agent, agent.events() as events:
        response = await agent.chat("x" * 100)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert response.json()["error"]["param"] == "messages"
        ids = await agent.client.post(
            "/v1/completions", json={"model": "scripted", "prompt": [9999]}
        )
        assert (ids.status_code, ids.json()["error"]["param"]) == (400, "prompt")
        bias = await agent.chat(logit_bias={"9999": 1}, max_tokens=99)
        assert (bias.status_code, bias.json()["error"]["param"]) == (400, "logit_bias")
        assert bias.json()["error"]["code"] == "invalid_value"
        await agent.chat("x", max_tokens=1)
        finished = [await events.next(Finished) for _ in range(4)]
    refused, served = FinishReason.REFUSED, FinishReason.LENGTH
    assert [each.reason for each in finished] == [refused, refused, refused, served]
    assert [each.prompt_tokens >= 10 for each in finished] == [True, False, False, False]


async def test_a_request_for_a_model_that_is_not_here_has_no_usage(tmp_path: Path) -> None:
    async with running(tmp_path) as agent, agent.events() as events:
        body = chat_body() | {"model": "x" * 9999}
        assert (await agent.client.post("/v1/chat/completions", json=body)).status_code == 404
        await agent.chat("x", max_tokens=1)
        assert (await events.next(Finished)).seq == 1


OVERFLOWS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x" * 40}]},
    "/v1/completions": {"prompt": "x" * 40},
    "/v1/responses": {"input": "x" * 40},
    "/v1/messages": {"messages": [{"role": "user", "content": "x" * 40}], "max_tokens": 9},
}


@pytest.mark.parametrize("path", OVERFLOWS)
@pytest.mark.parametrize("is_late", [False, True])
async def test_the_error_of_a_prompt_that_is_too_long_is_what_the_dialect_s_clients_expect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, is_late: bool
) -> None:
    if is_late:  # as where only the loaded engine knows its context length
        monkeypatch.setattr(requests, "may_overflow", lambda _: False)
    load_s = 1.0 if is_late else 0.0
    script = Script(models=(ScriptedModel(context_tokens=8),), load_delay_s=load_s)
    body = {"model": "scripted", "stream": True, **OVERFLOWS[path]}
    async with running(tmp_path, script, stream_keepalive_s=0.01 if is_late else WAIT_S) as agent:
        answer = await agent.client.post(path, json=body)
    assert answer.status_code == (200 if is_late else 400)
    failure = data_of(answer.text)[-1] if is_late else answer.json()
    overflow = Overflow(reported_tokens(failure), 8)
    assert overflow.prompt_tokens >= 10
    if path == "/v1/messages":
        error = {"type": "invalid_request_error", "message": overflow.anthropic}
        assert failure == {"type": "error", "error": error, "request_id": failure["request_id"]}
        return
    assert failure["error"]["code"] == "context_length_exceeded"
    assert failure["error"]["message"] == overflow.openai


def reported_tokens(failure: Any) -> int:
    return max(map(int, re.findall(r"[0-9]+", failure["error"]["message"])))


async def test_names_and_ids_of_the_caller_are_returned(tmp_path: Path) -> None:
    headers = {
        "x-request-id": "mine-1",
        "x-fleet-origin": "router/key",
        "x-fleet-requested-model": "alias",
    }
    script = Script(stall_after_tokens=1, tokens=2)
    async with running(tmp_path, Script(tokens=2)) as agent, agent.events() as events:
        response = await agent.client.post(
            "/v1/chat/completions", json=chat_body(), headers=headers
        )
        finished = await events.next(Finished)
    assert response.headers["x-request-id"].endswith("-mine-1")
    assert response.headers["x-fleet-model"] == "scripted"
    assert response.json()["model"] == "alias"
    assert (finished.request_id, finished.origin, finished.model) == (
        "mine-1",
        "router/key",
        "scripted",
    )
    assert finished.ttft_s is not None and finished.ttft_s > 0
    async with running(tmp_path, script) as agent, asyncio.timeout(WAIT_S):
        body = json.dumps(chat_body(stream=True)).encode()
        head = f"content-length: {len(body)}\r\nx-request-id: mine-1"
        first, writer = await agent.send_raw(body, head=head)
        assert b"-mine-1\r\n" in await first.readuntil(b"\r\n\r\n")
        second, other = await agent.send_raw(body, head=head)
        assert b"-mine-1-" in await second.readuntil(b"\r\n\r\n")
        await closed(writer)
        await closed(other)


async def test_a_client_that_does_not_read_delays_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as agent, asyncio.timeout(WAIT_S):
        body = json.dumps(chat_body(stream=True, max_tokens=30_000)).encode()
        _, writer = await agent.send_raw(body)
        assert (await agent.chat("other", max_tokens=5)).status_code == 200
        await closed(writer)
