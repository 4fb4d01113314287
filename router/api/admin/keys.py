"""`/admin/keys`: creates, lists and revokes API keys."""

import secrets
import time
from dataclasses import asdict

from registry import keys
from registry.db import WriteSession
from registry.records import KeyRecord
from router.api.admin.bodies import CreateKey, SetBudget
from router.api.admin.gate import CurrentAdmin
from router.api.admin.views import KeyRow, NewKey, RevokedKey
from router.auth import SCOPE_ADMIN, SCOPES, new_key, new_salt
from router.errors import BadRequest, Conflict
from router.routing.paid_budgets import Budgets
from router.types import Priority

DAY_S = 86_400
CLASSES = tuple(each.name.lower() for each in Priority)


async def list_keys(admin: CurrentAdmin) -> list[KeyRow]:
    """Lists all keys, including revoked ones; never a digest or a salt."""
    async with admin.core.registry.read() as session:
        records = await keys.list_all(session)
    return [_row(admin.core.budgets, record) for record in records]


async def create_key(admin: CurrentAdmin, body: CreateKey) -> NewKey:
    _check_scopes(body.scopes)
    _check_class(body.priority)
    key, prefix, digest = new_key()
    now_s = time.time()
    record = KeyRecord(
        id=secrets.token_hex(8),
        name=body.name,
        prefix=prefix,
        digest=digest,
        scopes=tuple(scope for scope in SCOPES if scope in body.scopes),
        created_at_s=now_s,
        expires_at_s=None if body.expires_in_days is None else now_s + body.expires_in_days * DAY_S,
        revoked_at_s=None,
        priority=body.priority,
        salt=new_salt() if body.isolate else "",
    )
    await admin.change(
        "key.create",
        record.name,
        f"{prefix}… for {', '.join(record.scopes)}; {record.priority}"
        + (", isolated" if record.salt else ""),
        lambda session: keys.add(session, record),
    )
    admin.core.keys.add(record)
    return NewKey(key=key, **_row(admin.core.budgets, record).model_dump())


async def revoke_key(admin: CurrentAdmin, id_or_name: str) -> RevokedKey:
    """Revokes a key; from the response on, requests with it are rejected."""
    now_s = time.time()

    async def revoke(session: WriteSession) -> KeyRecord:
        record = await keys.revoke(session, id_or_name, now_s)
        if not any(_opens_admin(other, now_s) for other in await keys.list_all(session)):
            raise Conflict(
                "This is the last key with the scope admin; make another first with "
                "`router keys create NAME --scope admin`."
            )
        return record

    record = await admin.change("key.revoke", id_or_name, "", revoke)
    admin.core.keys.remove(record.digest)
    row = _row(admin.core.budgets, record)
    return RevokedKey(**row.model_dump(), already=record.revoked_at_s != now_s)


async def set_budget(admin: CurrentAdmin, id_or_name: str, body: SetBudget) -> KeyRow:
    """Sets the most that the key's requests to paid servers may cost in a month, from the next
    request on."""
    budget = body.paid_budget
    record = await admin.change(
        "key.budget",
        id_or_name,
        "none" if budget is None else f"{budget:g} a month",
        lambda session: keys.set_budget(session, id_or_name, budget),
    )
    admin.core.keys.add(record)
    return _row(admin.core.budgets, record)


def _check_scopes(scopes: tuple[str, ...]) -> None:
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        wrong = f"; {unknown[0]!r} is none" if unknown else ", and a key has at least one"
        known = f"{', '.join(SCOPES[:-1])} and {SCOPES[-1]}"
        raise BadRequest(f"The scopes are {known}{wrong}.", param="scopes")


def _check_class(name: str) -> None:
    if name not in CLASSES:
        known = f"{', '.join(CLASSES[:-1])} and {CLASSES[-1]}"
        raise BadRequest(f"The classes are {known}; {name!r} is none.", param="priority")


def _opens_admin(record: KeyRecord, now_s: float) -> bool:
    return (
        SCOPE_ADMIN in record.scopes
        and record.revoked_at_s is None
        and (record.expires_at_s is None or record.expires_at_s > now_s)
    )


def _row(budgets: Budgets, record: KeyRecord) -> KeyRow:
    values = asdict(record)
    del values["digest"]
    salt = values.pop("salt")
    return KeyRow(**values, isolated=bool(salt), paid_spent=budgets.spent(record.id))
