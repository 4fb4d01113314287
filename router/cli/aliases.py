"""`router alias …`: arguments only."""

from typing import Annotated

import typer

from router.cli.arguments import AliasName
from router.cli.verbs import admin, group
from router.commands.options import AsJson, Router, Wide

alias_app = group("Other names for models.")


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
def alias_show(name: AliasName, router: Router = None, as_json: AsJson = False) -> None:
    """Show one alias, its targets and what they add to requests."""
    from router.commands import aliases

    client = admin(router)
    aliases.show_one(client, name, as_json=as_json)


@alias_app.command("rm")
def alias_rm(name: AliasName, router: Router = None) -> None:
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
