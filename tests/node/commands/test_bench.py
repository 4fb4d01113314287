"""`node-agent bench` against an agent, and against servers that report less than ours."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from rich.progress import Progress

from node.commands import bench
from node.commands.agent_client import CommandFailed, ServerAddress
from node.commands.bench_load import BenchClient, Stall, Streams, worst_gap
from node.engine.scripted.cache import ScriptedCache
from node.engine.scripted.script import Script, ScriptedModel
from serving.chat.stream import StreamedChat
from tests.node.commands.running import Ended, run_command
from tests.node.serving import RunningAgent, running

SIZES = bench.BenchSizes(output=8, prompt=60, long_prompt=200, long_output=500)
SCRIPT = Script(
    token_interval_s=0.002,
    prefill_s_per_token=0.0005,
    cache=ScriptedCache(capacity_tokens=10_000),
)


async def measured(
    agent: RunningAgent, home: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> Ended:
    url = f"http://127.0.0.1:{agent.port}/v1"
    arguments = ("--quick", "--home", str(home), "--url", url, *options)
    return await run_command(capsys, "bench", "scripted", *arguments)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "QUICK", SIZES)
    monkeypatch.setattr(bench, "STREAMS", (1, 2))


async def test_measures_streams_repeats_stalls_and_sessions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, SCRIPT) as agent:
        ended = await measured(agent, tmp_path, capsys, "--json")
    assert ended.code == 0
    # Where there is no terminal, there is a line for each.
    assert ended.err.splitlines()[:2] == [
        "Measurement 1 of 5: 1 stream.",
        "Measurement 2 of 5: 2 streams.",
    ]
    assert ended.err.count("\n") == 5
    shown = json.loads(ended.out)
    found = {name: each["result"] for name, each in shown["measurements"].items()}
    assert list(found) == [
        *("1 stream", "2 streams", "prompt and repeat", "long prompt beside 3 streams"),
        "3 sessions of 3 turns",
    ]
    assert found["2 streams"]["tokens_per_s"] > 0
    repeat = found["prompt and repeat"]
    assert 30 <= repeat["prompt_tokens"] <= 120
    assert repeat["repeat_ttft_s"] < repeat["cold_ttft_s"]
    stall = found["long prompt beside 3 streams"]
    assert stall["worst_gap_s"] > 0
    assert stall["ttft_s"] > stall["prompt_tokens"] * 0.0005
    sessions = found["3 sessions of 3 turns"]
    assert 0 < sessions["cached_tokens"] < sessions["prompt_tokens"]


async def test_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running(tmp_path, SCRIPT) as agent:
        ended = await measured(agent, tmp_path, capsys)
    for words in ("tokens/s", "repeated prompt", "worst gap of 3 streams", "% of", "It took"):
        assert words in ended.out


async def test_a_measurement_that_a_model_cannot_do_is_reported_beside_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script(models=(ScriptedModel(context_tokens=150),))
    async with running(tmp_path, script) as agent:
        ended = await measured(agent, tmp_path, capsys)
    assert ended.code == 1
    assert "failed" in ended.out
    assert "tokens/s" in ended.out


async def test_a_server_that_is_not_there_or_refuses_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, SCRIPT) as agent:
        other = ("--home", "/nowhere", "--key", "wrong")
        ended = await measured(agent, tmp_path, capsys, *other)
        assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
        assert "HTTP 401" in ended.err
        ended = await measured(agent, tmp_path, capsys, "--url", "127.0.0.1:1")
        assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)


async def test_the_bar_counts_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    load = BenchClient(
        ServerAddress("http://x"), "m", httpx.MockTransport(lambda _: httpx.Response(200))
    )
    bars, seen = Progress(disable=True), []

    async def ask() -> Streams:
        seen.append((bars.tasks[0].description, bars.tasks[0].completed))
        return Streams(1.0, 1.0)

    monkeypatch.setattr(bench, "_plan", lambda *_: iter([("first", ask), ("second", ask)]))
    await bench.measure(load, SIZES, bars)
    assert seen == [("first", 0), ("second", 1)]
    assert bars.tasks[0].completed == bars.tasks[0].total == 2


def test_the_table_shows_why_there_is_no_gap_and_takes_nothing_for_markup() -> None:
    found = [
        bench.Measurement("long", Stall(6000, 1.5, None), None),
        bench.Measurement("odd", None, "It said [/red] [b]no[/b]."),
    ]
    console = Console(width=200)
    with console.capture() as captured:
        console.print(bench.table("m[/b] at http://x", found))
    shown = captured.get()
    words = "the streams had ended before 6,000 tokens were prefilled"
    for expected in ("m[/b]", "not measured", words, "It said [/red] [b]no[/b]."):
        assert expected in shown


def events(*chunks: dict[str, Any]) -> str:
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def delta(**fields: str) -> dict[str, Any]:
    return {"choices": [{"delta": fields}]}


async def test_a_server_without_usage_is_measured_by_its_pieces() -> None:
    text = events(
        delta(role="assistant"), delta(reasoning="a"), delta(content="b"), {"usage": None}
    )
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=text))
    load = BenchClient(ServerAddress("http://x"), "m", transport)
    await load.calibrate()
    found = await load.sessions(1, 2, 10, 4)
    assert (found.prompt_tokens, found.cached_tokens) == (0, None)
    assert (await load.streams(2, 4)).tokens_per_s > 0
    await load.close()


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (httpx.Response(400, json={"error": {"message": "No."}}), r"No\. \(HTTP 400\)"),
        (httpx.Response(400, json={"detail": "No."}), r"No\. \(HTTP 400\)"),
        (httpx.Response(502, text="<html>"), r"<html> \(HTTP 502\)"),
        (httpx.Response(200, text=events({"error": "No."})), r"^No\.$"),
        (httpx.Response(200, text="data: [1\n\n"), "an invalid chunk"),
        (httpx.Response(200, text="data: [1]\n\n"), "an invalid chunk"),
    ],
)
async def test_a_refusal_is_reported_in_the_server_s_words(
    response: httpx.Response, words: str
) -> None:
    load = BenchClient(
        ServerAddress("http://x"), "m", httpx.MockTransport(lambda request: response)
    )
    with pytest.raises(CommandFailed, match=words):
        await load.stall(2, 4, 4)
    await load.close()


def test_an_answer_without_a_piece_is_there_when_it_ends() -> None:
    assert StreamedChat(1.0, ended_s=3.0).wait_s == 2.0
    assert StreamedChat(1.0, ended_s=3.0, times_s=[1.5, 2.0]).wait_s == 0.5


def test_a_gap_counts_if_it_overlaps_the_time() -> None:
    output = StreamedChat(0.0, ended_s=10.0, times_s=[1.0, 2.0, 5.0, 6.0, 9.5])
    assert worst_gap(output, 4.0, 7.0) == 3.5
    assert worst_gap(output, 4.0, 5.5) == 3.0
    assert worst_gap(output, 9.5, 20.0) is None
    output.ended_s = None
    assert worst_gap(output, 9.5, 20.0) == 10.5
