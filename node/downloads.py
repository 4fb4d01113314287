"""Pulls models from the Hugging Face hub into the store.

Weights, configuration and tokenizer only, never code. The marker of an unfinished folder is its
first file and goes last, so that whatever interrupts a pull, nothing half is ever served; the next
pull goes on where it stopped.
"""

import fnmatch
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from node.errors import NodeError
from node.store import (
    PARTIAL_MARKER,
    ModelEntry,
    ModelStore,
    NotAModel,
    read_entry,
    read_source,
    write_name,
)

PATTERNS = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.txt")
POLL_S = 0.25
SPARE_BYTES = 1024**3
"""Left free on the disk."""


class DownloadError(NodeError):
    """The model cannot be pulled."""

    code = "download_failed"


@dataclass(frozen=True, slots=True)
class PullRequest:
    """What to pull, and under which name."""

    repo_id: str
    name: str | None = None
    """The model's name on this node; default: the repository's."""
    token: str | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The files of one commit."""

    commit: str
    files: dict[str, int]
    """Path in the repository to size in bytes."""


class Hub:
    """The two calls of the hub that a pull needs."""

    def plan(self, request: PullRequest) -> Plan:
        info = HfApi(token=request.token).model_info(
            request.repo_id, revision=request.revision, files_metadata=True
        )
        files = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}
        return Plan(info.sha or "", files)

    def download(self, request: PullRequest, commit: str, folder: Path) -> None:
        snapshot_download(
            request.repo_id,
            revision=commit,
            local_dir=folder,
            token=request.token,
            allow_patterns=list(PATTERNS),
            max_workers=4,
        )


Progress = Callable[[int, int], None]
"""(bytes here, bytes in all)."""


def pull(request: PullRequest, store: ModelStore, progress: Progress, hub: Hub) -> ModelEntry:
    """The model, complete on disk; at once if it is there already. Raises `BadRequest` for a bad
    name and `DownloadError` with a sentence for everything else, another model of that name too."""
    name = request.name or request.repo_id
    folder = store.folder_for(name)
    is_there = folder.exists() and not (folder / PARTIAL_MARKER).exists()
    if is_there:
        _check_source(read_source(folder), request, name)
        # Without a revision, whichever is there will do, and the hub need not be asked.
        if request.revision is None:
            return _complete(folder)
    plan = _ask(lambda: hub.plan(request), request)
    source = f"{_source(request)}{plan.commit}"
    if is_there:
        if read_source(folder) != source:
            raise DownloadError(
                f"{name} is there already, of another revision than {request.revision}; pull under "
                f"another --name, or remove it with `node-agent rm {name}`."
            )
        return _complete(folder)
    _check_source(_begun_source(folder), request, name)
    wanted = {path: size for path, size in plan.files.items() if _is_wanted(path)}
    if not any(path.endswith(".safetensors") for path in wanted) or "config.json" not in wanted:
        raise DownloadError(
            f"{request.repo_id} has no safetensors weights with a config.json, so it is no MLX "
            "model; mlx-community on the hub has many."
        )
    _check_room(wanted, store.folder, folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PARTIAL_MARKER).write_text(source)
    total_bytes = sum(wanted.values())
    with _Watch(folder, total_bytes, progress):
        _ask(lambda: hub.download(request, plan.commit, folder), request)
    _check_files(folder, wanted, request.repo_id)
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    write_name(folder, name, source)
    (folder / PARTIAL_MARKER).unlink()
    progress(total_bytes, total_bytes)
    return _complete(folder)


def _source(request: PullRequest) -> str:
    """What the kept source of every revision begins with."""
    return f"hub:{request.repo_id}@"


def _begun_source(folder: Path) -> str | None:
    """What an unfinished folder is to hold, or held before its removal was cut short; None if
    nothing tells."""
    marker = folder / PARTIAL_MARKER
    begun = marker.read_text() if marker.exists() else ""
    return begun or read_source(folder) or None


def _check_source(source: str | None, request: PullRequest, name: str) -> None:
    """Raises `DownloadError` if what is there is, or will be, another repository's model."""
    if source is None or source.startswith(_source(request)):
        return
    origin = source.removeprefix("hub:").partition("@")[0] or "another source"
    raise DownloadError(
        f"{name} is there already, from {origin}; pull {request.repo_id} under another --name, or "
        f"remove it with `node-agent rm {name}`."
    )


class _Watch:
    """Reports the growth of a folder, from a thread, while its `with` block runs."""

    def __init__(self, folder: Path, total_bytes: int, progress: Progress) -> None:
        self._folder = folder
        self._total_bytes = total_bytes
        self._progress = progress
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(POLL_S):
            self._progress(min(_folder_bytes(self._folder), self._total_bytes), self._total_bytes)


def _is_wanted(path: str) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in PATTERNS)


def _ask(call: Callable[[], Any], request: PullRequest) -> Any:
    try:
        return call()
    except OSError as error:
        if isinstance(error, HfHubHTTPError):
            raise DownloadError(_sentence(error, request)) from error
        raise DownloadError(f"{request.repo_id} cannot be pulled: {error}.") from error
    # The hub's library lets the errors of its HTTP library through, whichever that is.
    except Exception as error:
        raise DownloadError(_sentence(error, request)) from error


def _sentence(error: Exception, request: PullRequest) -> str:
    repo_id = request.repo_id
    match error:
        case GatedRepoError():
            return (
                f"{repo_id} is gated: accept its terms at https://huggingface.co/{repo_id} and "
                "give a token with --token or HF_TOKEN."
            )
        case RevisionNotFoundError():
            return f"{repo_id} has no revision {request.revision!r}."
        case RepositoryNotFoundError():
            return (
                f"The hub has no model {repo_id}, or it is private; for a private one give a "
                "token with --token or HF_TOKEN."
            )
        case HFValidationError():
            return f"{repo_id!r} is not a hub model's id, which is OWNER/NAME."
        case HfHubHTTPError(response=response) if response.status_code in (401, 403):
            return f"The hub refuses {repo_id}: the token is missing, wrong or lacks the right."
        case HfHubHTTPError(response=response):
            return f"The hub answers {response.status_code} for {repo_id}; try again later."
        case _:
            return f"The hub cannot be reached ({type(error).__name__}); {repo_id} is not complete."


def _check_room(wanted: dict[str, int], root: Path, folder: Path) -> None:
    here = next(path for path in (root, *root.parents) if path.exists())
    needed_bytes = sum(wanted.values()) - _folder_bytes(folder)
    free_bytes = shutil.disk_usage(here).free
    if needed_bytes + SPARE_BYTES > free_bytes:
        raise DownloadError(
            f"The model needs {needed_bytes / 1e9:.1f} GB more on disk, but {free_bytes / 1e9:.1f} "
            f"GB are free at {here}; remove a model with `node-agent rm`."
        )


def _check_files(folder: Path, wanted: dict[str, int], repo_id: str) -> None:
    # The hub's library takes a folder that is there for complete when the network fails.
    for path, size in wanted.items():
        file = folder / path
        if not file.is_file() or (size and file.stat().st_size != size):
            raise DownloadError(f"{path} of {repo_id} did not arrive; pull again to go on.")


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                total += path.stat().st_blocks * 512
        except OSError:
            # A download's temporary file has got its final name meanwhile.
            continue
    return total


def _complete(folder: Path) -> ModelEntry:
    try:
        return read_entry(folder)
    except NotAModel as error:
        raise DownloadError(error.message) from error
