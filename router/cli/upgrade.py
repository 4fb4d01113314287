"""`router upgrade-plan` and `upgrade-nodes`: arguments only."""

from typing import Annotated

import typer

from router.cli.verbs import admin
from router.commands.options import AsJson, Router

Back = Annotated[
    str, typer.Option("--back", metavar="TIME", help="How long to wait for the agent's return.")
]


def add_upgrade(app: typer.Typer) -> None:
    app.command("upgrade-plan")(upgrade_plan)
    app.command("upgrade-nodes", context_settings={"allow_interspersed_args": False})(upgrade_nodes)


def upgrade_plan(
    version: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="VERSION", help="The version; the newest in the fleet if not given."
        ),
    ] = None,
    router: Router = None,
    as_json: AsJson = False,
) -> None:
    """Show in which order to upgrade router and nodes, with the commands of each."""
    from router.commands.upgrade import show as command

    command.run(admin(router), version, as_json=as_json)


def upgrade_nodes(
    run: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND…",
            help="Upgrades and restarts one node. {node} is its name, {host} its address.",
        ),
    ],
    node: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="NAME", help="Only this node. Repeat for more."),
    ] = None,
    deadline: Annotated[
        str,
        typer.Option("--deadline", metavar="TIME", help="How long to wait for a node's requests."),
    ] = "10m",
    back: Back = "10m",
    router: Router = None,
) -> None:
    """Drain, upgrade and restart one node after another, while the others serve."""
    from router.commands import durations
    from router.commands.upgrade import rolling as command

    chosen = command.Rolling(node or (), run, durations.read_s(deadline), durations.read_s(back))
    command.run(admin(router), chosen)
