"""Wiring: files of the agent's folder, the check of `Host`, and settings that stop the start."""

import stat
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from starlette.types import Message

from node.app import build_agent, build_app, is_loopback, load_node_id, load_token
from node.engine.scripted import Script
from node.errors import StartError
from node.settings import Settings
from tests.node.serving import running


def settings(home: Path) -> Settings:
    return Settings(home=home, engine="scripted")


def test_the_token_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    here = settings(tmp_path / "new" / "node")
    token, fresh = load_token(here)
    assert fresh
    assert len(token) == 32 and int(token, 16) >= 0
    assert stat.S_IMODE(here.token_file.stat().st_mode) == 0o600
    assert load_token(here) == (token, False)


def test_a_token_file_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(StartError, match="empty"):
        load_token(settings(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="cannot be used"):
        load_token(settings(tmp_path / "file"))


def test_the_node_id_stays_and_the_instance_is_new(tmp_path: Path) -> None:
    here = settings(tmp_path)
    first, second = build_agent(here), build_agent(here)
    assert first.identity.node_id == second.identity.node_id == load_node_id(here)
    assert first.instance_id != second.instance_id


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"script": Path("/nothing/here")}, "cannot be read"),
        ({"engine": "text", "models": (Path("/nothing/here"),)}, "no folder"),
        ({"engine": "text", "models": (), "served_model_names": ("a",)}, "1 names"),
        ({"engine": "text", "memory_limit_bytes": 1 << 50}, "this machine has"),
        ({"memory_limit_bytes": 1 << 30, "kv_cache_bytes": 1 << 31}, "lower --kv-cache-size"),
    ],
)
def test_wrong_settings_stop_the_start_with_a_sentence(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(StartError, match=words):
        build_app(replace(settings(tmp_path), **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("", False),
    ],
)
def test_loopback_is_told_from_everything_else(host: str, *, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/fleet/status"])
async def test_a_foreign_host_is_refused_on_a_loopback_bind(tmp_path: Path, path: str) -> None:
    async with running(tmp_path) as agent:
        for host in ("localhost:1234", "127.0.0.1", "[::1]:99"):
            response = await agent.client.get(path, headers={"host": host})
            assert response.status_code == 200
        for host in ("evil.example", "evil.example:8801", "127.0.0.1.evil.example"):
            response = await agent.client.get(path, headers={"host": host})
            assert response.status_code == 421
            assert response.json()["error"]["code"] == "foreign_host"


async def test_another_bind_answers_to_any_host(tmp_path: Path) -> None:
    async with running(tmp_path, host="0.0.0.0") as agent:
        response = await agent.client.get("/health", headers={"host": "mac.example"})
        assert response.status_code == 200


async def test_a_scripted_agent_has_the_switches_of_its_faults(tmp_path: Path) -> None:
    async with running(tmp_path, Script(token_interval_s=0.01)) as agent:
        await agent.client.put("/scripted", json={"fail_status": 503, "fail_times": 1})
        assert (await agent.chat(max_tokens=1)).status_code == 503
        assert (await agent.chat(max_tokens=1)).status_code == 200
        shown = (await agent.client.get("/scripted")).json()
        assert [record["status"] for record in shown["records"]] == [503, 200]
        await agent.client.put("/scripted", json={"close_after_chunks": 1})
        with pytest.raises(httpx.RemoteProtocolError):
            await agent.chat(stream=True, max_tokens=5)


async def test_a_node_without_faults_has_no_switches(tmp_path: Path) -> None:
    app = build_app(Settings(home=tmp_path))
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/scripted",
        "headers": [],
        "query_string": b"",
    }
    await app({**scope, "query_string": b""}, receive, send)
    assert sent[0]["status"] == 404
