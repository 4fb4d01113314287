"""`/admin/keys`: creates, lists, changes, rotates and revokes API keys."""

import secrets
import time
from dataclasses import replace
from typing import Any

from registry import keys, teams
from registry.db import ReadSession, WriteSession
from registry.records import KeyRecord, TeamRecord
from router.api.admin.bodies import ChangeKey, CreateKey, RotateKey
from router.api.admin.gate import CurrentAdmin
from router.api.admin.key_rows import (
    apply_key,
    changed_limits,
    key_row,
    limits_text,
    recount_teams,
    used_today,
)
from router.api.admin.key_views import KeyRow, NewKey, RevokedKey
from router.auth import SCOPE_ADMIN, SCOPES, key_subject, new_key, new_salt
from router.errors import BadRequest, Conflict
from router.types import Priority

DAY_S = 86_400
CLASSES = tuple(each.name.lower() for each in Priority)


async def list_keys(admin: CurrentAdmin) -> list[KeyRow]:
    """Lists all keys, including revoked ones; never a digest or a salt."""
    async with admin.core.registry.read() as session:
        records = await keys.list_all(session)
        by_id = {team.id: team for team in await teams.list_all(session, with_deleted=True)}
    return [key_row(admin.core, each, by_id.get(each.team_id or "")) for each in records]


async def show_key(admin: CurrentAdmin, id_or_name: str) -> KeyRow:
    """Shows one valid key, with what is left of its limits."""
    async with admin.core.registry.read() as session:
        record = await keys.find(session, id_or_name)
        team = await _team_of(session, record)
    return key_row(admin.core, record, team)


async def create_key(admin: CurrentAdmin, body: CreateKey) -> NewKey:
    """Makes a key, which only this response shows."""
    key, prefix, digest = new_key()
    now_s = time.time()
    record = KeyRecord(
        id=secrets.token_hex(8),
        name=body.name,
        prefix=prefix,
        digest=digest,
        scopes=_checked_scopes(body.scopes),
        created_at_s=now_s,
        expires_at_s=None if body.expires_in_days is None else now_s + body.expires_in_days * DAY_S,
        revoked_at_s=None,
        priority=_checked_class(body.priority),
        salt=new_salt() if body.isolate else "",
        models=body.models,
        limits=changed_limits({}, body.limits),
    )
    team_name = body.team

    async def add(session: WriteSession) -> tuple[KeyRecord, TeamRecord | None]:
        team = await teams.get(session, team_name) if team_name else None
        owned = replace(record, team_id=team.id if team else None)
        return await keys.add(session, owned), team

    record, team = await admin.change("key.create", record.name, _summary(record, team_name), add)
    apply_key(admin.core, None, record, {})
    return NewKey(key=key, **key_row(admin.core, record, team).model_dump())


async def change_key(admin: CurrentAdmin, id_or_name: str, body: ChangeKey) -> KeyRow:
    """Changes a key from its next request on; fields that are not given stay."""
    given = body.model_fields_set
    if not given:
        known = ", ".join(ChangeKey.model_fields)
        raise BadRequest(f"The body has nothing to change; it may have {known}.")
    now_s = time.time()
    values = _plain_changes(body, given, now_s)
    used = await used_today(admin.core) if given & {"limits", "team"} else {}
    before: list[KeyRecord] = []
    every: list[KeyRecord] = []

    async def change(session: WriteSession) -> tuple[KeyRecord, TeamRecord | None]:
        record = await keys.find(session, id_or_name)
        before.append(record)
        if "team" in given:
            team = await teams.get(session, body.team) if body.team else None
            values["team_id"] = team.id if team else None
        if "limits" in given:
            values["limits"] = changed_limits(record.limits, body.limits)
        changed = await keys.change(session, record.id, **values)
        every.extend(await _keep_an_admin(session, now_s))
        return changed, await _team_of(session, changed)

    detail = ", ".join(f"{name} {_shown(name, body)}" for name in sorted(given))
    record, team = await admin.change("key.update", id_or_name, detail, change)
    apply_key(admin.core, before[0], record, used)
    if "team" in given:
        recount_teams(admin.core, (before[0], record), every, used)
    return key_row(admin.core, record, team)


