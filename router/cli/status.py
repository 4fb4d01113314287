"""`router status`, `top` and `ps`: arguments only."""

from typing import Annotated

import typer

from router.cli.verbs import admin
from router.commands.options import AsJson, Router, Wide


def add_status(app: typer.Typer) -> None:
    app.command()(status)
    app.command()(top)
    app.command()(ps)


def status(router: Router = None, as_json: AsJson = False) -> None:
    """Show the fleet on one screen: nodes, loaded models, requests, tokens/s, warnings."""
    from router.commands.status import status as command

    command.show(admin(router), as_json=as_json)


def top(
    interval_s: Annotated[
        float,
        typer.Option("--interval", min=0.2, max=3600, metavar="S", help="Seconds between updates."),
    ] = 1.0,
    router: Router = None,
) -> None:
    """Show the same screen, kept up to date until q or Ctrl-C."""
    from router.commands.status import top as command

    command.run(admin(router), interval_s)


def ps(
    requests: Annotated[
        bool, typer.Option("--requests", help="Show each request that runs or waits, too.")
    ] = False,
    router: Router = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List the models in memory by node, and for how long they stay."""
    from router.commands.status import status as command

    command.show_loaded(admin(router), with_requests=requests, as_json=as_json, wide=wide)
