"""`router alias set`, `show`, `rm`, `list`."""

import json
import time
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from router.api.admin.alias_views import AliasRow, TargetRow
from router.commands import console, wording
from router.commands.client import AdminClient, CommandFailed, in_path, read_row, read_rows

NO_ALIASES = "There are no aliases yet; `router alias set NAME MODEL` makes one."
_KWARGS = "chat_template_kwargs"


def set_alias(client: AdminClient, name: str, body: dict[str, Any], *, as_json: bool) -> None:
    response = client.put(f"/aliases/{in_path(name)}", body)
    if as_json:
        console.print_json(response)
        return
    row = read_row(AliasRow, response)
    console.print_line(f"{row.name} now means {_meaning(row)}.")
    _warn(row)


def show_one(client: AdminClient, name: str, *, as_json: bool) -> None:
    response = client.get(f"/aliases/{in_path(name)}")
    if as_json:
        console.print_json(response)
        return
    row = read_row(AliasRow, response)
    console.print_line(f"{row.name} means {_meaning(row)}.")
    console.print_table(
        (">", "Target", "Defaults", ""),
        [
            (str(number), target.model, _defaults(target), _remark(target))
            for number, target in enumerate(row.targets, 1)
        ],
    )


def remove(client: AdminClient, name: str) -> None:
    row = read_row(AliasRow, client.delete(f"/aliases/{in_path(name)}"))
    console.print_line(f"Removed the alias {row.name} of {_models(row)}.")


def show_all(client: AdminClient, *, as_json: bool, wide: bool = False) -> None:
    response = client.get("/aliases")
    if as_json:
        console.print_json(response)
        return
    rows = read_rows(AliasRow, response)
    if not rows:
        console.print_line(NO_ALIASES)
        return
    now_s = time.time()
    console.print_table(
        ("Alias", "Targets", "Selector", "", "Made"),
        [
            (
                row.name,
                _models(row),
                _selector(row),
                _remark_of_all(row),
                wording.ago(row.created_at_s, now_s),
            )
            for row in rows
        ],
        ("Made",),
        wide=wide,
    )


def read_targets(targets: Sequence[str], defaults: Sequence[str]) -> list[dict[str, Any]]:
    """Parses targets for the admin API. `defaults` are `KEY=JSON` for all of them, or
    `TARGET:KEY=JSON` for one; a value that is not JSON is a string."""
    given: dict[str, dict[str, Any]] = {target: {} for target in targets}
    for text in defaults:
        owner = max((each for each in given if text.startswith(f"{each}:")), key=len, default="")
        key, equals, value = (text[len(owner) + 1 :] if owner else text).partition("=")
        if not key or not equals:
            raise CommandFailed(
                f"--default is KEY=JSON or TARGET:KEY=JSON, such as temperature=0.2, not {text!r}."
            )
        for target in [owner] if owner else targets:
            _put(given[target], key, _value(value))
    return [{"model": target, "defaults": given[target]} for target in targets]


def _put(fields: dict[str, Any], key: str, value: Any) -> None:
    outer, dot, inner = key.partition(".")
    if dot and outer == _KWARGS:
        fields.setdefault(outer, {})[inner] = value
    else:
        fields[key] = value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


# --- in words ---


def _meaning(row: AliasRow) -> str:
    if len(row.targets) == 1:
        return row.targets[0].model
    how = {
        "first": "the first that can take a request",
        "warm": "the first that is loaded",
        "spillover": f"the first with fewer than {row.spill_at} requests in flight",
    }
    return f"{how[row.selector]} of {_models(row)}"


def _models(row: AliasRow) -> str:
    return ", ".join(target.model for target in row.targets)


def _selector(row: AliasRow) -> str:
    return f"{row.selector} at {row.spill_at}" if row.spill_at else row.selector


def _defaults(target: TargetRow) -> str:
    return ", ".join(f"{key}={json.dumps(value)}" for key, value in target.defaults.items())


def _remark(target: TargetRow) -> Text:
    if not target.known:
        return Text("no node has it", style="yellow")
    return Text("paid" if target.paid else "")


def _remark_of_all(row: AliasRow) -> Text:
    if not row.known:
        return Text("no node has it", style="yellow")
    return Text("paid" if any(target.paid for target in row.targets) else "")


def _warn(row: AliasRow) -> None:
    missing = [target.model for target in row.targets if not target.known]
    if missing:
        console.print_line(f"No node has reported {' and '.join(missing)} yet.", style="yellow")
    paid = [target.model for target in row.targets if target.paid]
    if paid:
        console.print_line(f"Paid: {' and '.join(paid)}; only keys with a budget may use them.")
