"""Pulls models into the store, from a peer node or from the hub.

Only weights, configuration and tokenizer are pulled, never code. The marker of an unfinished folder
is its first file and is removed last, so that an interrupted pull never leaves a folder that looks
complete; the next pull resumes it.
"""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from node.errors import BadRequest, PullRefused
from node.models.download import Downloads, ExpectedFile, FileSource
from node.models.manifest import Manifests, is_model_file
from node.models.model_files import PARTIAL_MARKER, NotAModel, read_source, write_name
from node.models.peer import PeerFailed, PeerSource
from node.models.pull_lock import claimed, end_claim
from node.models.saved_hashes import sha256_of
from node.models.store import ModelEntry, ModelStore, folder_bytes, read_entry
from node.protocol.extra import INSTALL_EXTRA, WHERE
from node.protocol.lifecycle import ManifestFile, Peer, PullCommand

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
HUB_FILES = 4
"""Files downloaded at once. One more would compete with a copy from a peer for disk and network."""
FROM_HUB = "hub:"
FROM_PEER = "peer:"
"""Start of the marker of a copy from a peer; the model's own source follows."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HubPlan:
    """The files of one commit."""

    commit: str
    files: tuple[ExpectedFile, ...]


class HubSource(Protocol):
    """The part of the hub that a pull needs."""

    def plan(self, command: PullCommand) -> HubPlan:
        """The files to pull. Raises `DownloadError`."""

    def source(self, command: PullCommand, commit: str) -> FileSource:
        """The files of that commit."""


Progress = Callable[[int, int], None]
"""Called with (bytes here, bytes in all)."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A folder whose pull has not ended."""

    name: str
    repo_id: str
    """Repository on the hub; empty for a pull from elsewhere."""
    commit: str
    here_bytes: int
    is_from_peer: bool


def open_hub() -> HubSource:
    """The hub. Raises `DownloadError` if its library is not installed."""
    try:
        from node.models.huggingface import Hub
    except ImportError as error:
        raise PullRefused(
            f"The hub cannot be used ({error}); run {INSTALL_EXTRA} {WHERE}, or pull "
            "from a peer node."
        ) from None
    return Hub()


def pull(
    command: PullCommand,
    store: ModelStore,
    progress: Progress,
    hub: Callable[[], HubSource] = open_hub,
) -> ModelEntry:
    """The model, complete on disk; at once if it is there already. Raises `BadRequest` for a bad
    name and `DownloadError` with a sentence for everything else, also if there is another model of
    that name."""
    check_command(command, store)
    folder = store.folder_for(command.model)
    if _is_whole(folder):
        _check_source(read_source(folder), _source(command), command.model)
        # Without a revision, any revision is accepted and the hub need not be queried.
        if command.revision is None:
            return _complete(folder, command.model)
    elif command.peer is not None:
        try:
            return _from_peer(command, command.peer, store, progress)
        except PeerFailed as error:
            if not _same_at_hub(command, command.peer):
                raise
            logger.warning("%s The pull continues from the hub.", error.message)
            command = msgspec.structs.replace(
                command, revision=command.peer.share.source.rpartition("@")[2]
            )
    return _from_hub(command, store, progress, hub())


def check_command(command: PullCommand, store: ModelStore) -> None:
    """Raises `BadRequest` for an invalid name, and if the command names no source."""
    store.folder_for(command.model)
    if command.repo_id and (not _REPO.fullmatch(command.repo_id) or ".." in command.repo_id):
        raise BadRequest(f"{command.repo_id!r} is no repository of the hub: OWNER/NAME.")
    if command.peer is None and not command.repo_id:
        raise BadRequest("The pull names neither a repository of the hub nor a peer.")


def unfinished(folder: Path) -> list[Unfinished]:
    """The interrupted pulls in a store's folder. Raises `OSError`."""
    found = []
    for marker in sorted(folder.glob(f"*/{PARTIAL_MARKER}")):
        name = marker.parent.name.replace("--", "/", 1)
        source = marker.read_text()
        repo_id, _, commit = source.removeprefix(FROM_HUB).rpartition("@")
        is_hub = source.startswith(FROM_HUB)
        here_bytes = folder_bytes(marker.parent)
        is_from_peer = source.startswith(FROM_PEER)
        found.append(Unfinished(name, repo_id if is_hub else "", commit, here_bytes, is_from_peer))
    return found


def _is_whole(folder: Path) -> bool:
    return folder.exists() and not (folder / PARTIAL_MARKER).exists()


