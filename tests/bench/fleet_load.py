"""Sends agent sessions to a router, all at once, and writes down the responses."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from tests.bench.fleet_sessions import Session
from tests.bench.processes import BenchFailure

Chat = list[dict[str, str]]

HEADER_NODE = "x-fleet-node"
HEADER_CACHED = "x-fleet-cached-tokens"
_DATA = b"data: "
_COMMENT = b": fleet "
"""Begin of the comment with the facts that the headers could not contain, since they were sent
before these were known."""
_END = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint of OpenAI's chat dialect."""

    url: str
    key: str
    model: str
    answer_tokens: int


@dataclass(slots=True)
class Answer:
    """One turn, requested and answered."""

    session: str
    turn: int
    chat: Chat
    sent_s: float
    ttft_s: float = 0.0
    """0 until its first content."""
    end_s: float = 0.0
    text: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    predicted_tokens: int | None = None
    """Tokens that the router assumed its node to have cached; None where it does not report it."""
    node: str = ""


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()


class _Chunk(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


async def run(target: Target, sessions: Sequence[Session], limit_s: float) -> list[Answer]:
    """All answers, in the order in which the turns were sent. Raises `BenchFailure`, also where
    they take longer than `limit_s`."""
    try:
        async with asyncio.timeout(limit_s):
            answers = await _ask_all(target, sessions)
    except TimeoutError:
        raise BenchFailure(f"The sessions were not over after {limit_s:.0f} s.") from None
    return sorted(answers, key=lambda answer: answer.sent_s)


async def _ask_all(target: Target, sessions: Sequence[Session]) -> list[Answer]:
    async with aiohttp.ClientSession(
        headers={"authorization": f"Bearer {target.key}"},
        timeout=aiohttp.ClientTimeout(total=None),
        connector=aiohttp.TCPConnector(limit=0),
    ) as client:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_talk(client, target, session)) for session in sessions]
        except ExceptionGroup as failed:
            first = failed.exceptions[0]
            if not isinstance(first, aiohttp.ClientError | OSError | BenchFailure):
                raise
            raise BenchFailure(f"A turn failed: {first}") from None
    return [answer for task in tasks for answer in task.result()]


async def _talk(client: aiohttp.ClientSession, target: Target, session: Session) -> list[Answer]:
    chat: Chat = [{"role": "system", "content": session.system}]
    answers = []
    for number, turn in enumerate(session.turns):
        await asyncio.sleep(turn.think_s)
        chat = [*chat, {"role": "user", "content": turn.text}]
        answer = Answer(session.name, number, chat, time.perf_counter())
        await _ask(client, target, answer)
        answers.append(answer)
        chat = [*chat, {"role": "assistant", "content": "".join(answer.text)}]
    return answers


async def _ask(client: aiohttp.ClientSession, target: Target, answer: Answer) -> None:
    body = {
        "model": target.model,
        "messages": answer.chat,
        "max_tokens": target.answer_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with client.post(target.url + "/v1/chat/completions", json=body) as response:
        if response.status != 200:
            raise BenchFailure(f"HTTP {response.status}: {(await response.text())[:300]}")
        answer.node = response.headers.get(HEADER_NODE, "")
        answer.predicted_tokens = read_predicted(response.headers.get(HEADER_CACHED, ""))
        async for line in response.content:
            if line.startswith(_COMMENT):
                _take_comment(answer, line.decode())
            elif line.startswith(_DATA) and not line.startswith(_DATA + _END):
                _take(answer, _decode_chunk(line.removeprefix(_DATA)))
    answer.end_s = time.perf_counter()
    if not answer.ttft_s or not answer.prompt_tokens:
        raise BenchFailure(f"{answer.session}, turn {answer.turn}: no content or no usage.")


def _take(answer: Answer, chunk: _Chunk) -> None:
    if chunk.error:
        raise BenchFailure(f"{answer.session}, turn {answer.turn}: {chunk.error}")
    for choice in chunk.choices:
        if choice.delta.content:
            answer.ttft_s = answer.ttft_s or time.perf_counter() - answer.sent_s
            answer.text.append(choice.delta.content)
    if chunk.usage is not None:
        details = chunk.usage.prompt_tokens_details
        answer.prompt_tokens = chunk.usage.prompt_tokens
        answer.completion_tokens = chunk.usage.completion_tokens
        answer.cached_tokens = details.cached_tokens if details is not None else 0


def _take_comment(answer: Answer, line: str) -> None:
    fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
    answer.node = fields.get("node", answer.node)
    predicted_tokens = read_predicted(fields.get("cached", ""))
    if predicted_tokens is not None:
        answer.predicted_tokens = predicted_tokens


def read_predicted(text: str) -> int | None:
    """The first number of `PREDICTED/ACTUAL`; None where there are not two: a node's own header
    has the actual one alone."""
    predicted, _, actual = text.partition("/")
    return int(predicted) if predicted.isdecimal() and actual.strip().isdecimal() else None
