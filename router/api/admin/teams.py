"""`/admin/teams`: teams, whose keys share limits."""

import secrets
import time
from collections import defaultdict

from registry import keys, teams
from registry.db import WriteSession
from registry.records import KeyRecord, TeamRecord
from router.api.admin.bodies import ChangeTeam, CreateTeam
from router.api.admin.gate import CurrentAdmin
from router.api.admin.key_rows import apply_team, changed_limits, limits_text, team_row, used_today
from router.api.admin.key_views import TeamRow
from router.auth import team_subject
from router.errors import Conflict

_MOST_NAMED = 5


async def list_teams(admin: CurrentAdmin) -> list[TeamRow]:
    """Lists the teams, their keys, and what is left of their limits."""
    async with admin.core.registry.read() as session:
        records = await teams.list_all(session)
        by_team: dict[str, list[KeyRecord]] = defaultdict(list)
        for key in await keys.list_all(session):
            if key.team_id is not None and key.revoked_at_s is None:
                by_team[key.team_id].append(key)
    return [team_row(admin.core, record, by_team[record.id]) for record in records]


async def create_team(admin: CurrentAdmin, body: CreateTeam) -> TeamRow:
    """Makes a team; keys join it with `team` in `POST` or `PATCH /admin/keys`."""
    limits = changed_limits({}, body.limits)
    record = TeamRecord(secrets.token_hex(8), body.name, limits, time.time())
    await admin.change(
        "team.create", body.name, limits_text(limits), lambda session: teams.add(session, record)
    )
    apply_team(admin.core, None, record, ())
    return team_row(admin.core, record, [])


async def change_team(admin: CurrentAdmin, name: str, body: ChangeTeam) -> TeamRow:
    """Changes a team's limits from the next request of its keys on; limits that are not given
    stay."""
    used = await used_today(admin.core)
    before: list[TeamRecord] = []

    async def change(session: WriteSession) -> tuple[TeamRecord, list[KeyRecord]]:
        record = await teams.get(session, name)
        before.append(record)
        limits = changed_limits(record.limits, body.limits)
        changed = await teams.change(session, name, limits=limits)
        return changed, await keys.of_team(session, record.id)

    given = body.limits.model_dump(exclude_unset=True)
    detail = ", ".join(f"{each}={number}" for each, number in given.items())
    record, members = await admin.change("team.update", name, detail, change)
    tokens = [used.get(key.id, 0) for key in members]
    apply_team(admin.core, before[0], record, tokens)
    return team_row(admin.core, record, members)


async def delete_team(admin: CurrentAdmin, name: str) -> TeamRow:
    """Deletes a team without valid keys; usage still names it."""

    async def delete(session: WriteSession) -> TeamRecord:
        record = await teams.get(session, name)
        members = await keys.of_team(session, record.id)
        if members:
            raise Conflict(_still_has(name, [key.name for key in members]))
        return await teams.change(session, name, deleted_at_s=time.time())

    record = await admin.change("team.delete", name, "", delete)
    admin.core.keys.remove_team(record.id)
    admin.core.limiter.forget(team_subject(record.id))
    return team_row(admin.core, record, [])


def _still_has(name: str, members: list[str]) -> str:
    shown = ", ".join(members[:_MOST_NAMED])
    more = f" and {len(members) - _MOST_NAMED} more" if len(members) > _MOST_NAMED else ""
    keys_ = "key" if len(members) == 1 else "keys"
    return (
        f"The team {name} still has the {keys_} {shown}{more}; revoke them, or move them with "
        "`router keys update KEY --team none`."
    )
