"""Pairing with a real agent over TLS, directly and through a man in the middle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from node.protocol.pairing import PATH_PAIR, Code, PairReply
from router.errors import (
    BadRequest,
    CertificateChanged,
    NodeRefused,
    NodeUnreachable,
    WrongNodeToken,
)
from router.pairing_errors import (
    AgentNotProven,
    NoPairingCode,
    PairingCodeUsed,
    PairingCodeVoid,
    PairingFailed,
    WrongCertificate,
    WrongPairingCode,
)
from router.upstream.credentials import NodeCredential
from router.upstream.node_client import NodeClient
from router.upstream.pairing import (
    Paired,
    PairingRouter,
    certificate_for,
    paired,
    read_code,
)
from serving.unreached import Cause
from tests.node.serving import RunningAgent, running
from tests.router.upstream.man_in_the_middle import ManInTheMiddle, man_in_the_middle

ROUTER = PairingRouter("r1", "desk")
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncIterator[RunningAgent]:
    async with running(tmp_path / "node") as agent:
        yield agent


@pytest_asyncio.fixture
async def man(tmp_path: Path, agent: RunningAgent) -> AsyncIterator[ManInTheMiddle]:
    async with man_in_the_middle(tmp_path, agent.port) as man:
        yield man


async def pair(url: str, code: Code) -> Paired:
    async with paired(url, code, await certificate_for(url, code), ROUTER) as found:
        return found


def new_code(agent: RunningAgent) -> Code:
    return agent.app.desk.codes.renew()


def routers(agent: RunningAgent) -> list[str]:
    return [each.name for each in agent.app.desk.pairings.list()]


async def test_a_right_code_gives_a_secret_and_a_pin(agent: RunningAgent) -> None:
    found = await pair(agent.tls_url, new_code(agent))
    assert found.node_id == agent.app.agent.identity.node_id
    assert found.credential.is_paired
    assert routers(agent) == ["desk"]
    async with NodeClient(agent.tls_url, found.credential) as client:
        assert (await client.control.status()).node_id == found.node_id


async def test_every_reason_why_a_code_does_not_work_has_its_own_error(
    agent: RunningAgent,
) -> None:
    fingerprint = agent.app.certificate.fingerprint
    with pytest.raises(NoPairingCode):
        await pair(agent.tls_url, Code.new(fingerprint))
    code = new_code(agent)
    await pair(agent.tls_url, code)
    with pytest.raises(PairingCodeUsed):
        await pair(agent.tls_url, code)
    new_code(agent)
    for _ in range(4):
        with pytest.raises(WrongPairingCode, match="before it is void"):
            await pair(agent.tls_url, Code.new(fingerprint))
    for _ in range(2):
        with pytest.raises(PairingCodeVoid):
            await pair(agent.tls_url, Code.new(fingerprint))
    assert routers(agent) == ["desk"]


async def test_a_pairing_that_cannot_be_stored_is_undone(agent: RunningAgent) -> None:
    code = new_code(agent)
    certificate = await certificate_for(agent.tls_url, code)
    with pytest.raises(LookupError):
        async with paired(agent.tls_url, code, certificate, ROUTER):
            assert routers(agent) == ["desk"]
            raise LookupError
    assert routers(agent) == []


async def test_a_status_with_another_id_is_refused(agent: RunningAgent) -> None:
    agent.app.desk._node_id = "another"
    with pytest.raises(NodeRefused, match="another id"):
        await pair(agent.tls_url, new_code(agent))
    assert routers(agent) == []


async def test_two_routers_may_be_paired_with_one_agent(agent: RunningAgent) -> None:
    first = await pair(agent.tls_url, new_code(agent))
    code, pem = new_code(agent), first.credential.certificate
    async with paired(agent.tls_url, code, pem, PairingRouter("r2", "lab")) as second:
        for each in (first, second):
            async with NodeClient(agent.tls_url, each.credential) as client:
                await client.control.status()
    assert routers(agent) == ["desk", "lab"]


async def test_a_new_secret_voids_the_old_one_and_a_router_that_leaves_is_refused(
    agent: RunningAgent,
) -> None:
    old = (await pair(agent.tls_url, new_code(agent))).credential
    async with NodeClient(agent.tls_url, old) as client:
        new = NodeCredential(await client.control.rotate(), certificate=old.certificate)
        async with NodeClient(agent.tls_url, new) as renewed:
            await renewed.control.status()
            with pytest.raises(WrongNodeToken, match="no longer paired"):
                await client.control.status()
            await renewed.control.leave()
            with pytest.raises(WrongNodeToken, match="rotate-node"):
                await renewed.control.status()


# --- nobody is there, or somebody else ---


async def test_an_address_without_tls_and_one_without_a_server_are_told_apart(
    agent: RunningAgent,
) -> None:
    async def plain(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    code = new_code(agent)
    async with server:
        with pytest.raises(NodeUnreachable, match="does not speak TLS") as error:
            await pair(f"https://127.0.0.1:{port}", code)
        assert error.value.cause is Cause.TLS
    with pytest.raises(NodeUnreachable) as error:
        await pair(f"https://127.0.0.1:{port}", code)
    assert error.value.cause is Cause.REFUSED


async def test_a_man_in_the_middle_is_recognized_before_anything_is_sent(
    agent: RunningAgent, man: ManInTheMiddle
) -> None:
    code = new_code(agent)
    with pytest.raises(WrongCertificate, match="nothing was sent"):
        await pair(man.url, code)
    assert man.read == b""
    assert (await pair(agent.tls_url, code)).node_id  # it cost no try


async def test_a_forged_first_half_gains_him_nothing(
    agent: RunningAgent, man: ManInTheMiddle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate whose hash begins with the same 40 bits can be found with much work."""
    monkeypatch.setattr(Code, "fits", lambda _code, _fingerprint: True)
    with pytest.raises(WrongPairingCode):
        await pair(man.url, new_code(agent))
    assert PATH_PAIR.encode() in man.read
    assert routers(agent) == []


async def test_nor_can_he_pretend_to_be_the_agent(
    agent: RunningAgent, man: ManInTheMiddle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Code, "fits", lambda _code, _fingerprint: True)
    reply = PairReply(agent.app.agent.identity.node_id, "s" * 43, "0" * 64)
    fields = {"node_id": reply.node_id, "secret": reply.secret, "proof": reply.proof}
    body = json.dumps(fields).encode()
    man.answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    with pytest.raises(AgentNotProven):
        await pair(man.url, new_code(agent))


async def test_a_paired_router_sends_nothing_to_a_swapped_certificate(
    agent: RunningAgent, man: ManInTheMiddle
) -> None:
    credential = (await pair(agent.tls_url, new_code(agent))).credential
    async with NodeClient(man.url, credential) as client:
        with pytest.raises(CertificateChanged, match="somebody may be between"):
            await client.control.status()
        with pytest.raises(CertificateChanged):
            await anext(client.control.events("", 0))
        with pytest.raises(OSError, match="certificate verify failed"):
            await client.follow_up("GET", "/v1/models", "")
    assert man.read == b""


def test_errors_of_pairing_are_codes_of_the_agent_s_errors() -> None:
    assert issubclass(PairingCodeVoid, PairingFailed)
    with pytest.raises(BadRequest, match="16 letters") as error:
        read_code("nonsense")
    assert error.value.param == "code"
