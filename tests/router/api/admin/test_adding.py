"""`POST /admin/nodes` with a code and `/admin/nodes/rotate`, with a real agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from registry import nodes
from registry.records import NodeRecord
from router.api.admin import adding
from router.api.admin.adding import default_name
from router.fleet.discovery import FoundService
from router.upstream.credentials import NodeCredential
from tests.fakes import NO_TLS
from tests.node.serving import RunningAgent, running
from tests.router.conftest import RunningRouter
from tests.router.fleet.test_discovery import txt

pytestmark = pytest.mark.timeout(60)


class Admin:
    def __init__(self, router: RunningRouter, client: httpx.AsyncClient) -> None:
        self.router = router
        self.client = client

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.client.post(f"/admin{path}", json=body)

    async def records(self) -> list[NodeRecord]:
        """The nodes, without the addresses that their agents report some time later."""
        async with self.router.core.registry.read() as session:
            return [replace(each, macs=None) for each in await nodes.list_all(session)]


@pytest_asyncio.fixture
async def admin(router: RunningRouter) -> AsyncIterator[Admin]:
    key = router.core.settings.current.admin_key_file.read_text().strip()
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{router.port}",
        headers={"authorization": f"Bearer {key}"},
        timeout=30,
        verify=NO_TLS,
    ) as client:
        yield Admin(router, client)


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncIterator[RunningAgent]:
    async with running(tmp_path / "node") as agent:
        yield agent


def code_of(agent: RunningAgent) -> str:
    return agent.app.desk.codes.renew().text()


def error_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def paired(admin: Admin, agent: RunningAgent) -> dict[str, Any]:
    code = code_of(agent)
    response = await admin.post("/nodes", url=agent.tls_url, code=code, name="mini")
    assert response.status_code == 201, response.text
    row: dict[str, Any] = response.json()
    return row


async def test_an_agent_is_added_with_the_address_at_which_it_is_woken(
    admin: Admin, agent: RunningAgent
) -> None:
    mac = "a0:b1:c2:d3:e4:f5"
    body = {"url": agent.tls_url, "code": code_of(agent), "name": "mini", "wake_mac": mac}
    row = (await admin.post("/nodes", **body)).json()
    assert (row["macs"], row["wakes"]) == ([mac], True)
    (record,) = await admin.records()
    assert (record.wake_mac, record.wakes) == (mac, True)


async def test_an_agent_is_paired_stored_and_watched(admin: Admin, agent: RunningAgent) -> None:
    row = await paired(admin, agent)
    assert (row["name"], row["url"], row["reachable"]) == ("mini", agent.tls_url, True)
    assert row["id"] == agent.app.agent.identity.node_id
    (record,) = await admin.records()
    credential = NodeCredential.from_text(record.credential)
    assert credential.is_paired
    assert credential.token != agent.token
    assert agent.app.desk.pairings.router_of(credential.token) == admin.router.core.router_id


async def test_a_failed_pairing_stores_nothing_on_either_side(
    admin: Admin, agent: RunningAgent
) -> None:
    code = code_of(agent)
    wrong = f"{code[:-1]}{'0' if code[-1] != '0' else '1'}"
    other = f"{'0' if code[0] != '0' else '1'}{code[1:]}"
    for given, error in ((wrong, "wrong_pairing_code"), (other, "wrong_certificate")):
        response = await admin.post("/nodes", url=agent.tls_url, code=given)
        assert error_of(response) == (409, error)
    assert error_of(await admin.post("/nodes", url="https://127.0.0.1:1", code=code))[0] == 502
    assert await admin.records() == []
    assert agent.app.desk.pairings.list() == ()


async def test_what_can_be_refused_without_the_code_does_not_use_it_up(
    admin: Admin, agent: RunningAgent
) -> None:
    await paired(admin, agent)
    code = code_of(agent)
    for body in (
        {"url": agent.tls_url, "name": "mini"},
        {"url": agent.tls_url.replace("https", "http")},
        {"url": agent.tls_url, "token": "t"},
        {"url": agent.tls_url, "kind": "openai"},
    ):
        response = await admin.post("/nodes", code=code, **body)
        assert response.status_code in (400, 409), response.text
    assert (await admin.post("/nodes/rotate", node="mini", code=code)).status_code == 200


async def test_an_agent_under_another_name_is_the_same_agent(
    admin: Admin, agent: RunningAgent
) -> None:
    await paired(admin, agent)
    (before,) = await admin.records()
    url = agent.tls_url.replace("127.0.0.1", "localhost")
    response = await admin.post("/nodes", url=url, code=code_of(agent), name="other")
    assert error_of(response) == (409, "conflict")
    assert "rotate-node mini" in response.json()["error"]["message"]
    assert await admin.records() == [before]
    assert (await admin.post("/nodes/rotate", node="mini")).status_code == 200


async def test_rotation_gives_a_new_secret_and_requests_go_on(
    admin: Admin, agent: RunningAgent
) -> None:
    await paired(admin, agent)
    (before,) = await admin.records()
    response = await admin.post("/nodes/rotate", node="mini")
    assert response.status_code == 200, response.text
    (after,) = await admin.records()
    old, new = (NodeCredential.from_text(each.credential) for each in (before, after))
    assert (new.certificate, new.token == old.token) == (old.certificate, False)
    assert agent.app.desk.pairings.router_of(old.token) is None
    assert agent.app.desk.pairings.router_of(new.token) is not None
    assert new.token not in response.text
    chat = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": f"Bearer {admin.router.key}"}
    answer = await admin.client.post("/v1/chat/completions", json=chat, headers=headers)
    assert answer.status_code == 200, answer.text


async def test_a_node_with_a_token_is_paired_by_a_code(admin: Admin, agent: RunningAgent) -> None:
    url = agent.tls_url.replace("https", "http")
    added = await admin.post("/nodes", url=url, token=agent.token, name="mini")
    assert added.status_code == 201, added.text
    assert error_of(await admin.post("/nodes/rotate", node="mini")) == (409, "conflict")
    response = await admin.post("/nodes/rotate", node="mini", code=code_of(agent))
    assert response.status_code == 200, response.text
    assert response.json()["url"] == agent.tls_url
    (record,) = await admin.records()
    assert (record.url, NodeCredential.from_text(record.credential).is_paired) == (
        agent.tls_url,
        True,
    )


async def test_a_code_of_another_agent_does_not_replace_a_node(
    admin: Admin, agent: RunningAgent, tmp_path: Path
) -> None:
    await paired(admin, agent)
    before = await admin.records()
    agent.app.desk._node_id = "another"
    response = await admin.post("/nodes/rotate", node="mini", code=code_of(agent))
    assert error_of(response) == (502, "node_refused")
    assert await admin.records() == before


async def test_a_removed_node_forgets_the_router(admin: Admin, agent: RunningAgent) -> None:
    await paired(admin, agent)
    assert (await admin.client.delete("/admin/nodes/mini")).status_code == 200
    assert agent.app.desk.pairings.list() == ()


def test_default_names_are_unique() -> None:
    assert default_name("http://Mini.local:1", set()) == "mini.local"
    taken = {"mini.local", "mini.local-2"}
    assert default_name("http://mini.local:1", taken) == "mini.local-3"
    assert default_name("http://[::1]:1", set()) == "1"
    assert len(default_name(f"http://{'x' * 90}:1", {"x" * 59})) <= 63


# --- agents that announce themselves ---


class Found:
    """A network in which agents announce themselves; whether names resolve there."""

    def __init__(self, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
        self.services: list[FoundService] = []
        self.resolves = False
        self.looks = 0
        discovery = admin.router.core.discovery
        monkeypatch.setattr(discovery, "_browse", self.browse)
        monkeypatch.setattr(adding, "resolves", self.answer)

    async def answer(self, _host: str) -> bool:
        return self.resolves

    async def browse(self, _wait_s: float) -> list[FoundService]:
        self.looks += 1
        return self.services

    def announce(self, agent: RunningAgent, name: str = "studio") -> None:
        about = txt(agent.app.agent.identity.node_id, chip="M3", host="mac.local")
        self.services.append(FoundService(name, agent.port, ("127.0.0.1",), about))


@pytest.fixture
def found(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> Found:
    return Found(admin, monkeypatch)


@pytest.mark.parametrize("name", ["studio", "mac.local", "Mac"])
async def test_an_agent_is_added_by_the_name_that_it_announces(
    admin: Admin, agent: RunningAgent, found: Found, name: str
) -> None:
    found.announce(agent)
    response = await admin.post("/nodes", url=name, code=code_of(agent), name="mini")
    assert response.status_code == 201, response.text
    assert response.json()["url"] == agent.tls_url


async def test_what_resolves_or_is_an_address_is_not_looked_for(
    admin: Admin, agent: RunningAgent, found: Found
) -> None:
    code = code_of(agent)
    for text in ("https://127.0.0.1:1", "127.0.0.1:1"):
        assert (await admin.post("/nodes", url=text, code=code)).status_code == 502
    found.resolves = True
    assert (await admin.post("/nodes", url="localhost", code=code)).status_code in (409, 502)
    assert found.looks == 0


async def test_announced_agents_are_listed_with_what_the_fleet_knows(
    admin: Admin, agent: RunningAgent, found: Found
) -> None:
    await paired(admin, agent)
    found.announce(agent)
    found.services.append(FoundService("new", 8801, ("192.168.1.9",), txt("n9", memory_gib=64)))
    new, studio = (await admin.client.get("/admin/nodes/found")).json()
    assert (new["node"], new["paired"], new["models"]) == (None, False, None)
    assert new["memory_gib"] == 64
    assert (studio["node"], studio["paired"], studio["models"]) == ("mini", True, ["scripted"])
    assert studio["urls"] == [agent.tls_url]


async def test_a_router_that_does_not_look_says_so(
    admin: Admin, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin.router.core.discovery, "_browse", None)
    assert error_of(await admin.client.get("/admin/nodes/found")) == (409, "discovery_off")
