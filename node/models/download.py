"""Downloads a model's files. A file is hashed while it is written, and complete only if it has the
hash that its source names. A partial file is hashed first and then continued."""

import hashlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from node.errors import DownloadError
from node.models.saved_hashes import HASH_BYTES


@dataclass(frozen=True, slots=True)
class ExpectedFile:
    """A file to download, with the size and hash that it must have."""

    path: str
    """Path below the model's folder, with `/`."""
    size_bytes: int
    sha256: str = ""
    """SHA-256 in hexadecimal; empty if the source has none."""
    git_sha1: str = ""
    """SHA-1 of the file as a git blob, in hexadecimal, or empty."""

    def digest(self) -> "hashlib._Hash":
        """A fresh hash object."""
        if self.sha256 or not self.git_sha1:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size_bytes, usedforsecurity=False)

    def matches(self, digest: "hashlib._Hash", size_bytes: int) -> bool:
        expected = self.sha256 or self.git_sha1
        return size_bytes == self.size_bytes and expected in ("", digest.hexdigest())


class PartialFile:
    """A file that is being written, with the methods of a binary stream that downloaders use.
    Hashing takes longer than the rest, so it runs in parallel to the next piece."""

    def __init__(
        self, file: ExpectedFile, out: BinaryIO, on_bytes: Callable[[int], None], hasher: Executor
    ) -> None:
        """`on_bytes` gets the length of each piece, and may stop the download with an exception.
        `hasher` has one thread, for this file."""
        self._file = file
        self._out = out
        self._on_bytes = on_bytes
        self._hasher = hasher
        self._hashing: Future[None] | None = None
        """Hashing of the last piece."""
        self._digest = file.digest()
        self._size_bytes = 0

    @property
    def is_whole(self) -> bool:
        self._wait_for_hash()
        return self._file.matches(self._digest, self._size_bytes)

    def resume(self) -> None:
        """Counts and hashes the bytes that are there; a file that is too long is emptied first."""
        self._out.seek(0, 2)
        if self._out.tell() > self._file.size_bytes:
            self._out.truncate(0)
        self._out.seek(0)
        while piece := self._out.read(HASH_BYTES):
            self._count(piece)

    def write(self, piece: bytes | memoryview) -> int:
        """Writes a piece, which must not change until the next one has been written."""
        self._count(piece)
        return self._out.write(piece)

    def tell(self) -> int:
        return self._size_bytes

    def seek(self, at: int) -> int:
        """Goes back to the start only: hashed bytes cannot be removed from a hash in parts."""
        if at:
            raise OSError("A download can only go back to its start.")
        self._on_bytes(-self._size_bytes)
        self._size_bytes, self._digest = 0, self._file.digest()
        return 0

    def truncate(self) -> int:
        return self._out.truncate(self._size_bytes)

    def restart(self) -> None:
        self.seek(0)
        self.truncate()

    def _count(self, piece: bytes | memoryview) -> None:
        self._wait_for_hash()
        self._hashing = self._hasher.submit(self._digest.update, piece)
        self._size_bytes += len(piece)
        self._on_bytes(len(piece))

    def _wait_for_hash(self) -> None:
        if self._hashing is not None:
            self._hashing.result()


class FileSource(Protocol):
    """The origin of a model's files: the hub or a peer."""

    def fetch(self, file: ExpectedFile, out: PartialFile) -> None:
        """Writes the file from `out.tell()` on. Raises `DownloadError`."""

    def wrong(self, file: ExpectedFile) -> DownloadError:
        """The error for a file whose hash is not the one that the source names."""


class _Stopped(Exception):
    """Another file has failed."""


class Downloads:
    """Downloads the files of one model into its folder."""

    def __init__(self, folder: Path, source: FileSource, on_bytes: Callable[[int], None]) -> None:
        """`on_bytes` gets the length of each piece, also of those that were there, and the negative
        length of those that are discarded. It is called from any thread."""
        self._folder = folder
        self._source = source
        self._on_bytes = on_bytes
        self._stopped = threading.Event()
        self._lock = threading.Lock()

    def run(self, files: Sequence[ExpectedFile], at_once: int) -> None:
        """Downloads all files, so many at a time. Raises the first `DownloadError` or `OSError`."""
        threads = ThreadPoolExecutor(at_once)
        is_cut = True
        try:
            begun = [threads.submit(self._download_or_stop, file) for file in files]
            wait(begun, return_when=FIRST_EXCEPTION)
            is_cut = False
        finally:
            self._stopped.set()
            # After an interrupt, no thread is waited for that may wait for a silent hub.
            threads.shutdown(wait=not is_cut, cancel_futures=True)
        errors = [each.exception() for each in begun if not each.cancelled()]
        for error in errors:
            if error is not None and not isinstance(error, _Stopped):
                raise error

    def _download_or_stop(self, file: ExpectedFile) -> None:
        """A file that fails stops the others at once."""
        if self._stopped.is_set():
            raise _Stopped
        try:
            self._download(file)
        except BaseException:
            self._stopped.set()
            raise

    def _download(self, file: ExpectedFile) -> None:
        target = self._folder / file.path
        if target.resolve() != self._folder.resolve() / file.path:
            raise DownloadError(f"{target} leads out of the model's folder; remove it.")
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab+") as out, ThreadPoolExecutor(1) as hasher:
            partial = PartialFile(file, out, self._count, hasher)
            partial.resume()
            had_bytes = partial.tell()
            if had_bytes < file.size_bytes:
                self._source.fetch(file, partial)
            if not partial.is_whole and had_bytes:
                # The bytes that were there did not belong to this file.
                partial.restart()
                self._source.fetch(file, partial)
            if not partial.is_whole:
                partial.restart()
                raise self._source.wrong(file)

    def _count(self, piece_bytes: int) -> None:
        with self._lock:
            if self._stopped.is_set():
                raise _Stopped
            self._on_bytes(piece_bytes)
