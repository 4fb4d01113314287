"""Adds nodes to the fleet, and renews the router's access to them."""

import re
import secrets
import socket
import time
from collections.abc import Collection
from urllib.parse import urlsplit

from msgspec import structs

from node.protocol.names import is_name
from node.protocol.paths import VERSION
from registry import nodes
from registry.records import NodeRecord
from router.api.admin.bodies import AddNode, RotateNode
from router.api.admin.gate import CurrentAdmin
from router.api.admin.nodes import mac_of, node_row, refuse_unlisted
from router.api.admin.views import FoundAgentRow, NodeRow
from router.core import Core
from router.errors import BadRequest, Conflict, NodeRefused
from router.fleet.discovery import FoundAgent
from router.states import KIND_OPENAI
from router.upstream.credentials import NodeCredential, check_node_url, pairing_url
from router.upstream.host_name import resolves
from router.upstream.node_client import NodeClient
from router.upstream.pairing import PairingRouter, certificate_for, paired, read_code

_NAME_CHARS = 63


async def add_node(admin: CurrentAdmin, body: AddNode) -> NodeRow:
    """Contacts the node before storing it, so that every registered node has responded once."""
    _refuse_of_agents(body)
    if body.code is not None:
        return await _pair_and_add(admin, body, body.code)
    credential = NodeCredential(body.token.strip(), body.allow_plain_http)
    credential.check()
    wake_mac = mac_of(body.wake_mac, "wake_mac")
    url = check_node_url(body.url, credential)
    if body.kind == KIND_OPENAI:
        url = url.removesuffix(VERSION)  # other programs expect base URLs with it
    async with NodeClient(url, credential, body.kind) as client:
        node_id, accepted = await _contact(client, body)
    known = await _known(admin.core)
    _refuse_taken(known, body.name, url)
    _refuse_registered(known, node_id)
    record = NodeRecord(
        id=node_id,
        name=body.name or default_name(url, {node.name for node in known}),
        url=url,
        kind=body.kind,
        credential=credential.text(),
        created_at_s=time.time(),
        max_rows=body.max_rows,
        prices=body.prices.model_dump(exclude_none=True) if body.prices else None,
        accepted=accepted,
        wake_mac=wake_mac,
        wakes=wake_mac is not None,
    )
    return await _store(admin, record)


async def _pair_and_add(admin: CurrentAdmin, body: AddNode, text: str) -> NodeRow:
    """Pairs with an agent and stores it; a failure leaves both sides as they were."""
    if body.token or body.kind == KIND_OPENAI:
        raise BadRequest(
            "A code is for a node agent, and takes the place of its token.", param="code"
        )
    code, wake_mac = read_code(text), mac_of(body.wake_mac, "wake_mac")
    url = await _address(admin.core, body.url)
    known = await _known(admin.core)
    # A code can be used once, so what can be refused without it is refused before.
    _refuse_taken(known, body.name, url)
    name = body.name or default_name(url, {node.name for node in known})
    certificate = await certificate_for(url, code)
    # Pairing again would make the secret void that the node has.
    _refuse_paired(known, certificate)
    async with paired(url, code, certificate, this_router(admin.core)) as found:
        _refuse_registered(known, found.node_id)
        record = NodeRecord(
            id=found.node_id,
            name=name,
            url=url,
            kind=body.kind,
            credential=found.credential.text(),
            created_at_s=time.time(),
            wake_mac=wake_mac,
            wakes=wake_mac is not None,
        )
        return await _store(admin, record)


async def _address(core: Core, text: str) -> str:
    """Returns the base URL of the agent that a person means: an address, the name of a host, or the
    name of an agent that announces itself."""
    url = pairing_url(text)
    is_name = "://" not in text and ":" not in text
    if is_name and core.discovery.is_on and not await resolves(urlsplit(url).hostname or ""):
        for agent in await core.discovery.look():
            if agent.is_called(text.strip()):
                return agent.urls[0]
    return url


async def _known(core: Core) -> list[NodeRecord]:
    async with core.registry.read() as session:
        return await nodes.list_all(session)


async def _store(admin: CurrentAdmin, record: NodeRecord) -> NodeRow:
    await admin.change(
        "node.add",
        record.name,
        f"{record.kind} {record.url}",
        lambda session: nodes.add(session, record),
    )
    await admin.core.watcher.watch(record)
    admin.core.waker.follow(record)
    return node_row(admin.core, record)


async def list_found(admin: CurrentAdmin) -> list[FoundAgentRow]:
    """Looks for agents in the local network."""
    core = admin.core
    found = await core.discovery.look()
    records = {each.id: each for each in await _known(core)}
    return [_found_row(core, agent, records.get(agent.about.node_id)) for agent in found]


