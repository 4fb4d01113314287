"""The prefix chain: what a router pays for it on its loop."""

import json
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from typing import Any

from node.protocol.chain.prefix import PIECE_BYTES, PrefixHasher, read_fields
from tests.bench.figures import Figure, median

BODY_LENGTH = 560_000
"""Length of the texts; as JSON they are somewhat longer."""
COLD_MS = 5.0
NEXT_TURN_MS = 1.5
_PATH = "/v1/chat/completions"
_ROUNDS, _QUICK_ROUNDS = 40, 8
SESSIONS = 16
_MARKED_TURNS, _QUICK_MARKED_TURNS = 8, 4
_MESSAGES, _TOOLS = 200, 20
_SYSTEM_LENGTH, _TOOL_LENGTH, _SAID_LENGTH = 12_000, 1_200, 200
_WORDS = ("return", "value", "the", "path", "(x)", '"text"', "\n", "    ", "self", "für", "0.25")

Body = dict[str, Any]


def measure(*, quick: bool) -> Iterator[Figure]:
    rounds = _QUICK_ROUNDS if quick else _ROUNDS
    bodies = session(rounds + 1)
    whole = bodies[0]
    cold = timed(lambda: chained(PrefixHasher(), whole), rounds)
    prefix_hasher = PrefixHasher()
    chained(prefix_hasher, whole)
    following = [timed(partial(chained, prefix_hasher, body), 1)[0] for body in bodies[1:]]
    parse = timed(lambda: json.loads(whole), rounds)
    hashing = timed(lambda: hashed(whole), rounds)
    note = (
        f"{_MESSAGES} messages, {_TOOLS} tools; processor time, medians. For comparison: "
        f"json.loads of the body {median(parse):.1f} ms, hashes of all {median(hashing):.1f} ms"
    )
    size = len(whole) // 1000
    yield Figure(f"chain: {size} KB body, cold", median(cold), "ms", COLD_MS, note=note)
    yield Figure("chain: next turn", median(following), "ms", NEXT_TURN_MS, note="A new message.")
    turns = _MARKED_TURNS if not quick else _QUICK_MARKED_TURNS
    moved = marked_turns(bodies[: 2 * turns + 2 : 2])
    yield Figure(
        f"chain: next turn, {SESSIONS} sessions, marks move",
        median(moved),
        "ms",
        NEXT_TURN_MS,
        note=f"Anthropic, marks of caching at the last message and two before; "
        f"worst {max(moved):.1f} ms",
    )


def marked_turns(bodies: list[bytes]) -> list[float]:
    """Milliseconds of each turn of sessions that begin alike, without the first two of each."""
    prefix_hasher = PrefixHasher()
    found: list[float] = []
    for turn, body in enumerate(bodies):
        messages = json.loads(body)["messages"]
        for number in range(SESSIONS):
            marked = _marked(messages, f"session {number}")
            (took_ms,) = timed(partial(chained, prefix_hasher, marked, "/v1/messages"), 1)
            if turn > 1:
                found.append(took_ms)
    return found


def _marked(messages: list[Body], name: str) -> bytes:
    """The texts of a chat as an Anthropic session that is its own from the second message on."""
    system, *rest = [message["content"] for message in messages]
    turns: list[Body] = [
        {"role": ("user", "assistant")[number % 2], "content": [{"type": "text", "text": text}]}
        for number, text in enumerate([rest[0], name, *rest[1:]])
    ]
    for number in (-1, -3):
        turns[number]["content"][0]["cache_control"] = {"type": "ephemeral"}
    body = {"model": "m", "system": system, "messages": turns}
    return json.dumps(body, ensure_ascii=False).encode()


def session(turns: int) -> list[bytes]:
    """The bodies of an agent's session, each with one more message than the one before."""
    chance = random.Random(5)
    tools = [_tool(chance, number) for number in range(_TOOLS)]
    count = _MESSAGES + turns
    around = _SYSTEM_LENGTH + _TOOLS * _TOOL_LENGTH + _MESSAGES * _SAID_LENGTH
    result_length = (BODY_LENGTH - around) * 2 // _MESSAGES
    messages: list[Body] = [{"role": "system", "content": _text(chance, _SYSTEM_LENGTH)}]
    for number in range(1, count):
        messages.append(_message(chance, number, result_length))
    return [
        json.dumps(
            {"model": "m", "messages": messages[:each], "tools": tools}, ensure_ascii=False
        ).encode()
        for each in range(_MESSAGES, count)
    ]


def chained(prefix_hasher: PrefixHasher, body: bytes, path: str = _PATH) -> None:
    if not prefix_hasher.chain(read_fields(body), path, "m"):
        raise ValueError("the body has no chain")


def hashed(data: bytes) -> None:
    before = b""
    for begin in range(0, len(data), PIECE_BYTES):
        before = blake2b(before + data[begin : begin + PIECE_BYTES], digest_size=8).digest()


def timed(work: Callable[[], object], rounds: int) -> list[float]:
    """Milliseconds of processor time of each round."""
    found = []
    for _ in range(rounds):
        began_s = time.process_time()
        work()
        found.append((time.process_time() - began_s) * 1000)
    return found


def _tool(chance: random.Random, number: int) -> Body:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    name, about = f"tool_{number}", _text(chance, _TOOL_LENGTH)
    function = {"name": name, "description": about, "parameters": schema}
    return {"type": "function", "function": function}


def _message(chance: random.Random, number: int, result_length: int) -> Body:
    """Answers with a call, and results, in turn."""
    if number % 2 == 0:
        content = _text(chance, result_length)
        return {"role": "tool", "tool_call_id": f"call_{number - 1}", "content": content}
    arguments = json.dumps({"path": _text(chance, _SAID_LENGTH // 2)})
    function = {"name": "tool_1", "arguments": arguments}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    content = _text(chance, _SAID_LENGTH)
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def _text(chance: random.Random, length: int) -> str:
    words = chance.choices(_WORDS, k=length // 4)
    return " ".join(words)[:length]
