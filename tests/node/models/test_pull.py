"""Pulls, with the hub played by the test."""

import shutil
import socket
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from filelock import FileLock
from huggingface_hub.errors import (
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from node.errors import BadRequest, DownloadError
from node.models import pull_lock
from node.models.download import ExpectedFile, FileSource, PartialFile
from node.models.huggingface import Hub
from node.models.manifest import Manifests
from node.models.model_files import read_source
from node.models.pull import HubPlan, check_command, pull, unfinished
from node.models.store import ModelStore
from node.protocol.lifecycle import Peer, PullCommand
from tests.node.model_folders import manifest, safetensors, share
from tests.node.models.test_peer import PlayedPeer, playing

FILES = {
    "config.json": b'{"max_position_embeddings": 64}',
    "model.safetensors": bytes(1000),
    "tokenizer.json": b"{}",
    "modeling_evil.py": b"raise SystemExit",
    "README.md": b"#",
}
REQUEST = PullCommand("org/tiny", "org/tiny")


class ScriptedHub(Hub):
    """Writes files, fails, or loses one."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        super().__init__()
        self.files = FILES if files is None else files
        self.error: Exception | None = None
        self.download_error: DownloadError | None = None
        self.lost = ""
        self.commit = "c0ffee"
        self.downloads = 0
        self.planned: list[PullCommand] = []

    def _plan(self, command: PullCommand) -> HubPlan:
        self.planned.append(command)
        if self.error is not None:
            raise self.error
        files = tuple(ExpectedFile(path, len(data)) for path, data in self.files.items())
        return HubPlan(self.commit, files)

    def source(self, command: PullCommand, commit: str) -> FileSource:
        self.downloads += 1
        assert commit == self.commit
        return _Files(self)


class _Files:
    def __init__(self, hub: ScriptedHub) -> None:
        self._hub = hub

    def fetch(self, file: ExpectedFile, out: PartialFile) -> None:
        assert file.path.endswith((".json", ".safetensors"))
        if file.path != self._hub.lost:
            out.write(self._hub.files[file.path][out.tell() :])
        if self._hub.download_error is not None:
            raise self._hub.download_error

    def wrong(self, file: ExpectedFile) -> DownloadError:
        return DownloadError(f"{file.path} is wrong.")


def quiet(_done: int, _total: int) -> None:
    pass


def test_pulls_a_model_and_keeps_its_name(tmp_path: Path) -> None:
    store, seen = ModelStore(tmp_path), []
    entry = pull(REQUEST, store, lambda done, total: seen.append((done, total)), ScriptedHub)
    assert (entry.name, entry.weight_bytes, entry.context_tokens) == ("org/tiny", 1000, 64)
    assert store.find("org/tiny") == entry
    assert not (entry.folder / ".partial").exists()
    assert seen[-1] == (1033, 1033)


def test_pulls_under_another_name(tmp_path: Path) -> None:
    entry = pull(
        PullCommand("mine", "org/tiny"), ModelStore(tmp_path), quiet, lambda: ScriptedHub()
    )
    assert (entry.name, entry.folder.name) == ("mine", "mine")
    with pytest.raises(BadRequest):
        pull(PullCommand("../x", "org/tiny"), ModelStore(tmp_path), quiet, ScriptedHub)


def test_a_model_that_is_there_is_not_pulled_again(tmp_path: Path) -> None:
    hub, store = ScriptedHub(), ModelStore(tmp_path)
    pull(REQUEST, store, quiet, lambda: hub)
    pull(REQUEST, store, quiet, lambda: hub)
    assert hub.downloads == 1


def test_an_interrupted_pull_is_not_served_and_is_resumed(tmp_path: Path) -> None:
    hub, store = ScriptedHub(), ModelStore(tmp_path)
    hub.download_error = DownloadError("It was cut.")
    with pytest.raises(DownloadError, match="cut"):
        pull(REQUEST, store, quiet, lambda: hub)
    assert store.list() == ()
    hub.download_error = None
    assert pull(REQUEST, store, quiet, lambda: hub).name == "org/tiny"


def test_a_file_that_did_not_arrive_is_noticed(tmp_path: Path) -> None:
    hub, store = ScriptedHub(), ModelStore(tmp_path)
    hub.lost = "model.safetensors"
    with pytest.raises(DownloadError, match="model.safetensors is wrong"):
        pull(REQUEST, store, quiet, lambda: hub)
    assert store.list() == ()


def test_refuses_a_repository_without_safetensors(tmp_path: Path) -> None:
    hub = ScriptedHub({"config.json": b"{}", "model.gguf": bytes(9)})
    with pytest.raises(DownloadError, match="no safetensors"):
        pull(REQUEST, ModelStore(tmp_path), quiet, lambda: hub)
    assert list(tmp_path.iterdir()) == []


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_checks_the_disk_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10, 10, 0))
    hub = ScriptedHub()
    with pytest.raises(DownloadError, match="more on disk"):
        pull(REQUEST, ModelStore(tmp_path / "none" / "yet"), quiet, lambda: hub)
    assert hub.downloads == 0


class Response:
    """A response with the attributes that the hub's errors keep."""

    def __init__(self, status_code: int) -> None:
        self.status_code = status_code
        self.headers: dict[str, str] = {}
        self.request = None


def caused_by(cause: Exception) -> Exception:
    """Wraps an error of a socket as an HTTP library does."""
    error = RuntimeError()
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "sentence", "is_final"),
    [
        ("GatedRepoError", "is gated", True),
        (RepositoryNotFoundError, "has no model org/tiny", True),
        (RevisionNotFoundError, "no revision", True),
        ("401", "refuses", True),
        ("429", "responds with status 429", False),
        ("503", "responds with status 503", False),
        (HFValidationError("x"), "not a hub model's id", True),
        (ValueError("no JSON"), "cannot be pulled: no JSON", False),
        (RuntimeError("name resolution"), "cannot be reached: the connection broke. org/", False),
        (caused_by(socket.gaierror("x")), "cannot be reached: its name does not resolve", False),
        (caused_by(TimeoutError()), "reached: it does not respond in time. org/", False),
        (ConnectionError("refused"), "cannot be pulled: refused", False),
    ],
)
def test_the_hubs_errors_become_messages(
    tmp_path: Path, error: object, sentence: str, *, is_final: bool
) -> None:
    hub = ScriptedHub()
    hub.error = made(error)
    with pytest.raises(DownloadError, match=sentence) as caught:
        pull(REQUEST, ModelStore(tmp_path), quiet, lambda: hub)
    assert caught.value.is_final == is_final
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


