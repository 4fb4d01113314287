"""`/admin/aliases`: other names for models, and what they add to requests."""

import time
from collections import Counter

from node.protocol.names import is_name
from registry import aliases
from registry.records import AliasRecord, AliasTarget
from router.api.admin.alias_views import AliasRow, SetAlias, TargetRow
from router.api.admin.gate import CurrentAdmin
from router.core import Core
from router.errors import BadRequest, Conflict, NotFound, UnknownModel
from router.routing.model_names import Names, is_pattern

_NAME_CHARS = 200


async def list_aliases(admin: CurrentAdmin) -> list[AliasRow]:
    """Lists the aliases, with what their targets stand for now."""
    async with admin.core.registry.read() as session:
        records = await aliases.list_all(session)
    return [_row(admin.core.names, record) for record in records]


async def get_alias(admin: CurrentAdmin, name: str) -> AliasRow:
    """Shows one alias."""
    for row in await list_aliases(admin):
        if row.name == name:
            return row
    raise NotFound(f"There is no alias {name!r}; `router alias list` lists them.")


async def set_alias(admin: CurrentAdmin, name: str, body: SetAlias) -> AliasRow:
    """Creates an alias, or replaces it."""
    check_alias(admin.core, name, body)
    targets = tuple(AliasTarget(each.model, each.defaults.given()) for each in body.targets)
    new = AliasRecord(name, targets, time.time(), body.selector, body.spill_at)
    record = await admin.change(
        "alias.set",
        name,
        ", ".join(target.model for target in targets),
        lambda session: aliases.put(session, new),
    )
    admin.core.names.put(record)
    return _row(admin.core.names, record)


async def remove_alias(admin: CurrentAdmin, name: str) -> AliasRow:
    """Removes an alias."""
    record = await admin.change(
        "alias.remove", name, "", lambda session: aliases.remove(session, name)
    )
    row = _row(admin.core.names, record)
    admin.core.names.remove(name)
    return row


def check_alias(core: Core, name: str, body: SetAlias) -> None:
    """Raises an error if the alias would hide a model, lead to another alias, or lead nowhere."""
    if len(name) > _NAME_CHARS or not is_name(name) or any(c.isspace() for c in name):
        raise BadRequest(
            f"An alias has at most {_NAME_CHARS} characters, which can be shown, and no spaces.",
            param="name",
        )
    models = [target.model for target in body.targets]
    twice, count = Counter(models).most_common(1)[0]
    if count > 1:
        raise BadRequest(f"The target {twice!r} is there twice.", param="targets")
    if name in core.fleet.models and models[0] != name:
        raise Conflict(
            f"{name!r} is a model; an alias of that name would hide it, unless that model is its "
            "first target.",
            param="name",
        )
    _check_targets(core.names, name, models)
    if not body.force:
        for model in models:
            _need_known(core.names, model)


def _check_targets(names: Names, name: str, models: list[str]) -> None:
    """Raises an error for targets that are aliases; an alias may have its own name as its first
    target, which means the model of that name."""
    known = {alias.name: alias for alias in names.aliases}
    for at, model in enumerate(models):
        if is_pattern(model):
            raise BadRequest(f"The target {model!r} is a pattern.", param="targets")
        real = known[model].targets[0].model if model in known else None
        if (model == name and at > 0) or (real is not None and model not in (name, real)):
            hint = f" of {real!r}; name that model instead" if real and real != name else ""
            raise BadRequest(f"The target {model!r} is itself an alias{hint}.", param="targets")
    if models[0] == name:
        return
    pointing = sorted(
        alias.name
        for alias in names.aliases
        if alias.name != name and any(target.model == name for target in alias.targets)
    )
    if pointing:
        raise Conflict(f"The alias {pointing[0]!r} points at {name!r} already.", param="name")


def _need_known(names: Names, model: str) -> None:
    """Raises `UnknownModel`, whose message suggests similar names."""
    if not names.target(AliasTarget(model)).is_known:
        error = names.unknown(model)
        raise UnknownModel(f"{error.message} --force accepts it all the same.", param="targets")


def _row(names: Names, record: AliasRecord) -> AliasRow:
    placed = names.route_of(record).targets
    return AliasRow(
        name=record.name,
        targets=tuple(
            TargetRow(
                model=given.model,
                defaults=given.defaults,
                known=target.is_known,
                paid=target.is_paid,
            )
            for given, target in zip(record.targets, placed, strict=True)
        ),
        selector=record.selector,
        spill_at=record.spill_at,
        known=any(target.is_known for target in placed),
        created_at_s=record.created_at_s,
    )
