"""The SQLite index of the disk tier: one row for each complete file.

Write-ahead log with synchronous NORMAL: a commit then waits for no fsync. A killed process loses
nothing by it. A power failure may undo the last commits; a file without a row, or a row without a
file, is repaired at the next start, so FULL would only slow each write down.
"""

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from node.engine.cache.disk.files import FILE_MODE

INDEX_NAME = "index.sqlite"
INDEX_FILES = (INDEX_NAME, f"{INDEX_NAME}-wal", f"{INDEX_NAME}-shm")
_VERSION = 1
_SCHEMA = """
CREATE TABLE file (
  file INTEGER PRIMARY KEY AUTOINCREMENT,
  kind TEXT NOT NULL,
  parent_file INTEGER NOT NULL,
  parent_tokens INTEGER NOT NULL,
  tokens BLOB NOT NULL,
  nbytes INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  used INTEGER NOT NULL
) STRICT;
CREATE TABLE written (day INTEGER PRIMARY KEY, nbytes INTEGER NOT NULL) STRICT;
"""
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}


class CorruptIndex(Exception):
    """The index is damaged and cannot be used."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """One file; the numbers are those of `DiskEntry`."""

    file: int
    kind: str
    parent_file: int
    parent_tokens: int
    tokens: bytes
    """int32 each."""
    nbytes: int
    checksum: int
    used: int


class Index:
    """Used by one thread at a time. All methods but `open` raise `sqlite3.Error`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @classmethod
    def open(cls, folder: Path) -> "Index":
        """Opens the index, and creates it if there is none. Raises `CorruptIndex`, and `OSError`
        and `sqlite3.Error` if the disk fails."""
        path = folder / INDEX_NAME
        # SQLite would create it world-readable, and gives its other files the same mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE))
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection)
        except sqlite3.DatabaseError as error:
            connection.close()
            if error.sqlite_errorcode & 0xFF in _DAMAGE:
                raise CorruptIndex(str(error)) from error
            raise
        except CorruptIndex:
            connection.close()
            raise
        return cls(connection)

    def rows(self) -> list[FileRow]:
        """Returns all rows, parents first."""
        with closing(self._connection.execute("SELECT * FROM file ORDER BY file")) as cursor:
            return [FileRow(*values) for values in cursor]

    def last_file(self) -> int:
        """Returns the highest number that a file ever had."""
        found = self._one("SELECT seq FROM sqlite_sequence WHERE name = 'file'")
        return found[0] if found else 0

    def last_day(self) -> tuple[int, int]:
        """Returns the last day with writes (days since 1970), and the bytes written on it."""
        found = self._one("SELECT day, nbytes FROM written ORDER BY day DESC LIMIT 1")
        return (found[0], found[1]) if found else (0, 0)

    def add(self, row: FileRow, used: Mapping[int, int], day: int, day_bytes: int) -> None:
        """Adds a file, updates last uses as `touch` does, and sets the bytes written on that
        day."""
        with self._transaction():
            self._connection.execute(
                "INSERT INTO file VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    row.file,
                    row.kind,
                    row.parent_file,
                    row.parent_tokens,
                    row.tokens,
                    row.nbytes,
                    row.checksum,
                    row.used,
                ),
            )
            self._use(used)
            self._connection.execute("DELETE FROM written WHERE day <> ?", (day,))
            self._connection.execute(
                "INSERT OR REPLACE INTO written VALUES (?, ?)", (day, day_bytes)
            )

    def touch(self, used: Mapping[int, int]) -> None:
        """Sets `used` by file."""
        if used:
            with self._transaction():
                self._use(used)

    def delete(self, files: Sequence[int]) -> None:
        if files:
            with self._transaction():
                self._connection.executemany(
                    "DELETE FROM file WHERE file = ?", [(file,) for file in files]
                )

    def clear(self) -> None:
        """Deletes all rows, and erases their contents from the disk."""
        self._connection.execute("DELETE FROM file")
        self._connection.execute("VACUUM")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()

    def close(self) -> None:
        self._connection.close()

    def _one(self, query: str) -> tuple[int, ...] | None:
        with closing(self._connection.execute(query)) as cursor:
            found: tuple[int, ...] | None = cursor.fetchone()
            return found

    def _use(self, used: Mapping[int, int]) -> None:
        self._connection.executemany(
            "UPDATE file SET used = ? WHERE file = ?",
            [(moment, file) for file, moment in used.items()],
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


def _prepare(connection: sqlite3.Connection) -> None:
    """Prepares a new or an existing database. Raises `sqlite3.DatabaseError` and `CorruptIndex`."""
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL"):
        connection.execute(f"PRAGMA {pragma}").close()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        # One transaction: a killed process leaves a whole schema or none.
        connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
    elif version != _VERSION:
        raise CorruptIndex(f"The index has version {version}.")
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise CorruptIndex(verdict)
