"""A router's side of a node's prefixes: a mirror of its reports, and predictions by it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from node.protocol.chain.prefix import PrefixHasher, read_fields
from node.protocol.headers import HEADER_SALT
from node.protocol.messages import Event, PrefixDelta, PrefixGone, PrefixSnapshot, Stored
from node.protocol.prefixes import unpack_entries, unpack_hashes
from tests.node.serving import RunningAgent

WAIT_S = 60.0
PAUSE_S = 0.002
"""Between two looks; an engine computes meanwhile."""
PATH = "/v1/chat/completions"
Conversation = list[dict[str, Any]]


class Mirror:
    """A router's copy of one model's prefixes, made from events; strict about their numbers."""

    def __init__(self) -> None:
        self.epoch = 0
        self.seq = 0
        self.missing = 0
        self.values: dict[int, int] = {}
        self.pieces: list[int] = []
        self.stored: list[Stored] = []

    def take(self, event: Event) -> None:
        match event:
            case PrefixSnapshot():
                if event.part == 0:
                    self.epoch, self.seq, self.missing = event.epoch, event.seq, event.parts
                    self.values.clear()
                assert (event.epoch, event.seq) == (self.epoch, self.seq)
                assert event.part == event.parts - self.missing
                self.missing -= 1
                self._add(event.entries)
            case PrefixDelta():
                if event.epoch > self.epoch:
                    self.epoch, self.seq, self.missing = event.epoch, 0, 0
                    self.values.clear()
                    self.pieces.clear()
                assert not self.missing
                assert (event.epoch, event.seq) == (self.epoch, self.seq + 1)
                self.seq = event.seq
                for each in unpack_hashes(event.removed):
                    self.values.pop(each, None)
                self._add(event.changed)
            case Stored():
                self.stored.append(event)
            case PrefixGone():
                assert event.epoch >= self.epoch
                self.epoch, self.seq, self.missing = event.epoch, 0, 0
                self.values.clear()

    def _add(self, packed: bytes) -> None:
        hashes, values = unpack_entries(packed)
        self.pieces.append(len(hashes))
        self.values |= dict(zip(hashes, values, strict=True))


async def follow(events: AsyncIterator[list[Event]], mirror: Mirror) -> None:
    async for batch in events:
        for event in batch:
            mirror.take(event)


class Listener:
    """A router's mirror of a running agent, and the chains that it makes."""

    def __init__(self, agent: RunningAgent, model: str = "scripted") -> None:
        self.agent = agent
        self.model = model
        self.prefix_hasher = PrefixHasher()
        self.mirror = Mirror()

    async def __aenter__(self) -> "Listener":
        subscription = self.agent.app.agent.subscribe("", 0)
        self.task = asyncio.create_task(follow(subscription, self.mirror))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})

    def predicted(self, messages: Conversation, salt: str = "") -> int:
        """Tokens of the deepest position that the node has cached."""
        body = self.body_of(messages)
        chain = self.prefix_hasher.chain(read_fields(body), PATH, self.model, salt=salt)
        assert chain is not None
        known = [
            self.mirror.values[each] >> 1 for each in chain.hashes if each in self.mirror.values
        ]
        return known[-1] if known else 0

    async def until_reported(self) -> None:
        """Waits for what the last answer left."""
        digest = self.agent.app.agent._prefixes.digest(self.model)
        async with asyncio.timeout(WAIT_S):
            while digest is not None and (
                digest._pending or digest.has_changes or len(self.mirror.values) != len(digest)
            ):
                await asyncio.sleep(PAUSE_S)

    async def ask(self, messages: Conversation, salt: str = "") -> tuple[int, int, str]:
        """The tokens that were predicted to be cached, those that were, and the answer."""
        predicted = self.predicted(messages, salt)
        headers = {HEADER_SALT: salt} if salt else {}
        body = self.body_of(messages)
        response = await self.agent.client.post(PATH, content=body, headers=headers, timeout=WAIT_S)
        assert response.status_code == 200, response.text
        await self.until_reported()
        answer = response.json()
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return predicted, cached, answer["choices"][0]["message"]["content"]

    def body_of(self, messages: Conversation) -> bytes:
        fields = {"model": self.model, "messages": messages, "max_tokens": 8, "temperature": 0}
        return msgspec.json.encode(fields)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}
