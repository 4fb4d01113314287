"""`router models` and what stands below it: arguments only."""

from typing import Annotated

import typer

from router.cli.verbs import admin, group, is_given
from router.commands.options import AsJson, Node, Router, Wide

models_app = group("Models, and the disks that they are on.", no_args_is_help=False)


@models_app.callback(invoke_without_command=True)
def models(
    context: typer.Context, router: Router = None, as_json: AsJson = False, wide: Wide = False
) -> None:
    """List the models and where they are; verbs below it bring and delete them."""
    if (verb := context.invoked_subcommand) is not None:
        if as_json or wide or is_given(context, "router"):
            raise typer.BadParameter(f"options go behind the verb: router models {verb} …")
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
            "--node", metavar="NAME", help="Where to; the one with most free disk, if not given."
        ),
    ] = None,
    repo: Annotated[
        str | None,
        typer.Option(metavar="OWNER/NAME", help="On the hub, where its name is another one."),
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
    """Bring a model to a node's disk: from another node, else from the hub."""
    from router.commands import disk, nodes

    if hub_token and from_node and not repo:
        raise typer.BadParameter("a copy --from a node needs no --hub-token")
    asked = {
        "model": model,
        "node": node,
        "repo": repo,
        "revision": revision,
        "hub_token": nodes.read_token(hub_token),
        "from_node": from_node,
    }
    client = admin(router)
    disk.pull(client, asked)


@models_app.command("cancel-pull")
def cancel_pull(model: str, node: Node = None, router: Router = None) -> None:
    """End a pull, and delete what has come."""
    from router.commands import disk

    client = admin(router)
    disk.cancel_pull(client, model, node)


@models_app.command("rm")
def rm(
    model: str,
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="From this node's disk.")],
    yes: Annotated[bool, typer.Option("--yes", help="Without the question.")] = False,
    router: Router = None,
) -> None:
    """Delete a model from a node's disk; it must not be in memory there."""
    from router.commands import disk

    client = admin(router)
    disk.remove(client, model, node, yes=yes)
