"""The Hugging Face hub, as far as a pull needs it."""

from collections.abc import Callable
from typing import BinaryIO, TypeVar, cast

from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils._headers import build_hf_headers
from huggingface_hub.utils.tqdm import disable_progress_bars

from node.errors import DownloadError, NodeError, PullRefused
from node.models.download import ExpectedFile, FileSource, PartialFile
from node.models.pull import HubPlan
from node.protocol.lifecycle import PullCommand
from serving.unreached import Cause, cause_of

T = TypeVar("T")

_HOW = {
    Cause.NAME: "its name does not resolve; is this machine online?",
    Cause.CERTIFICATE: "its certificate is refused; does a proxy intercept the connection?",
    Cause.TLS: "it does not speak TLS; is a proxy in the way?",
    Cause.REFUSED: "nothing listens at its address.",
    Cause.NO_ROUTE: "there is no route to it; is this machine online?",
    Cause.SILENT: "it does not respond in time.",
}

_REFUSALS = (400, 401, 403, 404, 410)
"""Statuses that a retry does not change."""


class Hub:
    """The two calls of the hub that a pull needs."""

    def __init__(self) -> None:
        # One bar for all files replaces the library's own, one for each.
        disable_progress_bars()
        # Otherwise the library first fetches a list of programs that may run it, and tells the hub
        # which one does.
        constants.HF_HUB_DISABLE_TELEMETRY = True

    def plan(self, command: PullCommand) -> HubPlan:
        """The files to pull. Raises `DownloadError`."""
        return _call(lambda: self._plan(command), command)

    def source(self, command: PullCommand, commit: str) -> FileSource:
        """The files of that commit."""
        return _HubFiles(command, commit)

    def _plan(self, command: PullCommand) -> HubPlan:
        info = HfApi(token=command.token).model_info(
            command.repo_id, revision=command.revision, files_metadata=True
        )
        return HubPlan(info.sha or "", tuple(map(_expected_file, info.siblings or ())))


class _HubFiles:
    def __init__(self, command: PullCommand, commit: str) -> None:
        self._command = command
        self._commit = commit
        headers = build_hf_headers(token=command.token)
        # A compressed response cannot be continued at a byte of the file.
        self._headers = {**headers, "accept-encoding": "identity"}

    def fetch(self, file: ExpectedFile, out: PartialFile) -> None:
        """The same as `FileSource.fetch`."""
        _call(lambda: self._fetch(file, out), self._command)

    def wrong(self, file: ExpectedFile) -> DownloadError:
        return DownloadError(
            f"{file.path} of {self._command.repo_id} does not have the hash that the hub "
            "reports; pull again."
        )

    def _fetch(self, file: ExpectedFile, out: PartialFile) -> None:
        # `snapshot_download` would start each unfinished file from the beginning.
        http_get(
            hf_hub_url(self._command.repo_id, file.path, revision=self._commit),
            cast(BinaryIO, out),
            resume_size=out.tell(),
            headers=self._headers,
            expected_size=file.size_bytes,
        )


def _expected_file(sibling: RepoSibling) -> ExpectedFile:
    lfs = sibling.lfs
    return ExpectedFile(
        sibling.rfilename,
        sibling.size or 0,
        sha256=lfs.sha256 if lfs else "",
        git_sha1="" if lfs else sibling.blob_id or "",
    )


def _call(call: Callable[[], T], command: PullCommand) -> T:
    try:
        return call()
    except NodeError:
        raise
    except OSError as error:
        if isinstance(error, HfHubHTTPError):
            raise _failure(error, command) from error
        raise DownloadError(f"{command.repo_id} cannot be pulled: {error}.") from error
    # The hub's library passes on the errors of its HTTP library, whichever that is.
    except Exception as error:
        raise _failure(error, command) from error


def _failure(error: Exception, command: PullCommand) -> DownloadError:
    kind = PullRefused if _is_final(error) else DownloadError
    return kind(_sentence(error, command))


def _is_final(error: Exception) -> bool:
    """True if the hub refuses the request and would refuse it again."""
    match error:
        case HfHubHTTPError(response=response):
            return response.status_code in _REFUSALS
        case _:
            return isinstance(error, HFValidationError)


def _sentence(error: Exception, command: PullCommand) -> str:
    repo_id = command.repo_id
    match error:
        case GatedRepoError():
            return (
                f"{repo_id} is gated: accept its terms at https://huggingface.co/{repo_id} and "
                "give a token with --token or HF_TOKEN, or --hub-token of `router models pull`."
            )
        case RevisionNotFoundError():
            return f"{repo_id} has no revision {command.revision!r}."
        case RepositoryNotFoundError():
            return (
                f"The hub has no model {repo_id}, or it is private; for a private one give a "
                "token with --token or HF_TOKEN, or --hub-token of `router models pull`."
            )
        case HFValidationError():
            return f"{repo_id!r} is not a hub model's id, which is OWNER/NAME."
        case HfHubHTTPError(response=response) if response.status_code in (401, 403):
            return f"The hub refuses {repo_id}: the token is missing, wrong or lacks permission."
        case ValueError():
            return f"{repo_id} cannot be pulled: {error}"
        case HfHubHTTPError(response=response):
            status = response.status_code
            return f"The hub responds with status {status} for {repo_id}; try again later."
        case _:
            return f"{unreached(error)} {repo_id} is not complete."


def unreached(error: Exception) -> str:
    """A sentence on why there was no response."""
    how = _HOW.get(cause_of(error), "the connection broke.")
    return f"The hub cannot be reached: {how}"
