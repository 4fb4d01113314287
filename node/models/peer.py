"""Copies a model's files from a peer node. The peer is not trusted: a path that leads out of the
folder is refused, and all bytes are hashed."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import PurePosixPath
from socket import getaddrinfo
from urllib.parse import urlencode, urlsplit

from node.errors import DownloadError
from node.models.download import ExpectedFile, PartialFile
from node.models.manifest import is_model_file
from node.protocol.headers import HEADER_TICKET
from node.protocol.lifecycle import PATH_FILES, ManifestFile, Peer
from serving.terminal.error_text import error_text
from serving.tls.pinning import pinned_context
from serving.unreached import LOCAL_NETWORK, Cause, cause_of

SILENCE_S = 30.0
"""Seconds that a peer may send nothing."""
PIECE_BYTES = 4 * 1024 * 1024
"""Bytes received, hashed and written at a time, in two buffers that alternate: an HTTP client that
allocates its pieces takes longer for them than hashing does."""


class PeerFailed(DownloadError):
    """The peer did not deliver the model."""


def check_paths(files: tuple[ManifestFile, ...]) -> None:
    """Raises `DownloadError` if the manifest names anything but files of a model."""
    for each in files:
        parts = PurePosixPath(each.path).parts
        is_plain = "/".join(parts) == each.path and "\\" not in each.path and "\0" not in each.path
        if not is_plain or ".." in parts or each.path.startswith("/"):
            raise DownloadError(
                f"The peer names the file {each.path!r}, which is outside the model's folder."
            )
        if not is_model_file(each.path):
            raise DownloadError(
                f"The peer names the file {each.path!r}, which is no file of a model."
            )


class PeerSource:
    """A peer's files of one model."""

    def __init__(self, peer: Peer, model: str) -> None:
        """`model`: its name on the peer."""
        self._peer = peer
        self._model = model

    def files(self) -> list[ExpectedFile]:
        """The files of the manifest. Raises `DownloadError` if it is wrong."""
        check_paths(self._peer.share.files)
        return [
            ExpectedFile(file.path, file.size_bytes, file.sha256) for file in self._peer.share.files
        ]

    def fetch(self, file: ExpectedFile, out: PartialFile) -> None:
        """The same as `FileSource.fetch`. Raises `PeerFailed`."""
        # One buffer is hashed while the other is filled.
        filled, hashed = (memoryview(bytearray(PIECE_BYTES)) for _ in range(2))
        with self._response(file, out.tell()) as response:
            self._check(response, file, out.tell())
            while count := self._read(response, filled[: file.size_bytes - out.tell()]):
                out.write(filled[:count])
                filled, hashed = hashed, filled
        if out.tell() != file.size_bytes:
            raise self._stopped("it closed the connection")

    def wrong(self, file: ExpectedFile) -> PeerFailed:
        return PeerFailed(
            f"{file.path} arrived from {self._peer.url} with a wrong hash; pull again, or "
            "from another node with --from."
        )

    def _read(self, response: HTTPResponse, buffer: memoryview) -> int:
        try:
            return response.readinto(buffer)
        except (HTTPException, OSError) as error:
            raise self._stopped(error) from error

    @contextmanager
    def _response(self, file: ExpectedFile, at: int) -> Iterator[HTTPResponse]:
        """The peer's response for the file from that byte on. Each file has its own connection: the
        peer would close one that idles while a file is hashed."""
        parts = urlsplit(self._peer.url)
        connection = self._connection(parts.hostname or "", parts.port, parts.scheme)
        query = urlencode({"model": self._model, "path": file.path})
        headers = {HEADER_TICKET: self._peer.share.ticket, "range": f"bytes={at}-"}
        try:
            try:
                connection.request("GET", f"{parts.path}{PATH_FILES}?{query}", headers=headers)
                response = connection.getresponse()
            except (HTTPException, OSError) as error:
                raise self._stopped(error) from error
            yield response
        finally:
            connection.close()

    def _connection(self, host: str, port: int | None, scheme: str) -> HTTPConnection:
        if scheme != "https":
            return HTTPConnection(host, port, timeout=SILENCE_S)
        pem = self._peer.certificate
        try:
            pin = pinned_context(pem) if pem else None
        except ValueError as error:
            raise PeerFailed(f"The certificate of {self._peer.url} is not valid.") from error
        return HTTPSConnection(host, port, timeout=SILENCE_S, context=pin)

    def _check(self, response: HTTPResponse, file: ExpectedFile, at: int) -> None:
        """Raises `PeerFailed` unless the response is the rest of the file."""
        rest = f"bytes {at}-{file.size_bytes - 1}/{file.size_bytes}"
        content_range = response.headers.get("content-range", "")
        if response.status == 206 and content_range == rest:
            return
        if response.status in (206, 416):
            raise PeerFailed(
                f"{file.path} at {self._peer.url} does not have the size that the node "
                "reported; pull again."
            )
        if response.status == 403:
            raise PeerFailed(
                f"The node at {self._peer.url} no longer accepts the ticket for "
                f"{self._model}; the downloaded part is kept, and a router resumes the "
                "pull."
            )
        raise PeerFailed(
            f"The node at {self._peer.url} responded with status {response.status} for "
            f"{file.path}; pull again, or from another node with --from."
        )

    def _stopped(self, how: Exception | str) -> PeerFailed:
        words = how if isinstance(how, str) else error_text(how)
        return PeerFailed(
            f"The node at {self._peer.url} stopped delivering {self._model} ({words}); "
            "the downloaded part is kept, and a router resumes the "
            f"pull.{self._local_network(how)}"
        )

    def _local_network(self, how: Exception | str) -> str:
        """A sentence about macOS's local network permission if it may be the cause; empty
        otherwise."""
        if not isinstance(how, Exception):
            return ""
        host = urlsplit(self._peer.url).hostname or ""
        # This thread has just resolved the name, so the look-up is quick.
        with suppress(OSError):
            addresses = [str(found[4][0]) for found in getaddrinfo(host, None)]
            if cause_of(how, addresses) is Cause.LOCAL_NETWORK:
                return f" macOS may block node-agent's access to the local network. {LOCAL_NETWORK}"
        return ""
