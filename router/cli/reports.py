"""`router usage`, `audit` and `logs`: arguments only."""

import time
from typing import Annotated

import typer

from router.cli.arguments import Node
from router.cli.verbs import admin
from router.commands.options import AsJson, Router, Wide

Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Only the last 30m, 24h, 7d, 2w, or from a day: 2026-12-31."),
]


def add_reports(app: typer.Typer) -> None:
    app.command()(usage)
    app.command()(audit)
    app.command()(logs)


def usage(
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP",
            help="Sums by key, team, model, node or day; key and model, if not given. Repeat for "
            "more.",
        ),
    ] = None,
    since: Since = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only before that time or day (UTC).")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
    router: Router = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Show requests and tokens by key and model, or by team, node or day."""
    from router.commands.access import reports

    if as_csv and as_json:
        raise typer.BadParameter("only one of --csv and --json can be printed")
    groups, now_s = reports.read_groups(by), time.time()
    period = reports.read_time(since, now_s), reports.read_time(until, now_s)
    form: reports.Form = "csv" if as_csv else "json" if as_json else "table"
    client = admin(router)
    reports.show_usage(client, groups, period, form, wide=wide)


def audit(
    since: Since = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many entries.")] = 50,
    router: Router = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Show who changed what, when and from where, and who was refused, newest first."""
    from router.commands.access import reports

    since_s = reports.read_time(since, time.time())
    client = admin(router)
    reports.show_audit(client, limit, since_s, as_json=as_json, wide=wide)


def logs(
    node: Node = None,
    own: Annotated[bool, typer.Option("--own", help="Only the router's own.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=10_000, help="How many of each log.")
    ] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")
    ] = False,
    router: Router = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest lines of the logs of router and agents."""
    from router.commands import logs as command

    if node and own:
        raise typer.BadParameter("--own is the router's log, --node that of a node")
    client = admin(router)
    command.show(client, node, lines, own=own, follow=follow, as_json=as_json)
