"""`router bench`: what it sends, counts and prints."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from rich.progress import Progress

from router.commands.client import CommandFailed, RouterAccess
from router.commands.status import bench
from router.commands.status.bench import Load, NodeSpeed, Outcome, figures, percentile
from serving.chat.stream import StreamedChat

ACCESS = RouterAccess(key="k")
Respond = Callable[[dict[str, Any], int], httpx.Response]


def events(*chunks: dict[str, Any]) -> str:
    return "".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + "data: [DONE]\n\n"


def served(body: dict[str, Any], number: int) -> httpx.Response:
    prompt = len(body["messages"][0]["content"].split())
    usage = {"prompt_tokens": prompt, "completion_tokens": 3}
    deltas = [{"choices": [{"delta": {"content": "a"}}]} for _ in range(3)]
    headers = {"x-fleet-node": "mini" if number % 2 else "studio"}
    return httpx.Response(200, text=events(*deltas, {"usage": usage}), headers=headers)


def refusing_each_third(body: dict[str, Any], number: int) -> httpx.Response:
    if number > 2 and number % 3 == 0:
        return httpx.Response(429, json={"error": {"message": "The queue is full."}})
    return served(body, number)


class PlayedFleet:
    def __init__(self, respond: Respond = served) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._respond = respond

    def transport(self) -> httpx.MockTransport:
        def handle(request: httpx.Request) -> httpx.Response:
            assert request.headers["authorization"] == "Bearer k"
            self.bodies.append(json.loads(request.content))
            return self._respond(self.bodies[-1], len(self.bodies))

        return httpx.MockTransport(handle)

    async def measure(self, load: Load) -> Outcome:
        return await bench.measure(ACCESS, load, Progress(disable=True), self.transport())


async def test_the_requests_are_sent_after_two_that_load_the_model() -> None:
    fleet = PlayedFleet()
    load = Load("m", concurrency=3, requests=7, prompt_tokens=50, output_tokens=9)
    outcome = await fleet.measure(load)
    assert len(outcome.responses) == 7 and not outcome.failures
    assert [body["max_tokens"] for body in fleet.bodies] == [1, 1, *[9] * 7]
    prompts = [body["messages"][0]["content"] for body in fleet.bodies[2:]]
    assert len(set(prompts)) == 7, "each prompt is new to every cache"
    assert all(45 <= each.prompt_tokens <= 75 for each in outcome.responses if each.prompt_tokens)


async def test_a_refused_request_counts_and_the_others_go_on() -> None:
    outcome = await PlayedFleet(refusing_each_third).measure(Load("m", requests=6))
    assert outcome.failures == {"The queue is full. (HTTP 429)": 2}
    assert len(outcome.responses) == 4


async def test_a_duration_ends_the_load() -> None:
    outcome = await PlayedFleet().measure(Load("m", concurrency=2, requests=1, duration_s=0.2))
    assert len(outcome.responses) > 2
    assert outcome.wall_s >= 0.2


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (httpx.Response(404, json={"error": {"message": "No node has it."}}), "No node has it"),
        (httpx.Response(200, text="data: {\n\n"), "an invalid chunk"),
    ],
)
async def test_a_model_that_nobody_serves_ends_it(response: httpx.Response, words: str) -> None:
    with pytest.raises(CommandFailed, match=words):
        await PlayedFleet(lambda _body, _number: response).measure(Load("m"))


async def test_a_router_that_is_not_there_is_a_sentence() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(CommandFailed, match="No router responds"):
        await bench.measure(ACCESS, Load("m"), Progress(disable=True), httpx.MockTransport(refuse))


def response(node: str, wait_s: float, *, tokens: int = 11, decode_s: float = 2.0) -> StreamedChat:
    times_s = [wait_s, wait_s + decode_s]
    return StreamedChat(
        0.0, node, "x", 100, 40, tokens, times_s=times_s, is_whole=True, ended_s=times_s[-1]
    )


def test_figures_are_by_node_and_for_all() -> None:
    waits_s = (0.1, 0.2, 0.3, 0.4)
    responses = [*(response("mini", wait_s) for wait_s in waits_s), response("studio", 1.0)]
    mini, studio, whole = figures(Outcome(responses, wall_s=11.0))
    assert mini == NodeSpeed("mini", 4, 0.2, 0.4, 5.0, 4.0, 400, 160, 44)
    assert (studio.node, studio.ttft_p95_s) == ("studio", 1.0)
    assert (whole.node, whole.responses, whole.tokens_per_s) == ("all", 5, 5.0)
    (alone,) = figures(Outcome(responses[:1], wall_s=1.0))
    assert alone.node == "mini"
    assert figures(Outcome()) == []


def test_a_response_at_once_has_no_rate_of_its_own() -> None:
    (row,) = figures(Outcome([response("mini", 0.1, tokens=1, decode_s=0.0)], wall_s=1.0))
    assert row.request_tokens_per_s is None


@pytest.mark.parametrize(
    ("count", "share", "value"), [(1, 0.95, 1), (2, 0.5, 1), (20, 0.95, 19), (21, 0.95, 20)]
)
def test_a_percentile_is_one_of_the_values(count: int, share: float, value: float) -> None:
    assert percentile([float(each) for each in range(1, count + 1)], share) == value


def test_a_table_and_json_have_the_figures_and_the_failures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def measured(*_given: object) -> Outcome:
        outcome = Outcome([response("mini", 0.25)], wall_s=2.0)
        outcome.failures["The queue is full. (HTTP 429)"] = 3
        return outcome

    monkeypatch.setattr(bench, "measure", measured)
    assert not bench.run(ACCESS, Load("m"), as_json=False)
    shown = capsys.readouterr()
    assert "mini" in shown.out and "250 ms" in shown.out
    assert "m: 1 response in 2.0 s, 4 at once" in shown.out
    assert "3 requests failed: The queue is full. (HTTP 429)" in shown.err
    assert not bench.run(ACCESS, Load("m"), as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["nodes"][0]["ttft_p50_s"] == 0.25
    assert printed["failures"] == {"The queue is full. (HTTP 429)": 3}
