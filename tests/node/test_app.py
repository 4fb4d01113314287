"""Wiring: files of the agent's folder, the check of `Host`, and settings that stop the start."""

import ssl
import stat
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from starlette.types import Message

from node.app import build_agent, build_app, load_node_id, load_token, trim_disk
from node.engine.cache.disk.tier import open_tier
from node.engine.cache.parts import EntryKind
from node.engine.scripted.script import Script
from node.errors import StartError
from node.settings import Settings
from serving.tls.pinning import pinned_context
from tests.node.engine.cache.disk_world import LIMITS, ROOT, TIMEOUT_S, some_tensors, some_tokens
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
        ({"memory_limit_bytes": 512 << 20}, "raise --memory-limit"),
        ({"engine": "text", "wired": "weights"}, "no GPU"),
        ({"memory_limit_bytes": 1 << 30, "kv_cache_bytes": 1 << 31}, "lower --kv-cache-size"),
        ({"memory_limit_bytes": 1 << 30, "kv_live_bytes": 1 << 31}, "lower --kv-live-size"),
        ({"kv_cache_bytes": 1 << 20, "kv_snapshot_bytes": 1 << 21}, "lower --kv-snapshot-size"),
        ({"kv_disk_bytes": 1 << 60}, "lower --kv-disk-size"),
    ],
)
def test_wrong_settings_stop_the_start_with_a_message(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(StartError, match=words):
        build_app(replace(settings(tmp_path), **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/fleet/status"])
@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0"])
async def test_a_foreign_host_is_refused_over_plain_http(
    tmp_path: Path, path: str, bound: str
) -> None:
    async with running(tmp_path, host=bound) as agent:
        for host in ("localhost:1234", "127.0.0.1", "[::1]:99"):
            response = await agent.client.get(path, headers={"host": host})
            assert response.status_code == 200
        for host in ("evil.example", "evil.example:8801", "127.0.0.1.evil.example"):
            response = await agent.client.get(path, headers={"host": host})
            assert response.status_code == 421
            assert response.json()["error"]["code"] == "foreign_host"


async def test_over_tls_it_answers_to_any_host(tmp_path: Path) -> None:
    async with running(tmp_path) as agent:
        pin = pinned_context(ssl.DER_cert_to_PEM_cert(agent.app.certificate.der))
        async with httpx.AsyncClient(base_url=agent.tls_url, verify=pin) as client:
            response = await client.get("/health", headers={"host": "mac.example"})
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


def test_old_kv_on_disk_is_trimmed_to_what_the_models_here_may_have(tmp_path: Path) -> None:
    home = tmp_path / "kv"
    for name in ("a", "b"):
        tier = open_tier(home, LIMITS, name)
        for seed in range(3):
            tier.write(EntryKind.SPAN, ROOT, some_tokens(seed), some_tensors(seed))
        tier.flush(TIMEOUT_S)
        tier.close()
    sizes = [file.stat().st_size for file in home.glob("*/*.safetensors")]
    each_bytes = sum(sizes) // 2
    text = Settings(home=tmp_path, kv_disk_bytes=each_bytes)
    scripted = Settings(home=tmp_path, engine="scripted")
    trim_disk(scripted)
    assert len(list(home.glob("*/*.safetensors"))) == 6
    trim_disk(text)
    assert 1 <= len(list(home.glob("*/*.safetensors"))) <= 3
    trim_disk(replace(text, kv_disk_bytes=0))
    assert not list(home.glob("*/*.safetensors"))


async def test_the_disk_is_trimmed_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed: list[Settings] = []
    monkeypatch.setattr("node.app.trim_disk", trimmed.append)
    async with running(tmp_path):
        assert [each.home for each in trimmed] == [tmp_path]


def test_a_disk_that_cannot_be_trimmed_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_home: Path, _max_bytes: int) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr("node.engine.cache.disk.home.trim_home", fail)
    trim_disk(Settings(home=tmp_path))
    assert "cannot be deleted: not yours" in caplog.text


def test_pinned_models_that_do_not_fit_together_stop_the_start(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"models": [{"name": "a"}, {"name": "b"}]}')
    settings = Settings(home=tmp_path, engine="scripted", script=script, pins=("a", "b"))
    build_agent(replace(settings, memory_limit_bytes=4 * 1024**3))
    with pytest.raises(StartError, match=r"a 1\.6 GiB, b 1\.6 GiB, but the memory limit is 2\.0"):
        build_agent(replace(settings, memory_limit_bytes=2 * 1024**3))