def test_another_model_of_that_name_is_never_used_for_this_one(tmp_path: Path) -> None:
    hub, store = ScriptedHub(), ModelStore(tmp_path)
    pull(PullCommand("taken", "org/tiny"), store, quiet, lambda: hub)
    with pytest.raises(DownloadError, match="taken is there already, from org/tiny; pull other/m"):
        pull(PullCommand("taken", "other/m"), store, quiet, lambda: hub)
    (tmp_path / "taken" / "mlx-fleet.json").unlink()
    with pytest.raises(DownloadError, match="from another source"):
        pull(PullCommand("taken", "org/tiny"), store, quiet, lambda: hub)
    assert hub.downloads == 1


def test_another_revision_is_refused_and_the_same_is_not_pulled_again(tmp_path: Path) -> None:
    hub, store = ScriptedHub(), ModelStore(tmp_path)
    entry = pull(REQUEST, store, quiet, lambda: hub)
    assert pull(PullCommand("org/tiny", "org/tiny", "main"), store, quiet, lambda: hub) == entry
    hub.commit = "decaf"
    assert pull(REQUEST, store, quiet, lambda: hub) == entry
    with pytest.raises(DownloadError, match="of another revision than v2"):
        pull(PullCommand("org/tiny", "org/tiny", "v2"), store, quiet, lambda: hub)
    assert hub.downloads == 1


def test_an_interrupted_pull_is_not_resumed_by_another_model(tmp_path: Path) -> None:
    hub, store = ScriptedHub(), ModelStore(tmp_path)
    hub.download_error = DownloadError("It was cut.")
    with pytest.raises(DownloadError, match="cut"):
        pull(PullCommand("taken", "org/tiny"), store, quiet, lambda: hub)
    with pytest.raises(DownloadError, match="from org/tiny"):
        pull(PullCommand("taken", "other/m"), store, quiet, lambda: hub)


PEER_FILES = {"config.json": FILES["config.json"], "model.safetensors": safetensors(bytes(9000))}


def from_peer(
    peer: PlayedPeer, source: str = "hub:org/tiny@c0ffee", repo_id: str = ""
) -> PullCommand:
    return PullCommand("org/tiny", repo_id, peer=Peer(peer.url, share(PEER_FILES, source)))


def no_hub() -> Hub:
    raise AssertionError("The hub was used.")


def test_a_peer_is_used_before_the_hub_and_its_hashes_are_kept(tmp_path: Path) -> None:
    store, seen = ModelStore(tmp_path), []
    with playing(PlayedPeer(files=dict(PEER_FILES))) as peer:
        command = from_peer(peer, repo_id="org/tiny")
        entry = pull(command, store, lambda done, total: seen.append((done, total)), no_hub)
        assert pull(command, store, quiet, no_hub) == entry
    assert store.find("org/tiny") == entry
    assert read_source(entry.folder) == "hub:org/tiny@c0ffee"
    total_bytes = sum(map(len, PEER_FILES.values()))
    assert seen[-1] == (total_bytes, total_bytes)
    # Nothing is read again.
    assert Manifests(tmp_path).of(entry, lambda: True) == manifest(PEER_FILES)


