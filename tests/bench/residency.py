"""Measures loads and swaps of models: two models that do not fit together, and one that is loaded
by the first request for it."""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from node.protocol.headers import HEADER_PROTOCOL
from node.protocol.messages import PATH_EVENTS, PROTOCOL_VERSION, StatusEvent, decode_event
from tests.bench import processes
from tests.bench.figures import Figure, median
from tests.bench.machine import Cores
from tests.bench.processes import BenchFailure
from tests.bench.shared import CACHE, smollm2_folder

CHAT = "/v1/chat/completions"
SWAP_MODELS = ("a", "b")
LOAD_S = 2.0
MIN_RESIDENCY_S, MAX_SWAP_WAIT_S = 8.0, 40.0
GAP_S = 0.4
"""Between two requests of the A B A B."""
IDLE_S = 15.0
"""Seconds that an agent is idle before a model is requested."""
BAR_SWAPS, BAR_TTFT, BAR_LOAD_S = 1.0, 0.5, 0.3
_ENVIRON = {"OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
BARE_LOAD = """
import sys
from node.engine.model.blas import load_fast_blas
load_fast_blas()
from mlx_lm import load, stream_generate
print("ready", flush=True)
sys.stdin.readline()
model, tokenizer = load(sys.argv[1])
chat = [{"role": "user", "content": sys.argv[2]}]
prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
next(stream_generate(model, tokenizer, prompt, max_tokens=8))
print("first", flush=True)
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of the A B A B."""

    ttfts_s: list[float]
    loads: int
    wall_s: float


@dataclass(frozen=True, slots=True)
class BareLoad:
    """The times that the library takes without us."""

    import_s: float
    """With the start of its process."""
    load_s: float
    """To its first token."""


@dataclass(frozen=True, slots=True)
class Front:
    """Where requests go."""

    url: str
    key: str
    admin_key: str = ""


@dataclass(frozen=True, slots=True)
class Agent:
    process: psutil.Process
    url: str
    token: str


def measure(cores: Cores, *, quick: bool) -> Iterator[Figure]:
    yield from swaps(cores, requests=20 if quick else 60)
    yield from load_on_demand(cores, rounds=1 if quick else 3)


# --- A B A B ---


def swaps(cores: Cores, requests: int) -> Iterator[Figure]:
    """Collated through the router; and in the order of their arrival, one after the other, by an
    agent that knows no minimum residency."""
    with _swap_bed(cores, MIN_RESIDENCY_S, MAX_SWAP_WAIT_S) as (front, agent):
        ours = asyncio.run(_alternate(front, agent, requests))
    with _swap_agent(cores, 0.0, 0.0) as agent:
        front = Front(agent.url, agent.token)
        first_come = asyncio.run(_alternate(front, agent, requests, asyncio.Lock()))
    load = (
        f"{requests} requests for two models in turn, one each {GAP_S:g} s, a load takes "
        f"{LOAD_S:g} s"
    )
    residencies = ours.wall_s / MIN_RESIDENCY_S
    note = (
        f"{load}; {ours.loads - 1} swaps in {ours.wall_s:.0f} s, at least {MIN_RESIDENCY_S:g} s "
        f"each; {first_come.loads - 1} in {first_come.wall_s:.0f} s in order of arrival"
    )
    yield Figure(
        "A B A B: swaps for each minimum residency",
        (ours.loads - 1) / residencies,
        "",
        BAR_SWAPS,
        note=note,
    )
    ours_s, theirs_s = (sum(each.ttfts_s) / len(each.ttfts_s) for each in (ours, first_come))
    note = f"{ours_s:.1f} s, and {theirs_s:.1f} s in order of arrival; longest "
    note += f"{max(ours.ttfts_s):.1f} and {max(first_come.ttfts_s):.1f} s"
    yield Figure(
        "A B A B: mean TTFT, of first-come order's", ours_s / theirs_s, "", BAR_TTFT, note=note
    )


async def _alternate(
    front: Front, agent: Agent, requests: int, order: asyncio.Lock | None = None
) -> Ended:
    """`order`: held by one request after the other, in the order of their arrival."""
    loads: set[tuple[str, int]] = set()
    async with _client(front.key) as client:
        watch = asyncio.create_task(_watch_loads(agent, loads))
        began_s = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = []
                for number in range(requests):
                    model = SWAP_MODELS[number % 2]
                    request = _ordered_s(client, front, model, str(number), order)
                    tasks.append(group.create_task(request))
                    await asyncio.sleep(GAP_S)
        except ExceptionGroup as failed:
            raise BenchFailure(f"A request failed: {failed.exceptions[0]}") from None
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
    return Ended([task.result() for task in tasks], len(loads), time.monotonic() - began_s)


async def _ordered_s(
    client: aiohttp.ClientSession, front: Front, model: str, text: str, order: asyncio.Lock | None
) -> float:
    """Its time to first token, from its arrival on."""
    if order is None:
        return await _ttft_s(client, front, model, text)
    arrived_s = time.perf_counter()
    async with order:
        return time.perf_counter() - arrived_s + await _ttft_s(client, front, model, text)


async def _watch_loads(agent: Agent, loads: set[tuple[str, int]]) -> None:
    """Every load that the agent reports."""
    headers = {HEADER_PROTOCOL: str(PROTOCOL_VERSION)}
    async with (
        _client(agent.token) as client,
        client.get(agent.url + PATH_EVENTS, headers=headers) as answer,
    ):
        async for line in answer.content:
            event = decode_event(line)
            if isinstance(event, StatusEvent):
                loads |= {
                    (model.name, model.generation)
                    for model in event.status.models
                    if model.generation
                }


@contextmanager
def _swap_bed(
    cores: Cores, min_residency_s: float, max_swap_wait_s: float
) -> Iterator[tuple[Front, Agent]]:
    with (
        _swap_agent(cores, min_residency_s, max_swap_wait_s) as agent,
        _router(cores, [agent]) as front,
    ):
        yield front, agent


@contextmanager
def _swap_agent(cores: Cores, min_residency_s: float, max_swap_wait_s: float) -> Iterator[Agent]:
    gib = 2**30
    script = {
        "models": [{"name": name, "weight_bytes": 6 * gib} for name in SWAP_MODELS],
        "load_delay_s": LOAD_S,
        "prefill_s_per_token": 0.002,
        "token_interval_s": 0.01,
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "script.json"
        file.write_text(json.dumps(script))
        options = ["--engine", "scripted", "--script", str(file), "--memory-limit", "11GiB"]
        options += ["--min-residency", f"{min_residency_s}s"]
        options += ["--max-swap-wait", f"{max_swap_wait_s}s"]
        with _agent(cores, options) as agent:
            yield agent


# --- a load on demand ---


def load_on_demand(cores: Cores, rounds: int) -> Iterator[Figure]:
    """A request through the router to a model that is on disk, until its first content; of that,
    what the bare library takes for the same with the same BLAS: in a process that has imported it,
    as the agent's spare one has, and with the process."""
    folder = smollm2_folder()
    if folder is None:
        raise BenchFailure("$MLX_FLEET_SMOLLM2 names no model folder.")
    cold_s, bare = [], []
    with _agent(cores, ["--model", str(folder)]) as agent, _router(cores, [agent]) as front:
        for number in range(rounds):
            # The agent has started an engine process ahead of the load by then.
            time.sleep(IDLE_S)
            text = f"{number} cold"
            cold_s.append(asyncio.run(_cold_s(front, folder.name, text)))
            bare.append(_bare_load(cores, folder, text))
    added_s = [cold - each.load_s for cold, each in zip(cold_s, bare, strict=True)]
    yield Figure(
        "load on demand through the router, beyond a bare load",
        median(added_s),
        "s",
        BAR_LOAD_S,
        note=f"SmolLM2 fp32, {median(cold_s):.2f} s to the first content; the bare library takes "
        f"{median([each.load_s for each in bare]):.2f} s; medians of {rounds}",
        samples=tuple(added_s),
    )
    whole_s = [cold - each.import_s - each.load_s for cold, each in zip(cold_s, bare, strict=True)]
    yield Figure(
        "the same, beyond a bare load and its process",
        median(whole_s),
        "s",
        note=f"whose imports take {median([each.import_s for each in bare]):.2f} s",
        samples=tuple(whole_s),
    )


async def _cold_s(front: Front, model: str, text: str) -> float:
    async with _client(front.key) as client:
        cold_s = await _ttft_s(client, front, model, text)
    async with _client(front.admin_key) as client:
        order = {"model": model}
        async with client.post(front.url + "/admin/models/unload", json=order) as answer:
            if answer.status != 200:
                raise BenchFailure(f"The model is not unloaded: {await answer.text()}")
    return cold_s


def _bare_load(cores: Cores, folder: Path, text: str) -> BareLoad:
    began_s = time.perf_counter()
    with (
        cores.starting_a_server(),
        subprocess.Popen(
            [sys.executable, "-c", BARE_LOAD, str(folder), text],
            cwd=processes.PROJECT,
            env=processes.environment(_ENVIRON),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as child,
    ):
        assert child.stdin is not None and child.stdout is not None
        first = child.stdout.readline()
        ready_s = time.perf_counter()
        child.stdin.write(b"\n")
        child.stdin.flush()
        if (first, child.stdout.readline()) != (b"ready\n", b"first\n"):
            raise BenchFailure("The bare library did not answer.")
        return BareLoad(ready_s - began_s, time.perf_counter() - ready_s)


# --- what both run on ---


def _client(key: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        headers={"authorization": f"Bearer {key}"},
        timeout=aiohttp.ClientTimeout(total=None),
        connector=aiohttp.TCPConnector(limit=0),
    )


async def _ttft_s(client: aiohttp.ClientSession, front: Front, model: str, text: str) -> float:
    """Returns the time to the first token of a streamed chat, which is read to its end."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 8,
        "temperature": 0,
        "stream": True,
    }
    began_s, ttft_s = time.perf_counter(), 0.0
    async with client.post(front.url + CHAT, json=body) as answer:
        if answer.status != 200:
            raise BenchFailure(f"HTTP {answer.status}: {(await answer.text())[:300]}")
        async for line in answer.content:
            if not ttft_s and b'"content":"' in line and b'"content":""' not in line:
                ttft_s = time.perf_counter() - began_s
    if not ttft_s:
        raise BenchFailure("A stream had no content.")
    return ttft_s


@contextmanager
def _agent(cores: Cores, options: Sequence[str]) -> Iterator[Agent]:
    with tempfile.TemporaryDirectory(prefix="bench-node-") as home:
        port = processes.free_port()
        url = f"http://127.0.0.1:{port}"
        argv = [*processes.command("node-agent"), "serve", "--home", home, "--port", str(port)]
        log = CACHE / "logs" / "residency-node.log"
        with processes.running([*argv, *options], cores, log, _ENVIRON) as on:
            processes.wait_until(processes.answers(url + "/health"), on, log)
            yield Agent(on, url, (Path(home) / "token").read_text().strip())


@contextmanager
def _router(cores: Cores, agents: Sequence[Agent]) -> Iterator[Front]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-router-")))
        port = processes.free_port()
        url = f"http://127.0.0.1:{port}"
        log = CACHE / "logs" / "residency-router.log"
        argv = [*processes.command("router"), "serve", "--home", str(home), "--port", str(port)]
        process = stack.enter_context(processes.running(argv, cores, log))
        processes.wait_until(processes.answers(url + "/health"), process, log)
        admin_key = (home / "admin.key").read_text().strip()
        for number, agent in enumerate(agents, 1):
            node = {"url": agent.url, "name": f"node{number}", "token": agent.token}
            processes.fetch(url + "/admin/nodes", admin_key, node)
        yield Front(url, (home / "first.key").read_text().strip(), admin_key)
