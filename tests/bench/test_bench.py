"""The bench's own arithmetic and load generator, and that it stands without the shared tools."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest

from tests.bench.decoding import same_work
from tests.bench.figures import Figure, percentile
from tests.bench.load import Client, payload
from tests.bench.parts import RUN_S, has_failed
from tests.bench.peer_bars import Bar, judge, values
from tests.bench.peer_phases import gaps
from tests.bench.peer_report import cell
from tests.bench.peers import ITEM_S, PARTS, item_s
from tests.bench.processes import PROJECT, BenchFailure, command
from tests.bench.replay import Ids, Prompt, common, cut, ideal_cached, in_turns, read_trace
from tests.bench.sides import Run
from tests.bench.tool_session import TURNS, Turn, reused_share, turns

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}"
STREAMED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    b'14\r\n{"content":" tok"}\n\n\r\n',
    b"0\r\n\r\n",
)


@asynccontextmanager
async def server_of(*pieces: bytes, gap_s: float = 0.0) -> AsyncIterator[int]:
    """A server that answers every request with the pieces; its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(gap_s)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await answer(reader, writer)
        writer.close()
        await writer.wait_closed()

    handlers: list[asyncio.Task[None]] = []

    def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.wait_for(asyncio.gather(*handlers), timeout=10)


@pytest.mark.parametrize("module", ["tests.bench", "tests.bench.peers"])
@pytest.mark.parametrize("shared", [None, "/nowhere"])
def test_without_the_shared_tools_one_line_reports_it(module: str, shared: str | None) -> None:
    environ = {key: text for key, text in os.environ.items() if key != "MLX_FLEET_SHARED"}
    if shared is not None:
        environ["MLX_FLEET_SHARED"] = shared
    command = [sys.executable, "-m", module]
    done = subprocess.run(
        command, cwd=PROJECT, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert "MLX_FLEET_SHARED" in done.stdout


@pytest.mark.parametrize("name", ["router", "node-agent"])
def test_the_commands_are_those_of_this_tree(name: str) -> None:
    argv = [*command(name), "--version"]
    done = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[0]) == (0, name)


def test_a_bar_is_a_most_or_a_least() -> None:
    assert Figure("x", 0.4, "ms", 0.5).passed is True
    assert Figure("x", 0.6, "ms", 0.5).passed is False
    assert Figure("x", 0.9, "", 0.95, at_least=True).passed is False
    assert Figure("x", 0.9, "").passed is None


def test_percentile_interpolates() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([1.0], 99) == 1.0


async def test_the_closed_loop_sends_as_many_requests_as_configured() -> None:
    async with server_of(WHOLE) as port:
        client = await Client.open(port, 3)
        tally = await client.closed_loop([payload(port, b"{}", "key")], count=10)
        client.close()
    assert (len(tally.seconds), tally.failed) == (10, 0)


async def test_the_first_content_of_a_stream_has_its_own_time() -> None:
    async with server_of(*STREAMED, gap_s=0.02) as port:
        client = await Client.open(port, 1)
        tally = await client.closed_loop([payload(port, b"{}")], count=2)
        client.close()
    assert all(
        first < whole for first, whole in zip(tally.first_seconds, tally.seconds, strict=True)
    )


async def test_an_answer_other_than_200_counts_as_failed() -> None:
    async with server_of(REFUSED) as port:
        client = await Client.open(port, 2)
        tally = await client.closed_loop([payload(port, b"{}")], count=10)
        client.close()
    assert (tally.seconds, tally.failed) == ([], 2)


async def test_the_open_loop_ends_when_its_last_request_is_answered() -> None:
    async with server_of(WHOLE, gap_s=0.01) as port:
        client = await Client.open(port, 2)
        tally = await client.open_loop(payload(port, b"{}"), rate=200.0, seconds=0.2)
        client.close()
    assert tally.failed == 0
    assert 10 < len(tally.seconds) < 100


# --- the report ---


def test_values_are_found_by_phase_and_keys() -> None:
    lines = json.loads('[{"phase": "lat1", "rps": 12.5, "split": [1, 2]}, {"phase": "lat1"}]')
    assert values(lines, ("lat1", "rps")) == [12.5]
    assert values(lines, ("lat1", "split")) == [[1, 2]]
    assert values(lines, ("lat1", "rps", "p50")) == []
    assert values(lines, ("rps64", "rps")) == []


def test_a_cell_of_several_rounds_has_their_median_and_range() -> None:
    assert cell([]) == ""
    assert cell([12.5]) == "12.5"
    assert cell([[1, 2]]) == "1/2"
    assert cell([3.0, 1.0, 2.5]) == "2.5 [1-3]"


def lines(rate: float, wall_s: float) -> list[dict[str, object]]:
    return [{"phase": "conc16", "rate": rate}, {"phase": "sessions", "wall_s": wall_s}]


RATE = Bar("tokens/s", ("conc16", "rate"), 1.2, at_least=True)
WALL = Bar("wall", ("sessions", "wall_s"), 0.9)


def test_a_bar_is_set_against_the_best_peer_of_that_row() -> None:
    measured = {"ours": lines(600, 1.0), "a": lines(500, 2.0), "b": lines(400, 1.1)}
    rate, wall = judge([RATE, WALL], measured)
    assert (rate.peer, rate.ratio, rate.passed) == ("a", 1.2, True)
    assert (wall.peer, wall.passed) == ("b", False)


def test_no_bar_is_set_against_llama_cpp() -> None:
    measured = {"ours": lines(600, 1.0), "a": lines(500, 2.0), "llamacpp": lines(5000, 0.1)}
    assert [verdict.peer for verdict in judge([RATE, WALL], measured)] == ["a", "a"]


