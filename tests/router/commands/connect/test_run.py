"""`router connect` against a router that a function plays, in a home of its own."""

import json
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.commands.client import AdminClient, CommandFailed, RouterAccess
from router.commands.connect import run as command
from router.commands.connect.clients import CLIENTS
from router.commands.connect.run import ConnectOptions, key_name
from router.commands.connect.setup import Endpoint
from tests.router.commands.conftest import sending

URL = "http://127.0.0.1:8800"


class PlayedRouter:
    """Its models and its keys by name; a revoked key has None."""

    def __init__(self, *models: str) -> None:
        self.models = models
        self.keys: dict[str, str | None] = {}
        self.made = 0
        self.scopes: list[str] = []
        self.seen: set[str] = set()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        key = request.headers["authorization"].removeprefix("Bearer ")
        self.seen.add(key)
        if key not in ("k", *self.keys.values()):
            return httpx.Response(401, json={"error": {"message": "No."}})
        path = request.url.path
        if path == "/v1/models":
            data = [{"id": name, "context_window": 32768} for name in self.models]
            return httpx.Response(200, json={"data": data})
        if path == "/admin/aliases":
            return httpx.Response(200, json=[])
        assert path.startswith("/admin/keys")
        if path.endswith("/rotate"):
            name = json.loads(request.content)["key"]
            assert self.keys[name]
            return httpx.Response(200, json=self._make({"name": name, "scopes": ["inference"]}))
        if request.method == "POST":
            return httpx.Response(201, json=self._make(json.loads(request.content)))
        return httpx.Response(200, json=[_row(name, key) for name, key in self.keys.items()])

    def _make(self, body: dict[str, Any]) -> dict[str, Any]:
        self.made += 1
        self.scopes = body["scopes"]
        self.keys[body["name"]] = f"mlxf-{self.made:032x}"
        return {**_row(body["name"], "x"), "key": self.keys[body["name"]]}


def _row(name: str, key: str | None) -> dict[str, Any]:
    return {
        "id": name,
        "name": name,
        "prefix": "mlxf-",
        "scopes": ["inference"],
        "created_at_s": 1.0,
        "expires_at_s": None,
        "revoked_at_s": None if key else 2.0,
        "priority": "default",
        "isolated": False,
        "paid_budget": None,
        "paid_spent": 0.0,
    }


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    for client in CLIENTS.values():
        for file in client.setup(Endpoint("u", "k", "m", 1)).written:
            if file.variable:
                monkeypatch.delenv(file.variable, raising=False)
    return folder


@pytest.fixture
def router() -> PlayedRouter:
    return PlayedRouter("large")


def connect(
    router: PlayedRouter, client: str, *, write: bool = True, key: str = "", **given: Any
) -> None:
    values: dict[str, Any] = {
        "model": None,
        "url": None,
        "name": None,
        "rotate_key": False,
        "external": False,
    }
    admin = AdminClient(RouterAccess(URL, key="k"), sending(router))
    command.run(admin, ConnectOptions(client=client, key=key, write=write, **values | given))


