"""Pulls, with the hub played by the test."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from huggingface_hub.errors import (
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from node.downloads import DownloadError, Hub, Plan, PullRequest, pull
from node.errors import BadRequest
from node.store import ModelStore

FILES = {
    "config.json": b'{"max_position_embeddings": 64}',
    "model.safetensors": bytes(1000),
    "tokenizer.json": b"{}",
    "modeling_evil.py": b"raise SystemExit",
    "README.md": b"#",
}
REQUEST = PullRequest("org/tiny")


class ScriptedHub(Hub):
    """Writes files, fails, or loses one."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = FILES if files is None else files
        self.error: Exception | None = None
        self.download_error: Exception | None = None
        self.lost = ""
        self.commit = "c0ffee"
        self.downloads = 0

    def plan(self, request: PullRequest) -> Plan:
        if self.error is not None:
            raise self.error
        return Plan(self.commit, {path: len(data) for path, data in self.files.items()})

    def download(self, request: PullRequest, commit: str, folder: Path) -> None:
        self.downloads += 1
        assert commit == self.commit
        for path, data in self.files.items():
            if path != self.lost and path.endswith((".json", ".safetensors")):
                (folder / path).write_bytes(data)
        if self.download_error is not None:
            raise self.download_error


def quiet(_done: int, _total: int) -> None:
    pass


def test_pulls_a_model_and_keeps_its_name(tmp_path: Path) -> None:
    store, seen = ModelStore(tmp_path), []
    entry = pull(REQUEST, store, lambda done, total: seen.append((done, total)), ScriptedHub())
    assert (entry.name, entry.weight_bytes, entry.context_tokens) == ("org/tiny", 1000, 64)
    assert store.find("org/tiny") == entry
    assert not (entry.folder / ".partial").exists()
    assert seen[-1] == (1033, 1033)


def test_pulls_under_another_name(tmp_path: Path) -> None:
    entry = pull(PullRequest("org/tiny", name="mine"), ModelStore(tmp_path), quiet, ScriptedHub())
    assert (entry.name, entry.folder.name) == ("mine", "mine")
    with pytest.raises(BadRequest):
        pull(PullRequest("org/tiny", name="../x"), ModelStore(tmp_path), quiet, ScriptedHub())


def test_a_model_that_is_there_is_not_pulled_again(tmp_path: Path) -> None:
    hub, store = ScriptedHub(), ModelStore(tmp_path)
    pull(REQUEST, store, quiet, hub)
    pull(REQUEST, store, quiet, hub)
    assert hub.downloads == 1


def test_an_interrupted_pull_is_not_served_and_goes_on(tmp_path: Path) -> None:
    hub, store = ScriptedHub(), ModelStore(tmp_path)
    hub.download_error = ConnectionError("cut")
    with pytest.raises(DownloadError, match="cannot be pulled: cut"):
        pull(REQUEST, store, quiet, hub)
    assert store.list() == ()
    hub.download_error = None
    assert pull(REQUEST, store, quiet, hub).name == "org/tiny"


def test_a_file_that_did_not_arrive_is_noticed(tmp_path: Path) -> None:
    hub, store = ScriptedHub(), ModelStore(tmp_path)
    hub.lost = "model.safetensors"
    with pytest.raises(DownloadError, match="model.safetensors of org/tiny did not arrive"):
        pull(REQUEST, store, quiet, hub)
    assert store.list() == ()


def test_refuses_a_repository_without_safetensors(tmp_path: Path) -> None:
    hub = ScriptedHub({"config.json": b"{}", "model.gguf": bytes(9)})
    with pytest.raises(DownloadError, match="no safetensors"):
        pull(REQUEST, ModelStore(tmp_path), quiet, hub)
    assert list(tmp_path.iterdir()) == []


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_checks_the_disk_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10, 10, 0))
    hub = ScriptedHub()
    with pytest.raises(DownloadError, match="more on disk"):
        pull(REQUEST, ModelStore(tmp_path / "none" / "yet"), quiet, hub)
    assert hub.downloads == 0


class Response:
    """As much of a response as the hub's errors keep."""

    def __init__(self, status_code: int) -> None:
        self.status_code = status_code
        self.headers: dict[str, str] = {}
        self.request = None


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ("GatedRepoError", "is gated"),
        (RepositoryNotFoundError, "has no model org/tiny"),
        (RevisionNotFoundError, "no revision"),
        ("401", "refuses"),
        ("503", "answers 503"),
        (HFValidationError("x"), "not a hub model's id"),
        (RuntimeError("name resolution"), "cannot be reached"),
        (ConnectionError("refused"), "cannot be pulled: refused"),
    ],
)
def test_the_hubs_errors_become_sentences(tmp_path: Path, error: object, sentence: str) -> None:
    hub = ScriptedHub()
    hub.error = made(error)
    with pytest.raises(DownloadError, match=sentence):
        pull(REQUEST, ModelStore(tmp_path), quiet, hub)
    assert list(tmp_path.iterdir()) == []


def made(error: object) -> Exception:
    if isinstance(error, Exception):
        return error
    errors = __import__("huggingface_hub.errors", fromlist=["errors"])
    if isinstance(error, str) and error.isdecimal():
        kind, status = errors.HfHubHTTPError, int(error)
    else:
        kind, status = (getattr(errors, error) if isinstance(error, str) else error), 404
    result: Exception = kind("failed", response=Response(status))
    return result


def test_another_model_of_that_name_is_never_taken_for_this_one(tmp_path: Path) -> None:
    hub, store = ScriptedHub(), ModelStore(tmp_path)
    pull(PullRequest("org/tiny", name="taken"), store, quiet, hub)
    with pytest.raises(DownloadError, match="taken is there already, from org/tiny; pull other/m"):
        pull(PullRequest("other/m", name="taken"), store, quiet, hub)
    (tmp_path / "taken" / "mlx-fleet.json").unlink()
    with pytest.raises(DownloadError, match="from another source"):
        pull(PullRequest("org/tiny", name="taken"), store, quiet, hub)
    assert hub.downloads == 1


def test_another_revision_is_refused_and_the_same_is_not_pulled_again(tmp_path: Path) -> None:
    hub, store = ScriptedHub(), ModelStore(tmp_path)
    entry = pull(REQUEST, store, quiet, hub)
    assert pull(PullRequest("org/tiny", revision="main"), store, quiet, hub) == entry
    hub.commit = "decaf"
    assert pull(REQUEST, store, quiet, hub) == entry
    with pytest.raises(DownloadError, match="of another revision than v2"):
        pull(PullRequest("org/tiny", revision="v2"), store, quiet, hub)
    assert hub.downloads == 1


def test_an_interrupted_pull_is_not_gone_on_with_by_another_model(tmp_path: Path) -> None:
    hub, store = ScriptedHub(), ModelStore(tmp_path)
    hub.download_error = ConnectionError("cut")
    with pytest.raises(DownloadError, match="cut"):
        pull(PullRequest("org/tiny", name="taken"), store, quiet, hub)
    with pytest.raises(DownloadError, match="from org/tiny"):
        pull(PullRequest("other/m", name="taken"), store, quiet, hub)
