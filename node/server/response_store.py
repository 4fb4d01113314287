"""Stores responses that clients may refer to later, in a bounded file on the node's disk.

Each response has its own turn only and names the previous one. The least recently used responses
are evicted for new ones; a request that continues a response uses the whole chain before it too.
"""

import asyncio
import logging
import sqlite3
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from node.dialects.responses.input import History
from node.dialects.responses.items import Item
from node.dialects.responses.response import StoredResponse
from node.errors import ResponseStoreFault, UnknownPreviousResponse
from node.protocol.chain.prefix import Head
from node.protocol.ids import response_of

FILE_NAME = "responses.sqlite3"
FILE_MODE = 0o600
FOLDER_MODE = 0o700
VERSION = 3

logger = logging.getLogger(__name__)

_ROW_BYTES = 512
"""Bytes that a row takes besides its two texts, roughly."""
_HASHES = 1 << 64
_SUFFIXES = ("", "-wal", "-shm")
_WAL_BYTES = 4 << 20
_SCHEMA = f"""
PRAGMA auto_vacuum = INCREMENTAL;
CREATE TABLE responses (
    id TEXT PRIMARY KEY,
    origin TEXT NOT NULL,
    model TEXT NOT NULL,
    created_s INTEGER NOT NULL,
    previous_id TEXT,
    bytes INTEGER NOT NULL,
    used INTEGER NOT NULL,
    chain_head INTEGER NOT NULL DEFAULT 0,
    chain_front INTEGER NOT NULL DEFAULT 0,
    chain_bytes INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX responses_used ON responses (used, bytes);
-- Apart from the rest, which is written anew at each use.
CREATE TABLE texts (
    id TEXT PRIMARY KEY,
    body BLOB NOT NULL,
    items BLOB NOT NULL
);
CREATE TRIGGER texts_go AFTER DELETE ON responses BEGIN
    DELETE FROM texts WHERE id = old.id;
END;
PRAGMA user_version = {VERSION};
"""
_COLUMNS = (
    "id, origin, model, created_s, previous_id, bytes, used, chain_head, chain_front, chain_bytes"
)
_FROM_VERSION_1 = """
BEGIN IMMEDIATE;
ALTER TABLE responses ADD COLUMN chain_head INTEGER NOT NULL DEFAULT 0;
PRAGMA user_version = 2;
COMMIT;
"""
# A chain head is useless without the chain's front.
_FROM_VERSION_2 = f"""
BEGIN IMMEDIATE;
ALTER TABLE responses ADD COLUMN chain_front INTEGER NOT NULL DEFAULT 0;
ALTER TABLE responses ADD COLUMN chain_bytes INTEGER NOT NULL DEFAULT 0;
UPDATE responses SET chain_head = 0;
PRAGMA user_version = {VERSION};
COMMIT;
"""
_NO_HEAD = Head(0, 0, 0)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreLimits:
    max_bytes: int = 512 << 20
    """Most bytes of responses, compressed; the file is a little larger."""
    max_responses: int = 20_000