def test_the_hub_resumes_where_a_peer_fails(tmp_path: Path) -> None:
    hub, store = ScriptedHub(PEER_FILES), ModelStore(tmp_path)
    with playing(PlayedPeer(files=dict(PEER_FILES), cut_at=5000)) as peer:
        entry = pull(from_peer(peer, repo_id="org/tiny"), store, quiet, lambda: hub)
    assert (hub.downloads, entry.name) == (1, "org/tiny")
    # The very commit that the peer has.
    assert hub.planned[0].revision == "c0ffee"


@pytest.mark.parametrize(
    ("source", "repo_id"),
    [("hub:org/tiny@c0ffee", ""), ("gguf:tiny.gguf", "org/tiny"), ("", "org/tiny")],
)
def test_the_hub_does_not_go_on_with_what_it_may_not_have(
    tmp_path: Path, source: str, repo_id: str
) -> None:
    store = ModelStore(tmp_path)
    with playing(PlayedPeer(files=dict(PEER_FILES), cut_at=5000)) as peer:
        with pytest.raises(DownloadError, match="resumes the pull"):
            pull(from_peer(peer, source, repo_id), store, quiet, no_hub)
        assert store.list() == ()
        (begun,) = unfinished(tmp_path)
        assert (begun.name, begun.repo_id) == ("org/tiny", "")
        assert begun.here_bytes > 0
        peer.cut_at = None
        assert pull(from_peer(peer, source, repo_id), store, quiet, no_hub).name == "org/tiny"
    assert unfinished(tmp_path) == []


def test_a_copy_from_a_peer_is_resumed_from_nothing_else(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    with playing(PlayedPeer(files=dict(PEER_FILES), cut_at=5000)) as peer:
        with pytest.raises(DownloadError):
            pull(from_peer(peer, "gguf:tiny.gguf"), store, quiet, no_hub)
        with pytest.raises(DownloadError, match="is there already, from gguf:tiny.gguf"):
            pull(from_peer(peer), store, quiet, no_hub)
    with pytest.raises(DownloadError, match="from gguf:tiny.gguf"):
        pull(REQUEST, store, quiet, ScriptedHub)


def test_a_peer_gets_no_request_where_the_disk_is_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10, 10, 0))
    peer, store = PlayedPeer("http://127.0.0.1:9"), ModelStore(tmp_path)
    with pytest.raises(DownloadError, match="more on disk"):
        pull(from_peer(peer), store, quiet, no_hub)


def test_the_hubs_unfinished_pulls_report_their_commit(tmp_path: Path) -> None:
    hub, store = ScriptedHub(), ModelStore(tmp_path)
    hub.download_error = DownloadError("It was cut.")
    with pytest.raises(DownloadError):
        pull(PullCommand("mine", "org/tiny"), store, quiet, lambda: hub)
    (begun,) = unfinished(tmp_path)
    assert (begun.name, begun.repo_id, begun.commit) == ("mine", "org/tiny", "c0ffee")


def test_without_the_hubs_library_the_message_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "node.models.huggingface", None)
    with pytest.raises(DownloadError, match=r"run pip install '.\[node\]' in your clone"):
        pull(REQUEST, ModelStore(tmp_path), quiet)


def test_a_pull_without_a_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="neither"):
        pull(PullCommand("org/tiny"), ModelStore(tmp_path), quiet, no_hub)


def test_two_processes_do_not_pull_into_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_lock, "LOCK_S", 0.0)
    folder, store = tmp_path / "org--tiny", ModelStore(tmp_path)
    folder.mkdir()
    (folder / ".partial").touch()
    with FileLock(folder / pull_lock.LOCK_FILE):
        with pytest.raises(DownloadError, match="Another process pulls into"):
            pull(REQUEST, store, quiet, ScriptedHub)
        with pytest.raises(DownloadError, match="Another process pulls into"):
            pull(from_peer(PlayedPeer("http://127.0.0.1:9")), store, quiet, no_hub)
    assert pull(REQUEST, store, quiet, ScriptedHub).name == "org/tiny"
    assert not (folder / pull_lock.LOCK_FILE).exists()


@pytest.mark.parametrize(
    "repo", ["../../etc/passwd", "/etc/passwd", "a/b/c", "a/..", "a b", "a\nb"]
)
def test_what_is_no_repository_is_refused_before_any_request(tmp_path: Path, repo: str) -> None:
    with pytest.raises(BadRequest, match="no repository of the hub"):
        check_command(PullCommand("tiny", repo), ModelStore(tmp_path))
    with pytest.raises(BadRequest):
        check_command(PullCommand(repo, "org/tiny"), ModelStore(tmp_path))


def test_a_repository_may_have_hyphens_and_no_owner(tmp_path: Path) -> None:
    for repo in ("gpt2", "mlx-community/Qwen3-8B-4bit", "a/b--c", "a_b/c.d"):
        check_command(PullCommand("tiny", repo), ModelStore(tmp_path))