async def rotate_key(admin: CurrentAdmin, body: RotateKey) -> NewKey:
    """Replaces a key's secret; its name, limits and usage stay. The old secret ends after the
    grace time, at once without one."""
    key, prefix, digest = new_key()
    now_s = time.time()

    async def rotate(session: WriteSession) -> tuple[KeyRecord, TeamRecord | None]:
        record = await keys.find(session, body.key)
        changed = await keys.change(
            session,
            record.id,
            prefix=prefix,
            digest=digest,
            rotated_at_s=now_s,
            old_digest=record.digest if body.grace_s else None,
            old_prefix=record.prefix,
            old_until_s=now_s + body.grace_s,
        )
        return changed, await _team_of(session, changed)

    detail = f"{prefix}…; the old one ends " + (
        f"in {body.grace_s:,.0f} s" if body.grace_s else "at once"
    )
    record, team = await admin.change("key.rotate", body.key, detail, rotate)
    admin.core.keys.add(record)
    return NewKey(key=key, **key_row(admin.core, record, team).model_dump())


async def revoke_key(admin: CurrentAdmin, id_or_name: str) -> RevokedKey:
    """Revokes a key; from the response on, requests with it are rejected."""
    now_s = time.time()

    async def revoke(session: WriteSession) -> tuple[KeyRecord, TeamRecord | None]:
        record = await keys.revoke(session, id_or_name, now_s)
        await _keep_an_admin(session, now_s)
        return record, await _team_of(session, record)

    record, team = await admin.change("key.revoke", id_or_name, "", revoke)
    admin.core.keys.add(record)
    admin.core.limiter.forget(key_subject(record.id))
    row = key_row(admin.core, record, team)
    return RevokedKey(**row.model_dump(), already=record.revoked_at_s != now_s)


def _plain_changes(body: ChangeKey, given: set[str], now_s: float) -> dict[str, Any]:
    """The columns that a change sets whatever the key was before."""
    values: dict[str, Any] = {
        name: getattr(body, name) for name in ("paid_budget", "models") if name in given
    }
    if "scopes" in given:
        values["scopes"] = list(_checked_scopes(body.scopes))
    if "priority" in given:
        values["priority"] = _checked_class(body.priority)
    if "expires_in_days" in given:
        days = body.expires_in_days
        values["expires_at_s"] = None if days is None else now_s + days * DAY_S
    return values


async def _team_of(session: ReadSession, record: KeyRecord) -> TeamRecord | None:
    known = await teams.list_all(session, with_deleted=True)
    return next((team for team in known if team.id == record.team_id), None)


async def _keep_an_admin(session: WriteSession, now_s: float) -> list[KeyRecord]:
    """Returns all keys. Raises `Conflict` if no valid one with the scope admin is left."""
    every = await keys.list_all(session)
    if not any(_opens_admin(other, now_s) for other in every):
        raise Conflict(
            "This is the last key with the scope admin; make another first with "
            "`router keys create NAME --scope admin`."
        )
    return every


def _opens_admin(record: KeyRecord, now_s: float) -> bool:
    return (
        SCOPE_ADMIN in record.scopes
        and record.revoked_at_s is None
        and (record.expires_at_s is None or record.expires_at_s > now_s)
    )


def _checked_scopes(scopes: tuple[str, ...]) -> tuple[str, ...]:
    """The scopes in their usual order. Raises `BadRequest`."""
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        wrong = f"; {unknown[0]!r} is none" if unknown else ", and a key has at least one"
        known = f"{', '.join(SCOPES[:-1])} and {SCOPES[-1]}"
        raise BadRequest(f"The scopes are {known}{wrong}.", param="scopes")
    return tuple(scope for scope in SCOPES if scope in scopes)


def _checked_class(name: str) -> str:
    if name not in CLASSES:
        known = f"{', '.join(CLASSES[:-1])} and {CLASSES[-1]}"
        raise BadRequest(f"The classes are {known}; {name!r} is none.", param="priority")
    return name


def _summary(record: KeyRecord, team: str | None) -> str:
    """The detail of a new key's audit entry."""
    parts = [f"{record.prefix}… for {', '.join(record.scopes)}", record.priority]
    text = "; ".join(parts) + (", isolated" if record.salt else "")
    if team:
        text += f"; team {team}"
    if record.models:
        text += f"; models {', '.join(record.models)}"
    return text + (f"; {limits_text(record.limits)}" if record.limits else "")


def _shown(name: str, body: ChangeKey) -> str:
    """A changed field's new value, for the audit entry."""
    value = getattr(body, name)
    if name == "limits":
        given = body.limits.model_dump(exclude_unset=True)
        return ", ".join(f"{each}={number}" for each, number in given.items())
    if isinstance(value, tuple):
        return " ".join(value)
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