def test_rounds_count_by_their_median() -> None:
    measured = {"ours": [*lines(10, 1), *lines(70, 1), *lines(60, 1)], "a": lines(50, 1)}
    assert judge([RATE], measured)[0].ours == 60


def test_a_bar_that_one_side_lacks_is_left_out() -> None:
    failed: list[dict[str, object]] = [{"phase": "conc16", "failed": "1 failed: broken"}]
    assert judge([RATE], {"ours": lines(600, 1), "a": failed}) == []
    assert judge([RATE], {"a": lines(600, 1)}) == []


def test_an_item_with_one_failed_phase_can_be_tried_again() -> None:
    assert has_failed({"failed": "not installed"})
    assert has_failed({"lines": [{"phase": "start"}, {"phase": "single", "failed": "1 failed"}]})
    assert not has_failed({"lines": [{"phase": "start"}]})


def test_every_item_fits_into_a_run() -> None:
    assert all(item_s(part, item) < RUN_S for part, items in PARTS.items() for item in items)
    assert set(ITEM_S) < set(PARTS)


# --- a long prompt beside streams ---


def stream(first_s: float, *gaps_s: float) -> dict[str, object]:
    return {"t0": first_s - 0.25, "ttft": 0.25, "itl": list(gaps_s)}


def test_the_worst_gap_is_the_longest_that_the_long_prompt_can_have_caused() -> None:
    arrived = {"t0": 10.0, "ttft": 2.0}
    # Ends before; overlaps at both ends; begins after.
    streams = [stream(1.0, 5.0), stream(9.0, 0.5, 1.5, 0.1), stream(13.0, 4.0)]
    assert gaps([*streams, stream(11.5, 0.75)], arrived) == {
        "long_ttft_ms": 2000.0,
        "worst_gap_ms": 1500.0,
    }


def test_there_is_no_worst_gap_where_the_streams_had_ended() -> None:
    assert "worst_gap_ms" not in gaps([stream(1.0, 5.0)], {"t0": 10.0, "ttft": 2.0})


# --- the replay ---


def ids(*values: int) -> Ids:
    return np.asarray(values, dtype=np.int32)


def test_a_common_prefix_ends_at_the_first_difference() -> None:
    assert common(ids(1, 2, 3), ids(1, 2, 4, 5)) == 2
    assert common(ids(1, 2), ids(1, 2, 4)) == 2
    assert common(ids(7), ids(8)) == 0


def test_the_ideal_is_the_longest_prefix_in_common_with_any_earlier_prompt() -> None:
    prompts = [ids(1, 2, 3), ids(9, 9), ids(1, 2, 3, 4), ids(1, 2, 5, 5), ids(1, 2, 5, 5, 6)]
    assert ideal_cached(prompts) == [0, 0, 3, 2, 4]


def test_of_a_repeated_prompt_one_token_is_never_reused() -> None:
    assert ideal_cached([ids(1, 2, 3), ids(1, 2, 3), ids(1, 2)]) == [0, 2, 1]


def trace_line(session: str, time_us: int, keep: int, append: str) -> str:
    row = {"session": session, "ts_us": time_us, "keep": keep, "append": append}
    return json.dumps(row)


def test_a_trace_gives_whole_prompts_in_the_order_of_their_times() -> None:
    trace = [
        trace_line("a", 30, 0, "one"),
        trace_line("a", 40, 2, "ly"),
        trace_line("b", 10, 0, "two"),
        trace_line("b", 35, 3, " more"),
    ]
    prompts = [(prompt.session, prompt.text) for prompt in read_trace(trace)]
    assert prompts == [("b", "two"), ("a", "one"), ("b", "two more"), ("a", "only")]


def test_sessions_in_turn_are_as_if_they_ran_at_once() -> None:
    prompts = [Prompt("a", "1"), Prompt("a", "2"), Prompt("b", "3"), Prompt("c", "4")]
    prompts += [Prompt("a", "5"), Prompt("b", "6")]
    assert [prompt.text for prompt in in_turns(prompts, 2)] == ["1", "3", "2", "6", "5"]


def characters(text: str) -> Ids:
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.int32)


def test_a_session_ends_where_the_context_does() -> None:
    trace = [
        trace_line("a", 1, 0, "abc"),
        trace_line("a", 2, 3, "def"),
        trace_line("b", 3, 0, "xy"),
        trace_line("a", 4, 0, "z"),
        trace_line("b", 5, 2, "z"),
    ]
    requests = cut(read_trace(trace), characters, most_tokens=5, count=9)
    assert [request.chat[0]["content"] for request in requests] == ["abc", "xy", "xyz"]
    assert [len(request.ids) for request in requests] == [3, 2, 3]
    assert len(cut(read_trace(trace), characters, most_tokens=5, count=2)) == 2


# --- the tool session, and the step loops ---


def test_each_turn_of_the_tool_session_begins_with_the_one_before() -> None:
    chats = turns()
    assert len(chats) == TURNS
    assert all(later[: len(chat)] == chat for chat, later in itertools.pairwise(chats))
    assert turns() == chats


def test_the_reused_share_counts_from_the_second_turn() -> None:
    assert reused_share([Turn(100, 0), Turn(200, 90), Turn(300, 210)]) == 0.6


def test_sides_that_did_other_work_are_not_compared() -> None:
    same_work([Run(10, 5, 1.0, 1.0), Run(10, 5, 2.0, 2.0)])
    with pytest.raises(BenchFailure, match="5 . 9"):
        same_work([Run(10, 5, 1.0, 1.0), Run(9, 5, 1.0, 1.0)])
