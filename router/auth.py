"""API keys, checked from memory, so that no request waits for the database."""

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable

from node.protocol.ids import owner_mark
from registry.records import KeyRecord
from router.errors import Forbidden, Unauthorized
from router.states import SCOPE_EXTERNAL
from router.types import Caller, Priority

SCOPE_ADMIN = "admin"
SCOPE_INFERENCE = "inference"
SCOPES = (SCOPE_ADMIN, SCOPE_INFERENCE, SCOPE_EXTERNAL)

KEY_PREFIX = "mlxf-"
_PREFIX_CHARS = 11


def digest(key: str) -> str:
    """Returns the hex SHA-256 of a key; nothing else of it is ever stored."""
    return hashlib.sha256(key.encode()).hexdigest()


def new_key() -> tuple[str, str, str]:
    """Makes a key of 128 random bits and returns (key, visible prefix, digest)."""
    key = KEY_PREFIX + secrets.token_hex(16)
    return key, key[:_PREFIX_CHARS], digest(key)


def new_salt() -> str:
    """Returns 128 random bits, so that nobody can guess the hashes of this key's cached
    prefixes."""
    return secrets.token_hex(16)


def caller_of(record: KeyRecord) -> Caller:
    return Caller(
        record.id,
        record.name,
        frozenset(record.scopes),
        owner_mark(record.id),
        record.expires_at_s,
        Priority[record.priority.upper()],
        record.salt,
        record.paid_budget,
    )


class KeyRing:
    """All valid keys by digest; the admin API keeps it in sync with the registry."""

    def __init__(
        self, records: Iterable[KeyRecord] = (), clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._callers: dict[str, Caller] = {}
        for record in records:
            self.add(record)

    def add(self, record: KeyRecord) -> None:
        if record.revoked_at_s is None:
            self._callers[record.digest] = caller_of(record)

    def remove(self, key_digest: str) -> None:
        self._callers.pop(key_digest, None)

    def check(self, key: str | None, scope: str, other: str = "") -> Caller:
        """Returns the caller whose key this is. Raises `Unauthorized`, or `Forbidden` if the key
        has neither of the scopes."""
        caller = self._callers.get(digest(key)) if key else None
        if caller is None:
            raise Unauthorized
        if caller.expires_at_s is not None and caller.expires_at_s <= self._clock():
            raise Unauthorized("The API key has expired; `router keys create` makes a new one.")
        if scope not in caller.scopes and other not in caller.scopes:
            raise Forbidden(f"This API key lacks the scope {scope!r}.")
        return caller


def key_from_headers(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Returns the key of `Authorization: Bearer`, or else of `x-api-key`; header names are in lower
    case."""
    other = None
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].strip().decode("latin-1")
        if name == b"x-api-key":
            other = value.strip().decode("latin-1")
    return other
