"""A recorded agent's requests, sent again in the trace's order: how much of the prompts is reused,
and how long prefill takes. The best that is possible follows from the prompts alone."""

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from node.dialects.chat.body import read_chat
from node.prompt.renderer import PromptRenderer
from tests.bench.processes import BenchFailure
from tests.bench.shared import SharedTools
from tests.bench.sides import Chat, Server, prompt_file

TRACE = "data/traces/lmcache_agent_miniswe.jsonl.gz"
MAX_TOKENS = 8
"""Limit of each answer: the trace's own answers are not part of the next prompt."""
REQUESTS = 120
TOGETHER = 16
"""Sessions of the replay in turn: a team's agents at once."""
QUICK_REQUESTS = 30

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of the trace."""

    session: str
    text: str


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the replay, and the token ids that a server makes of it."""

    chat: Chat
    ids: Ids


@dataclass(frozen=True, slots=True)
class Reuse:
    """The results of a replay."""

    requests: int
    prompt_tokens: int
    seen_tokens: int
    """The same, as the server reports it."""
    cached_tokens: int
    """Cached tokens that the server reports; 0 where it reports none."""
    ideal_tokens: int
    prefill_s: float
    """Sum of the times to the first token."""

    @property
    def share(self) -> float:
        return self.cached_tokens / self.prompt_tokens

    @property
    def ideal_share(self) -> float:
        return self.ideal_tokens / self.prompt_tokens


def load_requests(
    tools: SharedTools, folder: Path, count: int, *, together: int = 1
) -> list[Request]:
    """The first `count` requests that fit into the model's context; with `together`, of so many
    sessions in turn."""
    renderer = PromptRenderer(folder)
    config = json.loads((folder / "config.json").read_text())

    def render(text: str) -> Ids:
        body = {"model": "bench", "messages": [{"role": "user", "content": text}]}
        tokens = renderer.render(read_chat(json.dumps(body).encode()).request).tokens
        return np.asarray(tokens, dtype=np.int32)

    with gzip.open(tools.folder.parent / TRACE, "rt", encoding="utf-8") as lines:
        prompts = read_trace(lines)
    if together > 1:
        prompts = in_turns(prompts, together)
    return cut(prompts, render, config["max_position_embeddings"] - MAX_TOKENS, count)


def read_trace(lines: Iterable[str]) -> list[Prompt]:
    """The whole prompts, in the order of their times. In the file each is what it keeps of the
    session's last one, in characters, and what it appends."""
    last: dict[str, str] = {}
    timed: list[tuple[int, Prompt]] = []
    for line in lines:
        row = json.loads(line)
        text = last.get(row["session"], "")[: row["keep"]] + row["append"]
        last[row["session"]] = text
        timed.append((row["ts_us"], Prompt(row["session"], text)))
    return [prompt for _, prompt in sorted(timed, key=lambda pair: pair[0])]


def in_turns(prompts: Sequence[Prompt], together: int) -> list[Prompt]:
    """The first `together` sessions as if they ran at once: one request of each in turn."""
    sessions: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        sessions.setdefault(prompt.session, []).append(prompt)
    chosen = list(sessions.values())[:together]
    rounds = zip_longest(*chosen)
    return [prompt for each in rounds for prompt in each if prompt is not None]


def cut(
    prompts: Sequence[Prompt], render: Callable[[str], Ids], most_tokens: int, count: int
) -> list[Request]:
    """The first `count` prompts; a session ends before its first one of more than `most_tokens`."""
    ended: set[str] = set()
    requests: list[Request] = []
    for prompt in prompts:
        if len(requests) == count:
            break
        if prompt.session in ended:
            continue
        ids = render(prompt.text)
        if len(ids) > most_tokens:
            ended.add(prompt.session)
        else:
            requests.append(Request([{"role": "user", "content": prompt.text}], ids))
    return requests


def ideal_cached(prompts: Sequence[Ids]) -> list[int]:
    """For each prompt, how many of its tokens begin an earlier one too. At least one token has to
    go through the model, for the first of the answer."""
    return [
        min(max((common(ids, earlier) for earlier in prompts[:number]), default=0), len(ids) - 1)
        for number, ids in enumerate(prompts)
    ]


def common(one: Ids, other: Ids) -> int:
    """Length of the common prefix."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length


def run(server: Server, requests: Sequence[Request]) -> Reuse:
    """One request after the other. Raises `BenchFailure` where one fails."""
    chats = [request.chat for request in requests]
    argv = ["-c", "1", "-n", str(len(chats)), "--max-tokens", str(MAX_TOKENS)]
    summary, records = server.load([*argv, *prompt_file(chats)])
    if summary["errors"]:
        raise BenchFailure(f"{summary['errors']} failed: {summary['error_samples'][0]}")
    return Reuse(
        requests=len(requests),
        prompt_tokens=sum(len(request.ids) for request in requests),
        seen_tokens=sum(record["prompt"] for record in records),
        cached_tokens=sum(record["cached"] for record in records),
        ideal_tokens=sum(ideal_cached([request.ids for request in requests])),
        prefill_s=sum(record["ttft"] for record in records),
    )


def run_checked(server: Server, requests: Sequence[Request]) -> Reuse:
    """The same. Raises `BenchFailure` also where the server sees other tokens than those that the
    ideal was computed of."""
    found = run(server, requests)
    if found.seen_tokens != found.prompt_tokens:
        raise BenchFailure(
            f"The prompts have {found.seen_tokens} tokens for the server, and "
            f"{found.prompt_tokens} here."
        )
    return found
