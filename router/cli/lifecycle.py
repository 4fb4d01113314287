"""The verbs of `router` by which nodes rest and models stay, come and go: arguments only."""

from typing import Annotated

import typer

from router.cli.verbs import admin, group
from router.commands.options import AsJson, Node, Router, Wide

schedule_app = group("When models are loaded and unloaded.")

Deadline = Annotated[
    str | None,
    typer.Option(
        "--deadline",
        metavar="TIME",
        help="How long to wait: 90s, 10m, 2h; until done, if not given.",
    ),
]
Cut = Annotated[bool, typer.Option("--cut", help="End what is in flight at the deadline.")]


def cordon(name: str, router: Router = None, as_json: AsJson = False) -> None:
    """Send a node no new requests; those that it serves go on."""
    from router.commands import nodes as command

    client = admin(router)
    command.cordon(client, name, as_json=as_json)


def uncordon(name: str, router: Router = None, as_json: AsJson = False) -> None:
    """Send a node requests again."""
    from router.commands import nodes as command

    client = admin(router)
    command.uncordon(client, name, as_json=as_json)


def drain(
    name: str,
    deadline: Deadline = None,
    cut: Cut = False,
    router: Router = None,
    as_json: AsJson = False,
) -> None:
    """Cordon a node, and wait until it serves no requests."""
    from router.commands import drain as command

    client = admin(router)
    command.drain(client, command.asked(name, deadline, cut=cut), as_json=as_json)


def maintenance(
    name: str,
    off: Annotated[
        bool, typer.Option("--off", help="End it: the node takes requests again.")
    ] = False,
    deadline: Deadline = None,
    cut: Cut = False,
    router: Router = None,
    as_json: AsJson = False,
) -> None:
    """Drain a node and unload its models; nothing is loaded there until --off."""
    from router.commands import drain as command
    from router.commands import nodes

    if off and (cut or deadline is not None):
        raise typer.BadParameter("--off ends it at once: leave --deadline and --cut out")
    client = admin(router)
    if off:
        nodes.uncordon(client, name, as_json=as_json)
    else:
        command.maintain(client, command.asked(name, deadline, cut=cut), as_json=as_json)


def pin(model: str, node: Node = None, router: Router = None) -> None:
    """Keep a model in memory, on every node that has it if none is named."""
    from router.commands import lifecycle as command

    client = admin(router)
    command.pin(client, model, node, pinned=True)


def unpin(model: str, node: Node = None, router: Router = None) -> None:
    """Take back `pin`: that for the node, or that for every node if none is named."""
    from router.commands import lifecycle as command

    client = admin(router)
    command.pin(client, model, node, pinned=False)


def keep_alive(
    model: str,
    text: Annotated[str, typer.Argument(metavar="TIME", help="30m, 2h, forever or default.")],
    node: Node = None,
    router: Router = None,
) -> None:
    """Say how long a model may be idle before it is unloaded."""
    from router.commands import lifecycle as command

    client = admin(router)
    command.keep_alive(client, model, text, node)


def policies(router: Router = None, as_json: AsJson = False) -> None:
    """List what is pinned, and what is kept for how long."""
    from router.commands import lifecycle as command

    client = admin(router)
    command.policies(client, as_json=as_json)


def add_to(app: typer.Typer) -> None:
    for verb in (cordon, uncordon, drain, maintenance, pin, unpin, policies):
        app.command()(verb)
    app.command("keep-alive")(keep_alive)
    app.add_typer(schedule_app, name="schedule")


# --- schedules ---


@schedule_app.command("add")
def add(
    model: Annotated[str, typer.Option("--model", help="Which model.")],
    node: Annotated[
        str | None, typer.Option("--node", metavar="NAME", help="The best one, if not given.")
    ] = None,
    load: Annotated[
        str | None, typer.Option(metavar="CRON", help="When it is loaded: '0 8 * * 1-5'.")
    ] = None,
    unload: Annotated[
        str | None, typer.Option(metavar="CRON", help="When it is unloaded: '0 20 * * 1-5'.")
    ] = None,
    timezone: Annotated[str, typer.Option(help="Of both: Europe/Berlin.")] = "UTC",
    router: Router = None,
    as_json: AsJson = False,
) -> None:
    """Load and unload a model at certain times."""
    from router.commands import lifecycle as command
    from router.lifecycle.crons import NoCron, NoTimezone, trigger_of

    if load is None and unload is None:
        raise typer.BadParameter("give --load, --unload or both")
    for option, line in (("--load", load), ("--unload", unload)):
        try:
            if line is not None:
                trigger_of(line, timezone)
        except NoCron as error:
            hint = "--timezone" if isinstance(error, NoTimezone) else option
            raise typer.BadParameter(str(error), param_hint=hint) from error
    asked = {"model": model, "node": node, "load": load, "unload": unload, "timezone": timezone}
    client = admin(router)
    command.add_schedule(client, asked, as_json=as_json)


@schedule_app.command("list")
def list_schedules(router: Router = None, as_json: AsJson = False, wide: Wide = False) -> None:
    """List the schedules, when each is due next, and what is not done yet."""
    from router.commands import lifecycle as command

    client = admin(router)
    command.list_schedules(client, as_json=as_json, wide=wide)


@schedule_app.command("rm")
def rm(
    schedule_id: Annotated[str, typer.Argument(metavar="ID", help="As `schedule list` shows it.")],
    router: Router = None,
) -> None:
    """Forget a schedule."""
    from router.commands import lifecycle as command

    client = admin(router)
    command.remove_schedule(client, schedule_id)
