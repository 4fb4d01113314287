from __future__ import annotations

import asyncio
import json
import stat
from functools import partial
from pathlib import Path

import pytest

from registry import keys, nodes
from registry import trouble as trouble_module
from registry.errors import RegistryFull
from registry.migrate import open_migrated
from registry.records import NodeRecord
from router import app as app_module
from router.app import open_core
from router.auth import SCOPE_ADMIN, SCOPE_INFERENCE
from router.errors import Forbidden, UnknownPath
from router.fleet.fleet import Fleet
from router.settings import Settings
from serving.http.client_connection import ClientConnection
from tests.router.conftest import CHAT, RunningRouter, StartNode, node_record, silent


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_the_first_start_makes_two_key_files_and_the_second_none(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "router")
    files = (settings.admin_key_file, settings.first_key_file)
    async with open_core(settings) as core:
        admin, first = (file.read_text().strip() for file in files)
        assert core.keys.check(admin, SCOPE_ADMIN).name == "admin"
        assert core.keys.check(admin, SCOPE_INFERENCE).name == "admin"
        assert core.keys.check(first, SCOPE_INFERENCE).name == "first"
        with pytest.raises(Forbidden):
            core.keys.check(first, SCOPE_ADMIN)
        router_id = core.router_id
    assert [mode(file) for file in files] == [0o600, 0o600]
    assert mode(settings.home) == 0o700
    assert not list(settings.home.glob("*.partial"))
    for file in files:
        file.unlink()
    async with open_core(settings) as core:
        assert core.keys.check(admin, SCOPE_ADMIN).name == "admin"
        assert core.router_id == router_id
    assert not any(file.exists() for file in files)


async def test_keys_are_stored_as_digests_only(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "router")
    async with open_core(settings) as core:
        key = settings.admin_key_file.read_text().strip()
        async with core.registry.read() as session:
            assert key not in repr(await keys.list_all(session))


async def register(settings: Settings, *records: NodeRecord) -> None:
    registry = await open_migrated(settings.registry)
    for record in records:
        await registry.write(partial(nodes.add, record=record))
    await registry.close()


async def test_a_start_waits_for_the_first_response_of_each_registered_node(
    tmp_path: Path, start_node: StartNode
) -> None:
    node, away = await start_node(silent), await start_node(silent)
    await away.stop()
    settings = Settings(home=tmp_path / "router")
    await register(settings, node_record(node.url), node_record(away.url, "b"))
    async with open_core(settings) as core:
        assert [(view.name, view.reachable) for view in core.fleet.snapshot] == [
            ("a", True),
            ("b", False),
        ]
        assert core.watcher.client("id-a") is not None


async def test_a_start_does_not_wait_longer_for_a_node_that_is_silent(
    tmp_path: Path, start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "FIRST_CONTACTS_S", 0.01)
    node = await start_node(silent, first_events=())
    settings = Settings(home=tmp_path / "router")
    await register(settings, node_record(node.url))
    async with open_core(settings) as core:
        assert [view.reachable for view in core.fleet.snapshot] == [False]


async def test_health_is_liveness_and_ready_means_a_node(
    router: RunningRouter, start_node: StartNode
) -> None:
    caller = await router.send("GET", "/health")
    assert json.loads(await caller.body()) == {"status": "ok"}
    caller = await router.send("GET", "/")
    assert await caller.body() == b"Ollama is running"
    for path in ("/", "/health"):
        caller = await router.send("HEAD", path, connection="close")
        assert await caller.head() == 200
        assert await caller.reader.read() == b""
    caller = await router.send("GET", "/ready")
    assert json.loads(await caller.body()) == {"ready": False, "nodes": 0}
    assert caller.status == 503
    await router.add(await start_node(silent))
    caller = await router.send("GET", "/ready")
    assert json.loads(await caller.body()) == {"ready": True, "nodes": 1}
    assert caller.status == 200


async def test_health_reports_that_the_registry_cannot_be_written(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = router.core.registry.trouble
    trouble.on_write(RegistryFull(router.core.registry.path))
    caller = await router.send("GET", "/health")
    health = json.loads(await caller.body())
    assert (caller.status, health["status"]) == (200, "degraded")
    assert "cannot be written" in health["registry"]
    assert str(router.core.registry.path) not in health["registry"], "anybody may request it"
    monkeypatch.setattr(trouble_module, "SETTLED_S", 0.0)
    trouble.on_write(None)
    caller = await router.send("GET", "/health")
    assert json.loads(await caller.body()) == {"status": "ok"}


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/redoc", "/index.html"])
async def test_nothing_else_is_shown(router: RunningRouter, path: str) -> None:
    caller = await router.send("GET", path)
    assert await caller.head() == 404


async def test_the_admin_api_is_behind_its_key(router: RunningRouter) -> None:
    caller = await router.send("GET", "/admin/nodes")
    assert (await caller.error())["code"] == "invalid_api_key"
    caller = await router.send("GET", "/admin/nodes", authorization=f"Bearer {router.key}")
    assert (await caller.error())["code"] == "permission_denied"


@pytest.mark.parametrize("path", ["/ready", "/admin/models"])
async def test_a_fault_has_openai_s_envelope_and_is_described_in_the_log_alone(
    router: RunningRouter,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    path: str,
) -> None:
    def broken(_fleet: Fleet) -> None:
        raise ValueError("a fault in its insides")

    monkeypatch.setattr(Fleet, "snapshot", property(broken))
    key = router.core.settings.current.admin_key_file.read_text().strip()
    caller = await router.send("GET", path, authorization=f"Bearer {key}")
    assert await caller.head() == 500
    assert await caller.error() == {
        "message": "The router failed on this request.",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    await router.idle()
    assert caplog.text.count("ValueError: a fault in its insides") == 1


async def test_a_wrong_path_or_method_has_openai_s_envelope(router: RunningRouter) -> None:
    for method, path, status, words in (
        ("GET", "/nowhere", 404, "There is nothing at /nowhere."),
        ("POST", "/chat/completions", 404, UnknownPath.at("/chat/completions").message),
        ("POST", "/health", 405, "/health accepts GET."),
        ("PUT", "/admin/nodes", 405, "/admin/nodes accepts GET and POST."),
    ):
        caller = await router.send(method, path, content_length="0")
        assert await caller.head() == status
        assert (await caller.error())["message"] == words


@pytest.mark.parametrize(
    ("path", "admin"),
    [("/v1/models", False), ("/v1/requests", False), ("/admin/nodes", True), (CHAT, False)],
)
async def test_a_connection_is_known_by_a_valid_key_only(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch, path: str, *, admin: bool
) -> None:
    known: list[ClientConnection] = []
    monkeypatch.setattr(ClientConnection, "_on_authenticated", lambda each: known.append(each))
    refused = await router.send("GET", path, x_api_key="wrong")
    assert (await refused.head(), known) == (401, [])
    key = router.core.settings.current.admin_key_file.read_text().strip() if admin else router.key
    answered = await router.send("GET", path, x_api_key=key)
    await answered.head()
    assert len(known) == 1


async def test_an_open_router_notices_when_its_machine_has_slept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[object] = []
    ended = asyncio.Event()

    async def watch_sleep(on_wake: object) -> None:
        watched.append(on_wake)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(app_module, "watch_sleep", watch_sleep)
    async with open_core(Settings(home=tmp_path / "router")) as core:
        await asyncio.sleep(0)
        assert watched == [core.watcher.on_wake]
    assert ended.is_set()
