"""The routers that are paired with this agent, in a file with hashes of their secrets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from node.errors import NotPaired, StartError, TooManyRouters
from node.protocol.bounds import Id, Name, UnixSeconds
from node.protocol.pairing import Hex, PairedRouter, new_secret, secret_hash
from serving.whole_file import written_whole

MAX_ROUTERS = 100


class _Pairing(msgspec.Struct, frozen=True, omit_defaults=True):
    """One router's row of the file."""

    router_id: Id
    name: Name
    paired_unix_s: UnixSeconds
    secret_sha256: Hex
    next_sha256: Hex = ""
    """The hash of the secret that the router was sent last and has not used yet."""


class Pairings:
    """Owner of the file. It is read at start, and written whole before a change is valid."""

    def __init__(self, file: Path, wall: Callable[[], float] = time.time) -> None:
        """Raises `StartError` if the file cannot be read."""
        self._file = file
        self._wall = wall
        self._changing = asyncio.Lock()
        self._rows: dict[str, _Pairing] = {}
        """By the routers' ids."""
        self._by_hash: dict[str, str] = {}
        """Ids of the routers by the hashes of their secrets."""
        self._set({each.router_id: each for each in _read(file)})

    def list(self) -> tuple[PairedRouter, ...]:
        """All routers, in the order in which they were paired."""
        rows = sorted(self._rows.values(), key=lambda each: each.paired_unix_s)
        return tuple(PairedRouter(each.router_id, each.name, each.paired_unix_s) for each in rows)

    def has(self, router_id: str) -> bool:
        return router_id in self._rows

    def router_of(self, secret: str) -> str | None:
        """Id of the router whose secret this is. The first use of a new secret makes the one before
        it void."""
        # Finding a hash in a table tells nothing of the secret.
        shown = secret_hash(secret)
        router_id = self._by_hash.get(shown)
        if router_id is not None and self._rows[router_id].next_sha256 == shown:
            row = msgspec.structs.replace(
                self._rows[router_id], secret_sha256=shown, next_sha256=""
            )
            self._set({**self._rows, router_id: row})
            _write(self._file, self._rows.values())  # once for each rotation
        return router_id

    async def add(self, router_id: str, name: str) -> str:
        """Returns the secret of a router that is paired from now on; its earlier one is void.
        Raises `TooManyRouters`, and `OSError`."""
        async with self._changing:
            if router_id not in self._rows and len(self._rows) >= MAX_ROUTERS:
                raise TooManyRouters
            secret = new_secret()
            row = _Pairing(router_id, name, self._wall(), secret_hash(secret))
            await self._change({**self._rows, router_id: row})
            return secret

    async def rotate(self, router_id: str) -> str:
        """Returns a new secret, whose first use makes the old one void. Raises `NotPaired` for a
        router that was removed meanwhile, and `OSError`."""
        async with self._changing:
            secret = new_secret()
            if router_id not in self._rows:
                raise NotPaired
            row = msgspec.structs.replace(self._rows[router_id], next_sha256=secret_hash(secret))
            await self._change({**self._rows, router_id: row})
            return secret

    async def remove(self, router: str | None) -> None:
        """Removes the routers with this name, the one with this id, or all of them for None. Raises
        `NotPaired` if there is none, and `OSError`."""
        async with self._changing:
            kept = {
                router_id: each
                for router_id, each in self._rows.items()
                if router is not None and router not in (router_id, each.name)
            }
            if len(kept) == len(self._rows):
                raise NotPaired(
                    "No router is paired with this agent."
                    if router is None
                    else f"No router {router!r} is paired with this agent; `node-agent unpair` "
                    "lists those that are."
                )
            await self._change(kept)

    async def _change(self, rows: dict[str, _Pairing]) -> None:
        await asyncio.to_thread(_write, self._file, rows.values())
        self._set(rows)

    def _set(self, rows: dict[str, _Pairing]) -> None:
        self._rows = rows
        self._by_hash = {
            each: row.router_id
            for row in rows.values()
            for each in (row.secret_sha256, row.next_sha256)
            if each
        }


def _write(file: Path, rows: Iterable[_Pairing]) -> None:
    with written_whole(file, replace=True) as draft:
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(list(rows))))


def _read(file: Path) -> list[_Pairing]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[_Pairing])
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StartError(f"{file} cannot be read: {error.strerror}.") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StartError(
            f"{file} is damaged ({error}); delete it, and pair the routers again."
        ) from None