class ResponseFile:
    """The store itself. Its calls block and all belong to one thread. `origin` names the owner of a
    response; no other owner finds it. A damaged file is moved aside with a warning, and the store
    begins empty."""

    def __init__(self, folder: Path, limits: StoreLimits) -> None:
        self.path = folder / FILE_NAME
        self._limits = limits
        self._db: sqlite3.Connection | None = None

    def put(self, response: StoredResponse, origin: str, head: Head | None = None) -> bool:
        """Stores a response and evicts others over the limits; returns False if it is too large for
        them. `head` is that of the prefix hash chain up to the response's end; None if unknown.
        Raises `ResponseStoreFault`, also if the id is already stored."""
        body = zlib.compress(response.body, 1)
        items = zlib.compress(msgspec.json.encode(response.items), 1)
        nbytes = len(body) + len(items) + _ROW_BYTES
        if nbytes > self._limits.max_bytes:
            logger.warning("Response %s is too large to be stored.", response.response_id)
            return False
        facts = (response.response_id, origin, response.model, response.created_s)
        row = (*facts, response.previous_id, nbytes)
        texts = (response.response_id, body, items)

        def put(db: sqlite3.Connection) -> None:
            use = _next_use(db)
            hash_, front, size_bytes = head or _NO_HEAD
            whole = (*row, use, _signed(hash_), _signed(front), size_bytes)
            places = ", ".join("?" * len(whole))
            db.execute(f"INSERT INTO responses ({_COLUMNS}) VALUES ({places})", whole)
            db.execute("INSERT INTO texts VALUES (?, ?, ?)", texts)
            self._evict(db)

        self._run(put)
        return True

    def get(self, response_id: str, origin: str) -> StoredResponse | None:
        """Returns the response and counts it as used. Raises `ResponseStoreFault`."""
        return self._run(lambda db: self._get(db, response_id, origin, _next_use(db)))

    def head(self, response_id: str, origin: str) -> Head | None:
        """Returns the chain head that `put` stored; None if there is no such response. Raises
        `ResponseStoreFault`."""
        wanted = (
            "SELECT chain_head, chain_front, chain_bytes FROM responses "
            "WHERE id = ? AND origin = ? AND chain_head != 0"
        )
        found = self._run(lambda db: db.execute(wanted, (response_id, origin)).fetchone())
        return None if found is None else Head(found[0] % _HASHES, found[1] % _HASHES, found[2])

    def has(self, response_id: str) -> bool:
        """True if the id is stored, for any owner. Raises `ResponseStoreFault`."""
        wanted = "SELECT 1 FROM responses WHERE id = ?"
        return self._run(lambda db: db.execute(wanted, (response_id,)).fetchone() is not None)

    def delete(self, response_id: str, origin: str) -> bool:
        """Deletes a response; returns True if there was one. Raises `ResponseStoreFault`."""

        def delete(db: sqlite3.Connection) -> bool:
            found = db.execute(
                "DELETE FROM responses WHERE id = ? AND origin = ?", (response_id, origin)
            )
            return found.rowcount > 0

        return self._run(delete)

    def history(self, previous_id: str | None, references: Sequence[str], origin: str) -> History:
        """Returns what a body refers to: the responses up to `previous_id`, and those of the
        referenced items that are stored. Raises `UnknownPreviousResponse` if one of the responses
        is missing, and `ResponseStoreFault`."""
        return self._run(lambda db: self._history(db, previous_id, references, origin))

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _evict(self, db: sqlite3.Connection) -> None:
        count, nbytes = db.execute("SELECT count(*), total(bytes) FROM responses").fetchone()
        # All responses of a chain are used at once: its beginning is useless without the rest, and
        # the rest without its beginning.
        oldest = db.execute("SELECT id, bytes FROM responses ORDER BY used, rowid")
        gone: list[tuple[str]] = []
        while count > self._limits.max_responses or nbytes > self._limits.max_bytes:
            response_id, size = oldest.fetchone()
            gone.append((response_id,))
            count, nbytes = count - 1, nbytes - size
        oldest.close()
        if gone:
            db.executemany("DELETE FROM responses WHERE id = ?", gone)

    def _get(
        self, db: sqlite3.Connection, response_id: str, origin: str, use: int
    ) -> StoredResponse | None:
        row = db.execute(
            "SELECT model, created_s, previous_id, body, items "
            "FROM responses JOIN texts USING (id) WHERE id = ? AND origin = ?",
            (response_id, origin),
        ).fetchone()
        if row is None:
            return None
        db.execute("UPDATE responses SET used = ? WHERE id = ?", (use, response_id))
        model, created_s, before, body, packed = row
        items = msgspec.json.decode(zlib.decompress(packed))
        return StoredResponse(response_id, model, created_s, before, zlib.decompress(body), items)

    def _history(
        self,
        db: sqlite3.Connection,
        previous_id: str | None,
        references: Sequence[str],
        origin: str,
    ) -> History:
        use = _next_use(db)
        turns: dict[str, list[Item]] = {}
        wanted = previous_id
        while wanted is not None:
            response = self._get(db, wanted, origin, use)
            # The store writes no cycles, but a file may hold what it did not write.
            if response is None or wanted in turns:
                raise _not_found(previous_id, wanted)
            turns[wanted] = _items_of(response)
            wanted = response.previous_id
        found: dict[str, Item] = {}
        for response_id in dict.fromkeys(response_of(each) for each in references):
            response = self._get(db, response_id, origin, use) if response_id else None
            if response is not None:
                found |= {str(item.get("id")): item for item in _items_of(response)}
        items = [item for turn in reversed(turns.values()) for item in turn]
        return History(items, {each: found[each] for each in references if each in found})

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `work` in one transaction; if the file turns out to be damaged, runs it again on an
        empty one."""
        try:
            try:
                return self._transact(work)
            except (sqlite3.DatabaseError, zlib.error, msgspec.DecodeError) as exc:
                # Subclasses of DatabaseError concern the disk or the call; the class itself, the
                # content.
                if isinstance(exc, sqlite3.Error) and type(exc) is not sqlite3.DatabaseError:
                    raise
                self._move_aside(exc)
                return self._transact(work)
        except (sqlite3.Error, OSError) as exc:
            raise ResponseStoreFault(f"The node cannot use its stored responses: {exc}.") from exc

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._db is None:
            self._db = self._connect()
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            result = work(db)
        except BaseException:
            db.rollback()
            raise
        db.commit()
        return result

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
        # SQLite creates its other files with the same mode.
        self.path.touch(mode=FILE_MODE)
        db = sqlite3.connect(self.path, isolation_level=None)
        try:
            is_new = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if is_new:
                db.executescript(_SCHEMA)
            if db.execute("PRAGMA user_version").fetchone()[0] == 1:
                db.executescript(_FROM_VERSION_1)
            if db.execute("PRAGMA user_version").fetchone()[0] == 2:
                db.executescript(_FROM_VERSION_2)
            if db.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                raise sqlite3.DatabaseError("it is of another version")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
            # Deleted responses are overwritten on disk.
            db.execute("PRAGMA secure_delete = ON")
            # The limits may be lower than before. Later, new responses reuse the space of evicted
            # ones.
            self._evict(db)
            db.execute("PRAGMA incremental_vacuum").fetchall()
        except sqlite3.Error:
            db.close()
            raise
        return db

    def _move_aside(self, reason: Exception) -> None:
        self.close()
        for number in range(1, 1000):
            aside = self.path.with_name(f"{FILE_NAME}.damaged-{number}")
            if not aside.exists():
                break
        logger.warning(
            "The stored responses in %s cannot be read (%s); the file is now %s.",
            self.path,
            reason,
            aside.name,
        )
        for suffix in _SUFFIXES:
            file = self.path.with_name(FILE_NAME + suffix)
            if file.exists():
                file.rename(aside.with_name(aside.name + suffix))


class ResponseStore:
    """The store for the event loop. One thread of its own does the work in the order of the calls,
    so that a call after a `put` sees what was stored."""

    def __init__(self, folder: Path, limits: StoreLimits | None = None) -> None:
        self._file = ResponseFile(folder, limits or StoreLimits())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="responses")

    def put(
        self, response: StoredResponse, origin: str = "", head: Head | None = None
    ) -> asyncio.Future[bool]:
        """Like `ResponseFile.put`, but only logs a failure, since the response is valid without
        being stored. The work begins at once, even if the future is never awaited."""
        return self._begin(lambda: self._try_put(response, origin, head))

    async def get(self, response_id: str, origin: str = "") -> StoredResponse | None:
        """Like `ResponseFile.get`."""
        return await self._begin(lambda: self._file.get(response_id, origin))

    async def head(self, response_id: str, origin: str = "") -> Head | None:
        """Like `ResponseFile.head`."""
        return await self._begin(lambda: self._file.head(response_id, origin))

    async def has(self, response_id: str) -> bool:
        """Like `ResponseFile.has`."""
        return await self._begin(lambda: self._file.has(response_id))

    async def delete(self, response_id: str, origin: str = "") -> bool:
        """Like `ResponseFile.delete`."""
        return await self._begin(lambda: self._file.delete(response_id, origin))

    async def history(
        self, previous_id: str | None, references: Sequence[str] = (), origin: str = ""
    ) -> History:
        """Like `ResponseFile.history`."""
        return await self._begin(lambda: self._file.history(previous_id, references, origin))

    async def close(self) -> None:
        """Finishes all work that has begun, and closes the file."""
        await self._begin(self._file.close)
        self._thread.shutdown()

    def _try_put(self, response: StoredResponse, origin: str, head: Head | None) -> bool:
        try:
            return self._file.put(response, origin, head)
        except ResponseStoreFault as exc:
            logger.warning("Response %s is not stored. %s", response.response_id, exc.message)
            return False

    def _begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, work)


def _items_of(response: StoredResponse) -> list[Item]:
    output: list[Item] = msgspec.json.decode(response.body)["output"]
    return [*response.items, *output]


def _signed(hash_: int) -> int:
    """Converts to SQLite's signed 64 bits."""
    return hash_ - _HASHES if hash_ >= _HASHES // 2 else hash_


def _next_use(db: sqlite3.Connection) -> int:
    """Returns a number above those of all uses so far."""
    return int(db.execute("SELECT coalesce(max(used), 0) + 1 FROM responses").fetchone()[0])


def _not_found(previous_id: str | None, missing: str) -> UnknownPreviousResponse:
    reason = "it was not stored, was deleted, or was evicted for newer ones"
    if missing == previous_id:
        return UnknownPreviousResponse(
            f"Previous response with id {missing!r} not found: {reason}."
        )
    return UnknownPreviousResponse(
        f"Previous response with id {previous_id!r} continues {missing!r}, which is not found: "
        f"{reason}."
    )
