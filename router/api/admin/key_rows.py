"""Makes the rows of keys and teams, and applies their limits."""

import time
from collections.abc import Collection, Mapping
from dataclasses import asdict

from registry import usage
from registry.records import KeyRecord, TeamRecord
from router.api.admin.bodies import LimitChange
from router.api.admin.key_views import KeyRow, LimitsRow, LimitUse, TeamRow
from router.auth import key_subject, team_subject
from router.core import Core
from router.limits.account import day_s
from router.quotas import Limits, read_limits

_SECRETS = ("digest", "old_digest", "salt", "team_id")
"""Fields of a record that no row has."""


def key_row(core: Core, record: KeyRecord, team: TeamRecord | None) -> KeyRow:
    """The row of a key; `team` is its own."""
    values = {name: value for name, value in asdict(record).items() if name not in _SECRETS}
    values["limits"] = LimitsRow(**record.limits)
    return KeyRow(
        **values,
        team=team.name if team else None,
        use=_use(core, key_subject(record.id), record.limits),
        isolated=bool(record.salt),
        paid_spent=core.budgets.spent(record.id),
    )


def team_row(core: Core, record: TeamRecord, keys: list[KeyRecord]) -> TeamRow:
    """The row of a team; `keys` are its valid ones."""
    return TeamRow(
        id=record.id,
        name=record.name,
        limits=LimitsRow(**record.limits),
        use=_use(core, team_subject(record.id), record.limits),
        keys=tuple(key.name for key in keys),
        created_at_s=record.created_at_s,
    )


def _use(core: Core, subject: str, stored: Mapping[str, int]) -> LimitUse | None:
    if not stored:
        return None
    limits = read_limits(stored)
    account, now = core.limiter.account(subject, limits)
    requests, tokens = account.requests_left(limits), account.tokens_left(limits, now)
    return LimitUse(
        requests_left=requests.left if requests else None,
        tokens_left=tokens.left if tokens else None,
        tokens_today=account.day_tokens,
        open_requests=account.open_requests,
    )


def changed_limits(stored: Mapping[str, int], change: LimitChange) -> dict[str, int]:
    """The limits after a change."""
    given = change.model_dump(exclude_unset=True)
    merged = {**stored, **given}
    return Limits(**merged).stored()


def limits_text(limits: Mapping[str, int]) -> str:
    """The limits for an audit entry."""
    shown = [f"{number:,} {name.replace('_', ' ')}" for name, number in limits.items()]
    return ", ".join(shown) or "no limits"


async def used_today(core: Core) -> dict[str, int]:
    """The tokens of each key this day, by its id; to be read before a change that sets limits."""
    async with core.registry.read() as session:
        return await usage.tokens(session, day_s(time.time()))


# Changes are applied in the order in which they were written, since nothing is awaited between a
# write and this. Otherwise a change could undo a revocation that was written after it.


def apply_key(
    core: Core, before: KeyRecord | None, after: KeyRecord, used: Mapping[str, int]
) -> None:
    """Makes a new or changed key valid from the next request on; `used` has what it used this day,
    if that has to be counted from now on."""
    if not after.limits:
        core.limiter.forget(key_subject(after.id))
    elif not (before and before.limits):
        core.limiter.set_day_tokens(key_subject(after.id), used.get(after.id, 0))
    core.keys.add(after)


def recount_teams(
    core: Core, moved: Collection[KeyRecord], every: Collection[KeyRecord], used: Mapping[str, int]
) -> None:
    """Counts the tokens of this day again for the teams of a key before and after it `moved`."""
    for team_id in {record.team_id for record in moved if record.team_id is not None}:
        tokens = sum(used.get(key.id, 0) for key in every if key.team_id == team_id)
        core.limiter.recount(team_subject(team_id), tokens)


def apply_team(
    core: Core, before: TeamRecord | None, after: TeamRecord, used: Collection[int]
) -> None:
    """Applies a team's limits to the next requests of its keys, which have `used` so many tokens
    this day."""
    if not after.limits:
        core.limiter.forget(team_subject(after.id))
    elif not (before and before.limits):
        core.limiter.set_day_tokens(team_subject(after.id), sum(used))
    core.keys.put_team(after)
