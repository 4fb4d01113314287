"""Pairs this router with an agent by its one-time code.

The certificate at the agent's address is compared with the code before anything is sent; then both
sides prove that they know the code's secret (`node.protocol.pairing`).
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from node.protocol.names import is_name
from node.protocol.pairing import Code, NotACode, PairRequest, Proofs, new_salt
from router.errors import (
    BadRequest,
    NodeRefused,
    NodeUnreachable,
    RouterError,
)
from router.pairing_errors import AgentNotProven, WrongCertificate
from router.settings import CONNECT_TIMEOUT_S
from router.upstream.credentials import NodeCredential
from router.upstream.host_name import HostName
from router.upstream.node_client import NodeClient
from serving.tls.pinning import fingerprint, untrusting_context
from serving.unreached import cause_of, sentence_of


@dataclass(frozen=True, slots=True)
class PairingRouter:
    """The router as agents get to know it."""

    router_id: str
    name: str
    """The name of its machine."""


@dataclass(frozen=True, slots=True)
class Paired:
    """An agent that is paired, but not stored yet."""

    node_id: str
    credential: NodeCredential


def read_code(text: str) -> Code:
    """Raises `BadRequest`."""
    try:
        return Code.read(text)
    except NotACode as error:
        raise BadRequest(str(error), param="code") from None


@asynccontextmanager
async def paired(
    url: str, code: Code, certificate: str, router: PairingRouter
) -> AsyncIterator[Paired]:
    """Pairs with the agent at that address, which has the certificate; if the block that stores it
    fails, the agent forgets the router again.

    Raises `NodeUnreachable`, `PairingFailed`, and `NodeRefused` for an agent whose status has
    another id than the one that was paired.
    """
    pinned = NodeCredential(certificate=certificate)
    credential, node_id = await _redeem(url, code, pinned, router)
    async with NodeClient(url, credential) as client:
        try:
            status = await client.control.status()
            if status.node_id != node_id:
                raise NodeRefused(
                    f"The agent at {url} reports another id than the one that was paired; nothing "
                    "was stored."
                )
            yield Paired(node_id, credential)
        except BaseException:
            await _undo(client)
            raise


async def _undo(client: NodeClient) -> None:
    try:
        await client.control.leave()
    except RouterError:
        # The agent keeps a secret that nobody has.
        return


async def certificate_for(url: str, code: Code) -> str:
    """Returns the certificate at that address in PEM, if it is the code's; nothing is sent. Raises
    `WrongCertificate` and `NodeUnreachable`."""
    parts = urlsplit(url)
    host = HostName(parts.hostname or "", parts.port or 443)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader = await host.connect(_CertificateReader, untrusting_context())
    except (OSError, TimeoutError) as error:
        cause = cause_of(error, host.known)
        sentence = sentence_of(cause, error)
        raise NodeUnreachable(f"{url} cannot be reached: {sentence}", cause=cause) from error
    if not code.fits(fingerprint(reader.certificate)):
        raise WrongCertificate
    return ssl.DER_cert_to_PEM_cert(reader.certificate)


class _CertificateReader(asyncio.Protocol):
    """Reads the server's certificate, sends nothing, and leaves."""

    certificate = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = cast(asyncio.Transport, transport)
        found = connection.get_extra_info("ssl_object").getpeercert(binary_form=True)
        self.certificate = found or b""
        connection.close()


async def _redeem(
    url: str, code: Code, pinned: NodeCredential, router: PairingRouter
) -> tuple[NodeCredential, str]:
    """Returns the credential with this router's secret, and the agent's id."""
    certificate = fingerprint(ssl.PEM_cert_to_DER_cert(pinned.certificate))
    salt = new_salt()
    proofs = await asyncio.to_thread(Proofs, code, certificate, salt)
    proof = proofs.of_router(router.router_id, router.name)
    async with NodeClient(url, pinned) as client:
        reply = await client.control.pair(PairRequest(router.router_id, router.name, salt, proof))
    if not hmac.compare_digest(reply.proof, proofs.of_agent(reply.node_id, reply.secret)):
        raise AgentNotProven
    if not is_name(reply.node_id):
        raise NodeRefused(f"{url} has an id that cannot be shown.")
    return NodeCredential(reply.secret, certificate=pinned.certificate), reply.node_id