def _found_row(core: Core, agent: FoundAgent, record: NodeRecord | None) -> FoundAgentRow:
    about = agent.about
    view = core.fleet.node(about.node_id) if record else None
    status = view.status if view else None
    return FoundAgentRow(
        name=agent.name,
        node_id=about.node_id,
        urls=agent.urls,
        version=about.version,
        protocol=about.protocol,
        chip=about.chip,
        memory_gib=about.memory_gib,
        node=record.name if record else None,
        paired=record is not None and NodeCredential.from_text(record.credential).is_paired,
        models=tuple(model.name for model in status.models) if status else None,
    )


async def rotate_node(admin: CurrentAdmin, body: RotateNode) -> NodeRow:
    """Gets a new secret from a paired agent, or pairs again with one that has a new certificate."""
    core = admin.core
    async with core.registry.read() as session:
        record = await nodes.get(session, body.node)
    if record.kind == KIND_OPENAI:
        raise BadRequest(
            f"{record.name} is a third-party server, which has no pairing.", param="node"
        )
    if body.code is not None:
        url = pairing_url(record.url.replace("http://", "https://", 1))
        code = read_code(body.code)
        certificate = await certificate_for(url, code)
        async with paired(url, code, certificate, this_router(core)) as found:
            if found.node_id != record.id:
                raise NodeRefused(
                    f"The code is of another agent than the one that was added as {record.name}; "
                    "nothing was stored."
                )
            return await _renew(admin, record.name, found.credential, url)
    credential = NodeCredential.from_text(record.credential)
    client = core.watcher.client(record.id)
    if not credential.is_paired or client is None:
        raise Conflict(
            f"{record.name} was added with a token. `node-agent pair` on its machine shows a code, "
            f"and `router rotate-node {record.name} --code CODE` pairs it.",
            param="node",
        )
    secret = await client.control.rotate()
    return await _renew(admin, record.name, structs.replace(credential, token=secret), record.url)


async def _renew(admin: CurrentAdmin, name: str, credential: NodeCredential, url: str) -> NodeRow:
    record = await admin.change(
        "node.rotate",
        name,
        "",
        lambda session: nodes.set_access(session, name, credential=credential.text(), url=url),
    )
    await admin.core.watcher.update(record)
    client = admin.core.watcher.client(record.id)
    if client is not None:
        await client.control.status()  # the first use of a new secret makes the old one void
    return node_row(admin.core, record)


def this_router(core: Core) -> PairingRouter:
    return PairingRouter(core.router_id, socket.gethostname())


def default_name(url: str, taken: Collection[str]) -> str:
    """Makes an unused node name from the URL's host name."""
    host = (urlsplit(url).hostname or "").lower()
    base = re.sub(r"[^a-z0-9._-]+", "-", host).strip("._-")[: _NAME_CHARS - 4] or "node"
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base}-{count}"
    return name


async def _contact(client: NodeClient, body: AddNode) -> tuple[str, tuple[str, ...] | None]:
    """Returns (the node's id, the models of a third-party server that requests may go to); the id
    of an agent is its own."""
    if body.kind == KIND_OPENAI:
        listed = await client.control.foreign_models()
        refuse_unlisted(body.models or (), listed)
        return secrets.token_hex(8), tuple(listed if body.models is None else body.models)
    node_id = (await client.control.status()).node_id
    if not is_name(node_id):
        raise NodeRefused(f"{body.url} has an id that cannot be shown.")
    return node_id, None


def _refuse_of_agents(body: AddNode) -> None:
    """Raises `BadRequest` for fields that only servers of kind openai have."""
    if body.kind == KIND_OPENAI:
        return
    if body.max_rows is not None:
        raise BadRequest(
            "`max_rows` is for a server of kind openai; a node agent has its own limit, "
            "`node-agent serve --max-rows`.",
            param="max_rows",
        )
    if body.prices is not None:
        raise BadRequest("Only a server of kind openai has prices.", param="prices")
    if body.models is not None:
        raise BadRequest(
            "`models` is for a server of kind openai; all models of a node agent are served.",
            param="models",
        )


def _refuse_taken(known: list[NodeRecord], name: str | None, url: str) -> None:
    for node in known:
        if node.name == name:
            raise Conflict(
                f"A node named {name!r} exists already, at {node.url}; choose another name, or "
                f"remove it with `router remove-node {name}`.",
                param="name",
            )
        if node.url == url:
            raise Conflict(
                f"The node {node.name!r} has this address already; "
                f"`router remove-node {node.name}` removes it.",
                param="url",
            )


def _refuse_paired(known: list[NodeRecord], certificate: str) -> None:
    for node in known:
        if NodeCredential.from_text(node.credential).certificate == certificate:
            _refuse_registered(known, node.id)


def _refuse_registered(known: list[NodeRecord], node_id: str) -> None:
    for node in known:
        if node.id == node_id:
            raise Conflict(
                f"The node agent at this address is registered already, as {node.name!r} at "
                f"{node.url}; `router remove-node {node.name}` removes it, `router rotate-node "
                f"{node.name} --code CODE` pairs it again.",
                param="url",
            )
