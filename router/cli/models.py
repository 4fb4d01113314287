"""`router models` and its subcommands: arguments only."""

from typing import Annotated

import typer

from router.cli.arguments import Model, Node
from router.cli.verbs import admin, group, is_given
from router.commands.options import AsJson, Router, Wide

models_app = group("Models on nodes and on their disks.", no_args_is_help=False)


@models_app.callback(invoke_without_command=True)
def models(
    context: typer.Context, router: Router = None, as_json: AsJson = False, wide: Wide = False
) -> None:
    """List the models and their nodes; subcommands pull and delete them."""
    if (verb := context.invoked_subcommand) is not None:
        if as_json or wide or is_given(context, "router"):
            raise typer.BadParameter(f"options go after the verb: router models {verb} …")
        return
    from router.commands import models as command

    client = admin(router)
    command.show(client, as_json=as_json, wide=wide)


@models_app.command("pull")
def pull(
    model: Annotated[str, typer.Argument(help="Its name in the fleet, such as OWNER/NAME.")],
    node: Annotated[
        str | None,
        typer.Option(
            "--node",
            metavar="NAME",
            help="Target node; the one with the most free disk if not given.",
        ),
    ] = None,
    repo: Annotated[
        str | None,
        typer.Option(metavar="OWNER/NAME", help="Repository at the hub, if its name differs."),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit; from the hub.")
    ] = None,
    hub_token: Annotated[
        str, typer.Option("--hub-token", help="The hub's token; - reads it from standard input.")
    ] = "",
    from_node: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="NODE", help="Copy from this node; any that has it, if not given."
        ),
    ] = None,
    router: Router = None,
) -> None:
    """Copy a model to a node's disk, from another node or from the hub."""
    from router.commands import disk, nodes

    if hub_token and from_node and not repo:
        raise typer.BadParameter("a copy --from a node needs no --hub-token")
    body = {
        "model": model,
        "node": node,
        "repo": repo,
        "revision": revision,
        "hub_token": nodes.read_token(hub_token),
        "from_node": from_node,
    }
    client = admin(router)
    disk.pull(client, body)


@models_app.command("cancel-pull")
def cancel_pull(model: Model, node: Node = None, router: Router = None) -> None:
    """Cancel a pull and delete what has arrived."""
    from router.commands import disk

    client = admin(router)
    disk.cancel_pull(client, model, node)


@models_app.command("rm")
def rm(
    model: Model,
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="From this node's disk.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    router: Router = None,
) -> None:
    """Delete a model from a node's disk; it must not be in memory there."""
    from router.commands import disk

    client = admin(router)
    disk.remove(client, model, node, yes=yes)