def _from_peer(
    command: PullCommand, peer: Peer, store: ModelStore, progress: Progress
) -> ModelEntry:
    folder, source = store.folder_for(command.model), peer.share.source
    peer_source = PeerSource(peer, command.model)
    expected = peer_source.files()
    _check_source(_begun_source(folder), source.partition("@")[0], command.model)
    with claimed(folder, _total_bytes(expected)):
        _mark(folder, f"{FROM_PEER}{source}")
        Downloads(folder, peer_source, _counter(expected, progress)).run(expected, at_once=1)
        entry = _finish(folder, command.model, source)
    Manifests(store.folder).save(entry, peer.share.files)
    return entry


def _from_hub(
    command: PullCommand, store: ModelStore, progress: Progress, hub: HubSource
) -> ModelEntry:
    folder = store.folder_for(command.model)
    plan = hub.plan(command)
    source = f"{_source(command)}{plan.commit}"
    if _is_whole(folder):
        return _of_revision(folder, source, command)
    expected = [file for file in plan.files if is_model_file(file.path)]
    paths = {file.path for file in expected}
    if not any(path.endswith(".safetensors") for path in paths) or "config.json" not in paths:
        raise PullRefused(
            f"{command.repo_id} has no safetensors weights with a config.json, so it is no MLX "
            "model; mlx-community on the hub has many."
        )
    _check_source(_begun_source(folder), _source(command), command.model)
    with claimed(folder, _total_bytes(expected)):
        _mark(folder, source)
        files = hub.source(command, plan.commit)
        Downloads(folder, files, _counter(expected, progress)).run(expected, at_once=HUB_FILES)
        entry = _finish(folder, command.model, source)
    Manifests(store.folder).save(entry, tuple(_manifest_file(folder, each) for each in expected))
    return entry


def _manifest_file(folder: Path, file: ExpectedFile) -> ManifestFile:
    """The file's hash, for peers and later checks. The hub names it for large files."""
    sha256 = file.sha256 or sha256_of(folder / file.path, lambda: False)
    return ManifestFile(file.path, file.size_bytes, sha256)


def _total_bytes(expected: Sequence[ExpectedFile]) -> int:
    return sum(file.size_bytes for file in expected)


def _counter(expected: Sequence[ExpectedFile], progress: Progress) -> Callable[[int], None]:
    """Adds up the lengths of pieces and passes the sum on to `progress`."""
    total_bytes = _total_bytes(expected)
    here_bytes = 0

    def count(piece_bytes: int) -> None:
        nonlocal here_bytes
        here_bytes += piece_bytes
        progress(here_bytes, total_bytes)

    return count


def _of_revision(folder: Path, source: str, command: PullCommand) -> ModelEntry:
    if read_source(folder) != source:
        raise PullRefused(
            f"{command.model} is there already, of another revision than {command.revision}; "
            f"pull under another name, or remove it with `node-agent rm {command.model}`."
        )
    return _complete(folder, command.model)


def _mark(folder: Path, source: str) -> None:
    (folder / PARTIAL_MARKER).write_text(source)


def _finish(folder: Path, name: str, source: str) -> ModelEntry:
    write_name(folder, name, source)
    end_claim(folder)
    (folder / PARTIAL_MARKER).unlink()
    return _complete(folder, name)


def _same_at_hub(command: PullCommand, peer: Peer) -> bool:
    """True if the hub has the model that the peer was to deliver."""
    return bool(command.repo_id) and peer.share.source.startswith(_source(command))


def _source(command: PullCommand) -> str:
    """The common start of the saved sources of all revisions; empty if any source is accepted."""
    return f"{FROM_HUB}{command.repo_id}@" if command.repo_id else ""


def _begun_source(folder: Path) -> str | None:
    """Source of an unfinished folder, or of a folder whose removal was interrupted; None if
    unknown."""
    marker = folder / PARTIAL_MARKER
    begun = marker.read_text() if marker.exists() else ""
    return begun.removeprefix(FROM_PEER) or read_source(folder) or None


def _check_source(source: str | None, expected: str, name: str) -> None:
    """Raises `DownloadError` if the folder is, or will be, a model whose source does not start with
    `expected`."""
    if source is None or source.startswith(expected):
        return
    origin = source.removeprefix(FROM_HUB).partition("@")[0] or "another source"
    what = expected.removeprefix(FROM_HUB).rstrip("@") or "this one"
    raise PullRefused(
        f"{name} is there already, from {origin}; pull {what} under another name, or "
        f"remove it with `node-agent rm {name}`."
    )


def _complete(folder: Path, name: str) -> ModelEntry:
    try:
        return read_entry(folder)
    except NotAModel as error:
        raise PullRefused(
            f"{error.message} Delete it first: `node-agent rm {name}`, or `router models rm {name} "
            "--node NODE`."
        ) from error
