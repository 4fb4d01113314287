"""`router cache` and its subcommand: arguments only."""

from typing import Annotated

import typer

from router.cli.arguments import Node
from router.cli.verbs import admin, group
from router.commands.options import AsJson, Router

cache_app = group("The KV that nodes have stored of earlier prompts.")


@cache_app.callback()
def _cache() -> None:
    """The KV that nodes have stored of earlier prompts."""


@cache_app.command("clear")
def clear(
    node: Node = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Only of this model.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    router: Router = None,
    as_json: AsJson = False,
) -> None:
    """Delete the stored KV of loaded models, in memory and on disk, on every node or on one."""
    from router.commands import cache as command

    client = admin(router)
    command.clear(client, node, model, yes=yes, as_json=as_json)
