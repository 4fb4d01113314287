"""The admin API's OpenAPI, and what schemathesis sends by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.core.result import Ok

from node.protocol.ids import owner_mark
from router.api.admin import adding
from router.api.admin.openapi import BODIES
from router.app import build_app, open_core
from router.core import Core
from router.errors import NoNodeReady, NotFound
from router.fleet import checkup
from router.settings import Settings
from tests.router.api.conftest import PlayedClient, PlayedNode, a_model, a_status

EXAMPLES_OF_EACH = 6
"""Requests by each verb and way of generating; all of them take some seconds."""


@pytest.fixture
async def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Core]:
    """A router, to which every address is a node that can be added."""

    def open_client(url: str, _credential: object, _kind: str) -> PlayedClient:
        return PlayedClient(PlayedNode(a_status(owner_mark(url), a_model("tiny"))))

    async def pair(_url: str, _code: object) -> None:
        raise NotFound("No agent is being paired.")

    async def check(_records: object) -> list[object]:
        return []

    monkeypatch.setattr(checkup, "check_nodes", check)
    monkeypatch.setattr(adding, "NodeClient", open_client)
    monkeypatch.setattr(adding, "certificate_for", pair)
    async with open_core(Settings(home=tmp_path, discovery=False)) as core:

        async def watch(_record: object) -> None:
            """No node is dialed."""

        monkeypatch.setattr(core.watcher, "watch", watch)
        yield core


@pytest.fixture
async def api(core: Core) -> AsyncIterator[httpx.AsyncClient]:
    key = core.settings.current.admin_key_file.read_text().strip()
    transport = httpx.ASGITransport(build_app(core))
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://router", headers=headers
    ) as client:
        yield client


async def description(api: httpx.AsyncClient) -> dict[str, Any]:
    response = await api.get("/admin/openapi.json")
    assert response.status_code == 200
    found: dict[str, Any] = response.json()
    return found


async def test_every_verb_says_what_it_does_and_has_an_example(api: httpx.AsyncClient) -> None:
    described = await description(api)
    bodies = set()
    for path, verbs in described["paths"].items():
        for method, verb in verbs.items():
            name = f"{method.upper()} {path}"
            assert verb["description"], name
            assert set(verb["responses"]) >= {"400", "401", "403", "404", "409"}, name
            assert "422" not in verb["responses"], name
            if "requestBody" in verb:
                bodies.add(name)
                assert verb["requestBody"]["content"]["application/json"]["example"]
            for parameter in verb.get("parameters", ()):
                assert parameter["in"] != "path" or parameter["example"], name
    assert bodies == set(BODIES)
    assert len(described["paths"]) > 20


async def test_the_examples_are_valid(api: httpx.AsyncClient) -> None:
    """None is refused for its form."""
    for name, body in BODIES.items():
        method, path = name.split()
        path = path.replace("{id_or_name}", "first").replace("{name}", "lab")
        response = await api.request(method, path, json=body)
        assert response.status_code != 400, (name, response.text)


async def test_the_description_is_for_admins_only(api: httpx.AsyncClient) -> None:
    response = await api.get("/admin/openapi.json", headers={"authorization": "Bearer x"})
    assert response.status_code == 401


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
async def test_no_request_by_the_schema_or_beside_it_is_a_5xx(
    api: httpx.AsyncClient, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_dict(await description(api))
    loop, failed = asyncio.get_running_loop(), list[str]()

    def send(case: Any) -> None:
        request = case.as_transport_kwargs(base_url="http://router")
        sent = {
            name: request[name]
            for name in ("params", "json", "data", "headers")
            if request.get(name) is not None
        }
        if "data" in sent:
            sent["content"] = sent.pop("data")
        work = api.request(request["method"], request["url"], **sent)
        response = asyncio.run_coroutine_threadsafe(work, loop).result()
        # No node is connected, and a pull without one is rightly told so.
        if response.status_code >= 500 and NoNodeReady.code not in response.text:
            failed.append(f"{request['method']} {request['url']}: {sent}: {response.text}")

    def send_all() -> None:
        for result in schema.get_all_operations():
            assert isinstance(result, Ok), result
            operation = result.ok()

            @seed(1)
            @settings(
                max_examples=EXAMPLES_OF_EACH,
                phases=(Phase.generate,),
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            )
            @given(operation.as_strategy(generation_mode=mode))
            def fuzz(case: Any) -> None:
                send(case)

            fuzz()

    await asyncio.to_thread(send_all)
    assert failed == []
