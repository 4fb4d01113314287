"""Tests of processes and sockets on this machine: ends of processes, many streams, cancellation."""

import asyncio
import json
import resource
import signal
import socket
import time
from collections.abc import Iterator

import httpx

from node.commands.trial_agent import (
    TrialAgent,
    seconds_until_ended,
    stop_engines,
    trial_agent,
)
from node.engine.probe.line import Line, timed
from node.protocol.paths import PATH_CHAT, PATH_REQUESTS
from serving.open_files import allow_many_files

PROCESSES, STREAMS, LIMITS = "processes", "streams", "limits"
_STREAMS = 300
_SHELL_FILES = 256
_GONE_S = 2.0
_STOPPED_GONE_S = 15.0
"""An engine that does not respond is killed after the time that a busy one may need."""
_LONG_PROMPT_BYTES = 500_000
_CANCELS = 20
_CANCEL_S = 0.25
_LEAST_FILES = 4_096


def limits() -> Iterator[Line]:
    files = allow_many_files()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = "no hard limit" if hard == resource.RLIM_INFINITY else f"hard limit {hard}"
    enough = files >= _LEAST_FILES
    yield Line(LIMITS, "open files", f"at least {_LEAST_FILES}", f"{files}, {limit}", enough)
    left, right = socket.socketpair()
    with left, right:
        sizes = [
            end.getsockopt(socket.SOL_SOCKET, option)
            for end in (left, right)
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)
        ]
    yield Line(LIMITS, "buffers of a socket pair", "reported", f"{min(sizes) // 1024} KiB", ok=True)
    with timed() as took:
        try:
            socket.getaddrinfo(socket.gethostname(), None)
            found = "resolves"
        except OSError:
            found = "does not resolve"
        seconds = took()
    ok = seconds < 0.2
    yield Line(LIMITS, "this machine's own name", "within 0.2 s", found, ok, seconds)


def processes() -> Iterator[Line]:
    for name, act, most_s in (
        ("kill -9 of the agent", _kill, _GONE_S),
        ("Ctrl-C at the agent", _interrupt, _GONE_S),
        ("Ctrl-C while its engine hangs", _hang_and_interrupt, _STOPPED_GONE_S),
    ):
        with trial_agent() as agent:
            agent.load()
            engines = agent.engines()
            act(agent)
            gone_s = seconds_until_ended(engines, most_s)
        found = "some were left" if gone_s is None else f"{len(engines)} gone after {gone_s:.1f} s"
        yield Line(
            PROCESSES,
            f"engines after {name}",
            f"gone within {most_s:g} s",
            found,
            gone_s is not None,
            gone_s or most_s,
        )


def _kill(agent: TrialAgent) -> None:
    agent.process.kill()
    agent.process.wait()


def _interrupt(agent: TrialAgent) -> None:
    agent.process.send_signal(signal.SIGINT)


def _hang_and_interrupt(agent: TrialAgent) -> None:
    stop_engines(agent.engines())
    _interrupt(agent)


def streams() -> Iterator[Line]:
    allow_many_files()
    with trial_agent(open_files=_SHELL_FILES) as agent, timed() as took:
        agent.load()
        whole = asyncio.run(_whole_streams(agent))
        seconds = took()
    yield Line(
        STREAMS,
        f"{_STREAMS} streams, started where {_SHELL_FILES} files are allowed",
        "all whole",
        f"{whole} whole",
        whole == _STREAMS,
        seconds,
    )
    script = {
        "models": [{"name": "scripted", "context_tokens": 1_000_000}],
        "token_interval_s": 0.02,
    }
    with trial_agent(json.dumps(script)) as agent:
        agent.load()
        yield _long_prompt(agent)
        yield asyncio.run(_cancels(agent))


async def _whole_streams(agent: TrialAgent) -> int:
    timeout = httpx.Timeout(60.0)
    limit = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=agent.url, headers=agent.headers, timeout=timeout, limits=limit, trust_env=False
    ) as client:
        bodies = await asyncio.gather(
            *(_stream(client) for _ in range(_STREAMS)), return_exceptions=True
        )
    return sum(isinstance(body, str) and "data: [DONE]" in body for body in bodies)


async def _stream(client: httpx.AsyncClient) -> str:
    return (await client.post(PATH_CHAT, json=_body("hi", 16))).text


def _body(prompt: str, tokens: int) -> dict[str, object]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": "scripted", "messages": messages, "max_tokens": tokens, "stream": True}


def _long_prompt(agent: TrialAgent) -> Line:
    body = _body("word " * (_LONG_PROMPT_BYTES // 5), 1)
    with timed() as took:
        response = httpx.post(
            f"{agent.url}/v1/chat/completions", json=body, headers=agent.headers, timeout=60.0
        )
        seconds = took()
    ok = response.status_code == 200
    found = f"status {response.status_code} after {seconds:.2f} s"
    name = f"a prompt of {_LONG_PROMPT_BYTES // 1000} KB"
    return Line(STREAMS, name, "served", found, ok, seconds)


async def _cancels(agent: TrialAgent) -> Line:
    """Measures the time from a client's disconnect to the end of its request."""
    waits_s = []
    async with httpx.AsyncClient(
        base_url=agent.url, headers=agent.headers, timeout=30.0, trust_env=False
    ) as client:
        for _ in range(_CANCELS):
            async with client.stream("POST", PATH_CHAT, json=_body("hi", 2_000)) as response:
                await anext(response.aiter_raw())
            left_s = time.monotonic()
            while (await client.get(PATH_REQUESTS)).json()["data"]:
                await asyncio.sleep(0.002)
            waits_s.append(time.monotonic() - left_s)
    worst_s = max(waits_s)
    return Line(
        STREAMS,
        f"{_CANCELS} clients that disconnect",
        f"their requests end within {_CANCEL_S:g} s",
        f"within {worst_s * 1000:.0f} ms",
        worst_s <= _CANCEL_S,
        sum(waits_s),
    )
