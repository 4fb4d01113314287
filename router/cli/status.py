"""`router status`, `top`, `ps` and `bench`: arguments only."""

from typing import Annotated

import typer

from router.cli.arguments import Model
from router.cli.verbs import admin
from router.commands.options import AsJson, Router, Wide


def add_status(app: typer.Typer) -> None:
    app.command()(status)
    app.command()(top)
    app.command()(ps)
    app.command()(bench)


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


def bench(
    model: Model,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=256, metavar="N", help="Requests at once.")
    ] = 4,
    requests: Annotated[
        int, typer.Option("--requests", min=1, max=100_000, metavar="N", help="Requests in all.")
    ] = 16,
    duration: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Send requests for so long instead: 90s, 10m."),
    ] = None,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="N", help="Tokens of a prompt, about.")
    ] = 500,
    output_tokens: Annotated[
        int, typer.Option(min=1, max=100_000, metavar="N", help="Most tokens of a response.")
    ] = 128,
    router: Router = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Measure the fleet under load: time to first token and tokens/s, by node."""
    from router.commands import durations
    from router.commands.client import find_router
    from router.commands.status import bench as command

    duration_s = None if duration is None else durations.read_s(duration)
    load = command.Load(model, concurrency, requests, duration_s, prompt_tokens, output_tokens)
    if not command.run(find_router(router), load, as_json=as_json, wide=wide):
        raise typer.Exit(1)