def test_the_settings_are_printed_with_a_key_made_for_the_client(
    router: PlayedRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(router, "claude-code", write=False)
    told = capsys.readouterr()
    ((name, key),) = router.keys.items()
    assert name == key_name(CLIENTS["claude-code"]) and name.startswith("claude-code@")
    assert f"export ANTHROPIC_AUTH_TOKEN={key}\n" in told.out
    assert f"export ANTHROPIC_BASE_URL={URL}\n" in told.out
    assert "export ANTHROPIC_MODEL=large\n" in told.out
    assert name in told.err and "shown this once" in told.err
    assert router.scopes == ["inference"]


@pytest.mark.parametrize("client", CLIENTS)
def test_each_client_is_shown_its_address_key_and_model(
    router: PlayedRouter, client: str, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(router, client, write=False, url="http://mini.local:8800")
    told = capsys.readouterr().out
    (key,) = router.keys.values()
    assert "http://mini.local:8800" in told and str(key) in told
    assert ("large" in told) == (client != "open-webui")


def test_a_key_that_exists_is_used_and_none_is_made(
    router: PlayedRouter, capsys: pytest.CaptureFixture[str]
) -> None:
    router.keys["mine"] = "mlxf-mine"
    connect(router, "codex", write=False, key="mlxf-mine")
    assert "FLEET_API_KEY=mlxf-mine" in capsys.readouterr().out
    assert router.made == 0 and router.seen == {"mlxf-mine"}
    with pytest.raises(CommandFailed, match="refuses the key that was given"):
        connect(router, "codex", write=False, key="mlxf-wrong")


def test_a_key_may_be_for_third_party_servers_too(router: PlayedRouter) -> None:
    connect(router, "codex", write=False, external=True, name="mine")
    assert router.scopes == ["inference", "external"]
    assert list(router.keys) == ["mine"]


def test_a_name_that_a_key_has_is_not_used_twice_unasked(router: PlayedRouter) -> None:
    connect(router, "codex", write=False)
    with pytest.raises(CommandFailed, match="--rotate-key replaces its secret"):
        connect(router, "codex", write=False)
    (before,) = router.keys.values()
    connect(router, "codex", write=False, rotate_key=True)
    (after,) = router.keys.values()
    assert router.made == 2 and before != after
    with pytest.raises(CommandFailed, match="--external is for a new key"):
        connect(router, "codex", write=False, rotate_key=True, external=True)


@pytest.mark.parametrize(
    "client", [each for each in CLIENTS if each in "claude-code codex opencode continue aider llm"]
)
def test_written_settings_are_complete_private_and_stay_at_a_second_time(
    router: PlayedRouter, client: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(router, client)
    first = {path: path.read_text() for path in home.rglob("*") if path.is_file()}
    (key,) = router.keys.values()
    assert key is not None
    whole = "".join(first.values())
    assert key in whole and "large" in whole and URL in whole
    holders = [path for path, text in first.items() if key in text]
    assert [path.stat().st_mode & 0o777 for path in holders] == [0o600]
    assert key not in capsys.readouterr().out
    connect(router, client)
    assert {path: path.read_text() for path in home.rglob("*") if path.is_file()} == first
    assert router.made == 1
    assert "has these settings already" in capsys.readouterr().out


def test_what_is_in_a_file_stays_and_is_kept_beside_it(
    router: PlayedRouter, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home / ".codex" / "config.toml"
    file.parent.mkdir()
    before = '# mine\nmodel = "gpt"\n\n[tools]\nweb = true\n'
    file.write_text(before)
    file.chmod(0o640)
    connect(router, "codex")
    after = file.read_text()
    assert "# mine" in after and tomllib.loads(after)["tools"] == {"web": True}
    assert file.stat().st_mode & 0o777 == 0o640
    (kept,) = file.parent.glob("config.toml.before-*")
    assert kept.read_text() == before and kept.stat().st_mode & 0o777 == 0o600
    told = capsys.readouterr().out
    assert '-model = "gpt"' in told and '+model = "large"' in told and kept.name in told


def test_a_key_of_another_service_is_neither_shown_nor_sent(
    router: PlayedRouter, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home / ".claude" / "settings.json"
    file.parent.mkdir()
    file.write_text('{"env": {"ANTHROPIC_AUTH_TOKEN": "sk-ant-0123456789-secret"}}')
    connect(router, "claude-code")
    assert "secret" not in capsys.readouterr().out
    assert not any("secret" in key for key in router.seen)
    assert router.made == 1


def test_a_key_that_was_revoked_is_replaced(router: PlayedRouter, home: Path) -> None:
    connect(router, "codex")
    router.keys = dict.fromkeys(router.keys)
    connect(router, "codex")
    assert router.made == 2
    assert f"{2:032x}" in (home / ".codex" / ".env").read_text()


def test_a_file_that_cannot_be_changed_is_found_before_a_key_is_made(
    router: PlayedRouter, home: Path
) -> None:
    file = home / ".config" / "opencode" / "opencode.jsonc"
    file.parent.mkdir(parents=True)
    file.write_text('{\n  // mine\n  "theme": "x"\n}\n')
    with pytest.raises(CommandFailed, match=r"opencode\.jsonc cannot be changed.*Without --write"):
        connect(router, "opencode")
    assert router.made == 0 and "// mine" in file.read_text()


def test_a_link_stays_one(router: PlayedRouter, home: Path, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles"
    target.write_text("")
    link = home / ".codex" / "config.toml"
    link.parent.mkdir()
    link.symlink_to(target)
    connect(router, "codex")
    assert link.is_symlink() and 'model = "large"' in target.read_text()


def test_a_client_s_own_folder_is_used(
    router: PlayedRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "elsewhere"))
    connect(router, "codex")
    assert (tmp_path / "elsewhere" / "config.toml").exists()


@pytest.mark.parametrize("client", ["cline", "open-webui", "openai-python", "langchain"])
def test_a_client_without_files_is_not_written(router: PlayedRouter, client: str) -> None:
    with pytest.raises(CommandFailed, match="has no file for its settings"):
        connect(router, client)
    assert router.made == 0


def test_texts_for_a_shell_are_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    connect(PlayedRouter("a model; rm"), "claude-code", write=False)
    assert "export ANTHROPIC_MODEL='a model; rm'\n" in capsys.readouterr().out
