"""API keys, checked from memory, so that no request waits for the database."""

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from node.protocol.ids import owner_mark
from registry.records import KeyRecord, TeamRecord
from router.errors import Forbidden, Unauthorized
from router.quotas import Quota, read_limits
from router.states import SCOPE_EXTERNAL
from router.types import Caller, Priority

SCOPE_ADMIN = "admin"
SCOPE_INFERENCE = "inference"
SCOPE_METRICS = "metrics"
SCOPES = (SCOPE_ADMIN, SCOPE_INFERENCE, SCOPE_METRICS, SCOPE_EXTERNAL)

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


def key_subject(key_id: str) -> str:
    """The subject of a key's own limits."""
    return f"key:{key_id}"


def team_subject(team_id: str) -> str:
    """The subject of a team's limits."""
    return f"team:{team_id}"


def quotas_of(record: KeyRecord, team: TeamRecord | None) -> tuple[Quota, ...]:
    """The limits that apply to a key's requests."""
    found = []
    if record.limits:
        found.append(Quota(key_subject(record.id), "This API key", read_limits(record.limits)))
    if team is not None and team.limits:
        owner = f"The team {team.name} of this API key"
        found.append(Quota(team_subject(team.id), owner, read_limits(team.limits)))
    return tuple(found)


def caller_of(record: KeyRecord, team: TeamRecord | None = None) -> Caller:
    """The caller that a key's record stands for; `team` is the key's own."""
    return Caller(
        record.id,
        record.name,
        frozenset(record.scopes),
        owner_mark(record.id),
        record.expires_at_s,
        Priority[record.priority.upper()],
        record.salt,
        record.paid_budget,
        record.models,
        quotas_of(record, team),
        record.prefix,
    )


def day_tokens(
    records: Iterable[KeyRecord], teams: Iterable[TeamRecord], used: Mapping[str, int]
) -> dict[str, int]:
    """Sums the tokens that keys have `used`, by the subjects whose limits they count against."""
    by_id = {team.id: team for team in teams}
    sums: dict[str, int] = {}
    for record in records:
        for quota in quotas_of(record, by_id.get(record.team_id or "")):
            sums[quota.subject] = sums.get(quota.subject, 0) + used.get(record.id, 0)
    return sums


class KeyRing:
    """All valid keys by digest; the admin API keeps it in sync with the registry.

    A key is looked up by its SHA-256, never compared with others: how long that takes says nothing
    about a key that the caller does not have already.
    """

    def __init__(
        self,
        records: Iterable[KeyRecord] = (),
        teams: Iterable[TeamRecord] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._teams = {team.id: team for team in teams}
        self._records: dict[str, KeyRecord] = {}
        """Valid keys by id."""
        self._callers: dict[str, Caller] = {}
        for record in records:
            self.add(record)

    def add(self, record: KeyRecord) -> None:
        """Adds a key, or replaces it by its changed record; a revoked one is removed."""
        self._forget_digests(record.id)
        if record.revoked_at_s is not None:
            return
        self._records[record.id] = record
        team = self._teams.get(record.team_id) if record.team_id else None
        caller = self._callers[record.digest] = caller_of(record, team)
        if record.old_digest is not None and record.old_until_s is not None:
            ends_s = min(record.old_until_s, record.expires_at_s or record.old_until_s)
            self._callers[record.old_digest] = replace(caller, expires_at_s=ends_s)

    def _forget_digests(self, key_id: str) -> None:
        known = self._records.pop(key_id, None)
        if known is not None:
            self._callers.pop(known.digest, None)
            self._callers.pop(known.old_digest or "", None)

    def put_team(self, team: TeamRecord) -> None:
        """Adds a team, or applies its changed limits to its keys from their next request on."""
        self._teams[team.id] = team
        for record in [each for each in self._records.values() if each.team_id == team.id]:
            self.add(record)

    def remove_team(self, team_id: str) -> None:
        """Forgets a team that has no valid keys any more."""
        self._teams.pop(team_id, None)

    def name_of(self, key: str | None) -> str:
        """The name of the key that this is, valid or expired; empty if it is none."""
        caller = self._callers.get(digest(key)) if key else None
        return caller.name if caller else ""

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
