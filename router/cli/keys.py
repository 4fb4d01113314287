"""`router alias …` and `router keys …`: arguments only."""

from typing import Annotated

import typer

from router.cli.verbs import admin, group
from router.commands.options import AsJson, Router, Wide

alias_app = group("Other names for models.")
keys_app = group("API keys: who may use the fleet.")


@alias_app.command("set")
def alias_set(
    name: Annotated[str, typer.Argument(help="May be a pattern with *, such as claude-*.")],
    targets: Annotated[
        list[str],
        typer.Argument(metavar="TARGET...", help="Models, the best first; also MODEL@NODE."),
    ],
    selector: Annotated[
        str, typer.Option(help="How one is selected: first, warm or spillover.")
    ] = "first",
    spill_at: Annotated[
        int | None,
        typer.Option(
            "--spill-at",
            min=1,
            metavar="N",
            help="For spillover: requests in flight on a target from which on the next is used.",
        ),
    ] = None,
    default: Annotated[
        list[str] | None,
        typer.Option(
            "--default",
            metavar="[TARGET:]KEY=JSON",
            help="Field for requests that lack it, of all targets or of one.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Even if no node has those models yet.")
    ] = False,
    router: Router = None,
    as_json: AsJson = False,
) -> None:
    """Create or change an alias."""
    from router.commands import aliases

    body = {
        "targets": aliases.read_targets(targets, default or ()),
        "selector": selector,
        "spill_at": spill_at,
        "force": force,
    }
    client = admin(router)
    aliases.set_alias(client, name, body, as_json=as_json)


@alias_app.command("show")
def alias_show(name: str, router: Router = None, as_json: AsJson = False) -> None:
    """Show one alias, its targets and what they add to requests."""
    from router.commands import aliases

    client = admin(router)
    aliases.show_one(client, name, as_json=as_json)


@alias_app.command("rm")
def alias_rm(name: str, router: Router = None) -> None:
    """Remove an alias."""
    from router.commands import aliases

    client = admin(router)
    aliases.remove(client, name)


@alias_app.command("list")
def alias_list(router: Router = None, as_json: AsJson = False, wide: Wide = False) -> None:
    """List the aliases."""
    from router.commands import aliases

    client = admin(router)
    aliases.show_all(client, as_json=as_json, wide=wide)


@keys_app.command("create")
def keys_create(
    name: str,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            help="inference and external (the default), or admin. Without external its requests "
            "stay on the fleet's own nodes.",
        ),
    ] = None,
    expires_days: Annotated[
        float | None,
        typer.Option(
            "--expires-days", min=0.001, max=3650, metavar="N", help="Never, if not given."
        ),
    ] = None,
    priority: Annotated[
        str, typer.Option(help="Best class of its requests: interactive, default or batch.")
    ] = "default",
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Share no cached prefixes with other keys.")
    ] = False,
    router: Router = None,
    as_json: AsJson = False,
) -> None:
    """Create a key; it is printed only once."""
    from router.commands import keys

    scopes = [
        part.strip() for given in scope or ["inference", "external"] for part in given.split(",")
    ]
    body = {
        "name": name,
        "scopes": scopes,
        "expires_in_days": expires_days,
        "priority": priority,
        "isolate": isolate,
    }
    client = admin(router)
    keys.create(client, body, as_json=as_json)


@keys_app.command("list")
def keys_list(router: Router = None, as_json: AsJson = False, wide: Wide = False) -> None:
    """List the keys, revoked ones too."""
    from router.commands import keys

    client = admin(router)
    keys.show(client, as_json=as_json, wide=wide)


@keys_app.command("revoke")
def keys_revoke(name: str, router: Router = None) -> None:
    """Revoke a key, by name or id, at once."""
    from router.commands import keys

    client = admin(router)
    keys.revoke(client, name)


# With this setting a negative amount is an invalid amount, and not an unknown option.
@keys_app.command("set-budget", context_settings={"ignore_unknown_options": True})
def keys_set_budget(
    name: str,
    amount: Annotated[
        str, typer.Argument(help="Amount a month, in the currency of the prices, or none.")
    ],
    router: Router = None,
) -> None:
    """Let a key use paid servers, up to an amount a calendar month (UTC)."""
    from router.commands import keys

    budget = keys.read_amount(amount)
    client = admin(router)
    keys.set_budget(client, name, budget)
