"""Clients of scripted nodes, which are closed after the test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from router.upstream.credentials import NodeCredential
from router.upstream.node_client import NodeClient
from tests.router.conftest import (
    Request,
    Script,
    ScriptedNode,
)


def answers(body: bytes, status: str = "200 OK") -> Script:
    async def script(request: Request) -> None:
        await request.answer(body, status)

    return script


@pytest_asyncio.fixture
async def clients() -> AsyncIterator[list[NodeClient]]:
    made: list[NodeClient] = []
    yield made
    for client in made:
        await client.close()


def client_of(node: ScriptedNode, clients: list[NodeClient], token: str = "secret") -> NodeClient:
    client = NodeClient(node.url, NodeCredential(token))
    clients.append(client)
    return client


class RawNode(ScriptedNode):
    """A node whose event stream is the script's."""

    async def _serve(self, request: Request) -> None:
        await self.script(request)
