"""`/admin/aliases`: other names for models."""

import time

from registry import aliases
from registry.records import AliasRecord, AliasTarget
from router.api.admin_gate import AdminGiven
from router.api.admin_views import AliasRow, SetAlias
from router.errors import BadRequest, Conflict, NotFound
from router.fleet import Fleet

_NAME_CHARS = 200


async def list_aliases(admin: AdminGiven) -> list[AliasRow]:
    async with admin.core.registry.read() as session:
        records = await aliases.list_all(session)
    return [_row(admin.core.fleet, record) for record in records]


async def get_alias(admin: AdminGiven, name: str) -> AliasRow:
    for row in await list_aliases(admin):
        if row.name == name:
            return row
    raise NotFound(f"There is no alias {name!r}; `router alias list` lists them.")


async def set_alias(admin: AdminGiven, name: str, asked: SetAlias) -> AliasRow:
    fleet = admin.core.fleet
    check_alias(fleet, name, asked)
    new = AliasRecord(name, (AliasTarget(asked.target),), time.time())
    record = await admin.change(
        "alias.set", name, asked.target, lambda session: aliases.put(session, new)
    )
    fleet.set_alias(name, asked.target)
    return _row(fleet, record)


async def remove_alias(admin: AdminGiven, name: str) -> AliasRow:
    fleet = admin.core.fleet
    record = await admin.change(
        "alias.remove", name, "", lambda session: aliases.remove(session, name)
    )
    fleet.remove_alias(name)
    return _row(fleet, record)


def check_alias(fleet: Fleet, name: str, asked: SetAlias) -> None:
    """Raises where the alias would hide a model, lead to another alias, or lead nowhere."""
    if len(name) > _NAME_CHARS or not name.isprintable() or any(c.isspace() for c in name):
        raise BadRequest(
            f"An alias has no spaces and at most {_NAME_CHARS} characters.", param="name"
        )
    if fleet.known(name):
        raise Conflict(f"{name!r} is a model; an alias of that name would hide it.", param="name")
    known = fleet.aliases
    if asked.target == name or asked.target in known:
        real = known.get(asked.target)
        hint = f" of {real!r}; name that model instead" if real and real != name else ""
        raise BadRequest(f"The target {asked.target!r} is itself an alias{hint}.", param="target")
    pointing = sorted(alias for alias, target in known.items() if target == name)
    if pointing:
        raise Conflict(f"The alias {pointing[0]!r} points at {name!r} already.", param="name")
    if not asked.force:
        fleet.resolve(asked.target)


def _row(fleet: Fleet, record: AliasRecord) -> AliasRow:
    return AliasRow(
        name=record.name,
        target=record.targets[0].model,
        known=fleet.known(record.targets[0].model),
        created_at_s=record.created_at_s,
    )
