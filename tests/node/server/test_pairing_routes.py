"""The routes of pairing, over real sockets."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from node.protocol.headers import HEADER_PROTOCOL
from node.protocol.messages import PATH_STATUS, PROTOCOL_VERSION, StatusEvent
from node.protocol.pairing import (
    PATH_LEAVE,
    PATH_NEW_CODE,
    PATH_PAIR,
    PATH_PAIRINGS,
    PATH_ROTATE,
    PATH_UNPAIR,
    Code,
    Proofs,
    new_salt,
)
from serving.tls.pinning import pinned_context
from tests.node.serving import WAIT_S, Events, RunningAgent, running


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncIterator[RunningAgent]:
    async with running(tmp_path) as agent:
        yield agent


def over_tls(agent: RunningAgent, secret: str = "") -> httpx.AsyncClient:
    pin = pinned_context(ssl.DER_cert_to_PEM_cert(agent.app.certificate.der))
    headers = {HEADER_PROTOCOL: str(PROTOCOL_VERSION)}
    if secret:
        headers["authorization"] = f"Bearer {secret}"
    return httpx.AsyncClient(base_url=agent.tls_url, headers=headers, verify=pin, timeout=WAIT_S)


def request_of(agent: RunningAgent, code: Code) -> dict[str, Any]:
    salt = new_salt()
    proofs = Proofs(code, agent.app.certificate.fingerprint, salt)
    proof = proofs.of_router("r1", "desk")
    return {"router_id": "r1", "router_name": "desk", "salt": salt, "proof": proof}


async def paired(agent: RunningAgent) -> str:
    """The secret of a router."""
    code = Code.read((await agent.client.post(PATH_NEW_CODE)).json()["code"])
    async with over_tls(agent) as stranger:
        response = await stranger.post(PATH_PAIR, json=request_of(agent, code))
    assert response.status_code == 200, response.text
    return str(response.json()["secret"])


async def test_a_router_is_paired_rotated_listed_and_removed(agent: RunningAgent) -> None:
    async with over_tls(agent, await paired(agent)) as router:
        assert (await router.get(PATH_STATUS)).status_code == 200
        secret = (await router.post(PATH_ROTATE)).json()["secret"]
        async with over_tls(agent, secret) as renewed:
            assert (await renewed.get("/v1/models")).status_code == 200
            assert (await router.get("/v1/models")).status_code == 401
            (listed,) = (await agent.client.get(PATH_PAIRINGS)).json()["routers"]
            assert (listed["router_id"], listed["name"]) == ("r1", "desk")
            left = await agent.client.post(PATH_UNPAIR, json={"router": "desk"})
            assert left.json() == {"routers": []}
            assert (await renewed.get(PATH_STATUS)).status_code == 401
    again = await agent.client.post(PATH_UNPAIR, json={"router": "desk"})
    assert (again.status_code, again.json()["code"]) == (404, "not_paired")


async def test_a_router_may_leave(agent: RunningAgent) -> None:
    async with over_tls(agent, await paired(agent)) as router:
        assert (await router.post(PATH_LEAVE)).status_code == 200
        assert (await router.post(PATH_LEAVE)).status_code == 401


async def test_an_unpaired_router_s_event_stream_ends(agent: RunningAgent) -> None:
    async with (
        over_tls(agent, await paired(agent)) as router,
        router.stream("GET", "/fleet/events") as response,
    ):
        events = Events(response.aiter_lines())
        await events.next(StatusEvent)
        await agent.client.post(PATH_UNPAIR, json={})
        with pytest.raises(AssertionError, match="ended"):
            await events.next(StatusEvent, lambda _event: False)


@pytest.mark.parametrize(
    ("method", "path"), [("GET", PATH_PAIRINGS), ("POST", PATH_NEW_CODE), ("POST", PATH_UNPAIR)]
)
async def test_codes_and_pairings_are_for_the_agent_s_machine(
    agent: RunningAgent, method: str, path: str
) -> None:
    async with over_tls(agent, await paired(agent)) as router:
        refused = await router.request(method, path, json={})
        assert (refused.status_code, refused.json()["code"]) == (403, "local_only")
    async with over_tls(agent) as stranger:
        assert (await stranger.request(method, path, json={})).status_code == 401


@pytest.mark.parametrize("path", [PATH_ROTATE, PATH_LEAVE])
async def test_what_routers_do_is_not_for_the_agent_s_own_token(
    agent: RunningAgent, path: str
) -> None:
    refused = await agent.client.post(path)
    assert (refused.status_code, refused.json()["code"]) == (403, "not_a_router")


async def test_nobody_is_paired_over_plain_http(agent: RunningAgent) -> None:
    request = request_of(agent, agent.app.desk.codes.renew())
    refused = await agent.client.post(PATH_PAIR, json=request)
    assert (refused.status_code, refused.json()["code"]) == (400, "tls_required")
    assert agent.app.desk.pairings.list() == ()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "does not fit"),
        (b"[" * 100_000, "too long"),
        (b'{"router_id": 1}', "does not fit"),
        (b'{"router_id":"r","router_name":"d","salt":"zz","proof":""}', "does not fit"),
        (b'{"router_id":"r","router_name":"d","salt":"00","proof":""}', "is not one"),
    ],
)
async def test_what_a_stranger_sends_is_bounded(
    agent: RunningAgent, content: bytes, words: str
) -> None:
    agent.app.desk.codes.renew()
    async with over_tls(agent) as stranger:
        refused = await stranger.post(PATH_PAIR, content=content)
    assert refused.status_code == 400
    assert words in refused.json()["message"]
