"""Files as they arrive, from a source that a test plays."""

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from node.errors import DownloadError
from node.models.download import Downloads, ExpectedFile, PartialFile

DATA = bytes(range(256)) * 100
GIT_SHA1 = hashlib.sha1(b"blob %d\0" % len(DATA) + DATA).hexdigest()
SHA256 = hashlib.sha256(DATA).hexdigest()


def whole(_file: ExpectedFile, out: PartialFile) -> None:
    out.write(DATA[out.tell() :])


@dataclass
class PlayedSource:
    """Gives what `gives` writes."""

    gives: Callable[[ExpectedFile, PartialFile], None] = whole
    fetched: list[tuple[str, int]] = field(default_factory=list)
    """Path, and from which byte on."""

    def fetch(self, file: ExpectedFile, out: PartialFile) -> None:
        self.fetched.append((file.path, out.tell()))
        self.gives(file, out)

    def wrong(self, file: ExpectedFile) -> DownloadError:
        return DownloadError(f"{file.path} is wrong.")


def arrive(folder: Path, source: PlayedSource, *files: ExpectedFile, at_once: int = 1) -> int:
    """Downloads the files; returns the number of bytes that were reported."""
    reported: list[int] = []
    Downloads(folder, source, reported.append).run(files, at_once)
    return sum(reported)


@pytest.mark.parametrize(
    "file",
    [
        ExpectedFile("a.json", len(DATA), sha256=SHA256),
        ExpectedFile("a.json", len(DATA), git_sha1=GIT_SHA1),
        ExpectedFile("a.json", len(DATA)),
    ],
)
def test_a_file_is_resumed_where_it_is_and_is_not_fetched_when_it_is_complete(
    tmp_path: Path, file: ExpectedFile
) -> None:
    (tmp_path / "a.json").write_bytes(DATA[:1000])
    source = PlayedSource()
    assert arrive(tmp_path, source, file) == len(DATA)
    assert arrive(tmp_path, source, file) == len(DATA)
    assert source.fetched == [("a.json", 1000)]
    assert (tmp_path / "a.json").read_bytes() == DATA


@pytest.mark.parametrize(
    "file",
    [
        ExpectedFile("a.json", len(DATA), sha256=SHA256),
        ExpectedFile("a.json", len(DATA), git_sha1=GIT_SHA1),
    ],
)
def test_what_was_another_file_is_begun_anew(tmp_path: Path, file: ExpectedFile) -> None:
    for other in (bytes(1000), bytes(len(DATA)), bytes(len(DATA) + 1)):
        (tmp_path / "a.json").write_bytes(other)
        assert arrive(tmp_path, PlayedSource(), file) == len(DATA)
        assert (tmp_path / "a.json").read_bytes() == DATA


def test_a_wrong_file_is_not_kept(tmp_path: Path) -> None:
    def other(_file: ExpectedFile, out: PartialFile) -> None:
        out.write(bytes(len(DATA) - out.tell()))

    for file in (ExpectedFile("a.json", len(DATA), SHA256), ExpectedFile("a.json", len(DATA) + 1)):
        with pytest.raises(DownloadError, match="a.json is wrong"):
            arrive(tmp_path, PlayedSource(other), file)
        assert (tmp_path / "a.json").read_bytes() == b""


def test_a_source_that_begins_anew_discards_its_bytes(tmp_path: Path) -> None:
    def anew(_file: ExpectedFile, out: PartialFile) -> None:
        out.write(b"from the begin")
        with pytest.raises(OSError, match="back to its start"):
            out.seek(5)
        assert (out.seek(0), out.truncate(), out.tell()) == (0, 0, 0)
        out.write(DATA)

    (tmp_path / "a.json").write_bytes(DATA[:10])
    assert arrive(tmp_path, PlayedSource(anew), ExpectedFile("a.json", len(DATA), SHA256)) == len(
        DATA
    )
    assert (tmp_path / "a.json").read_bytes() == DATA


def test_a_piece_is_hashed_beside_the_next_one_and_before_its_buffer_is_used_again(
    tmp_path: Path,
) -> None:
    file = ExpectedFile("a.json", len(DATA), sha256=SHA256)
    third = len(DATA) // 3
    pieces = [DATA[:third], DATA[third : 2 * third], DATA[2 * third :]]
    may_hash = threading.Event()
    buffers = bytearray(third + 9), bytearray(third + 9)
    with (tmp_path / "a.json").open("ab+") as out, ThreadPoolExecutor(1) as hasher:
        hasher.submit(may_hash.wait, 10)
        arriving = PartialFile(file, out, lambda _: None, hasher)
        for index, piece in enumerate(pieces):
            buffer = memoryview(buffers[index % 2])[: len(piece)]
            buffer[:] = piece
            # The first returns while nothing can be hashed.
            assert arriving.write(buffer) == len(piece)
            may_hash.set()
        assert arriving.is_whole
    assert (tmp_path / "a.json").read_bytes() == DATA


def test_the_first_failure_stops_the_other_files(tmp_path: Path) -> None:
    begun = threading.Barrier(2, timeout=10)
    ended = threading.Event()

    def give(file: ExpectedFile, out: PartialFile) -> None:
        begun.wait()
        if file.path == "bad.json":
            raise DownloadError("It was cut.")
        try:
            while True:
                out.write(b"x")
        finally:
            ended.set()

    source = PlayedSource(give)
    files = [ExpectedFile(f"{name}.json", 10**9) for name in ("good", "bad", "never")]
    with pytest.raises(DownloadError, match="It was cut"):
        arrive(tmp_path, source, *files, at_once=2)
    assert ended.is_set()
    assert sorted(path for path, _ in source.fetched) == ["bad.json", "good.json"]
