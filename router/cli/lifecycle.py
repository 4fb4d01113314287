"""Verbs of `router` for draining nodes and for the residency of models: arguments only."""

from typing import Annotated

import typer

from router.cli.arguments import Model, Node, NodeName
from router.cli.verbs import admin, group
from router.commands.options import AsJson, Router, Wide

schedule_app = group("Schedules that load and unload models.")

Deadline = Annotated[
    str | None,
    typer.Option(
        "--deadline",
        metavar="TIME",
        help="How long to wait: 90s, 2m30s, 2h; until done, if not given.",
    ),
]
Cut = Annotated[bool, typer.Option("--cut", help="Cancel requests in flight at the deadline.")]


def cordon(name: NodeName, router: Router = None, as_json: AsJson = False) -> None:
    """Send a node no new requests; its open requests continue."""
    from router.commands import nodes as command

    client = admin(router)
    command.cordon(client, name, as_json=as_json)


def uncordon(name: NodeName, router: Router = None, as_json: AsJson = False) -> None:
    """Send a node requests again after `cordon` or `maintenance`."""
    from router.commands import nodes as command

    client = admin(router)
    command.uncordon(client, name, as_json=as_json)


def drain(
    name: NodeName,
    deadline: Deadline = None,
    cut: Cut = False,
    router: Router = None,
    as_json: AsJson = False,
) -> None:
    """Cordon a node, and wait until it serves no requests."""
    from router.commands import drain as command

    client = admin(router)
    command.drain(client, command.read_options(name, deadline, cut=cut), as_json=as_json)


def wake(
    name: str,
    on: Annotated[
        bool | None,
        typer.Option("--on/--off", help="Wake nothing now; requests may wake the node, or not."),
    ] = None,
    mac: Annotated[
        str | None,
        typer.Option(
            metavar="MAC", help="Its MAC address, in place of those that its agent reports."
        ),
    ] = None,
    router: Router = None,
    as_json: AsJson = False,
) -> None:
    """Wake a node that sleeps, and wait until it responds."""
    from router.commands import wake as command

    client = admin(router)
    if on is None and mac is None:
        command.wake(client, name, as_json=as_json)
    else:
        command.set_waking(client, name, mac, wakes=on, as_json=as_json)


def maintenance(
    name: NodeName,
    off: Annotated[
        bool, typer.Option("--off", help="End maintenance: the node accepts requests again.")
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
        command.maintain(client, command.read_options(name, deadline, cut=cut), as_json=as_json)


def pin(model: Model, node: Node = None, router: Router = None) -> None:
    """Keep a model in memory, on every node that has it if none is named."""
    from router.commands import lifecycle as command

    client = admin(router)
    command.pin(client, model, node, pinned=True)


def unpin(model: Model, node: Node = None, router: Router = None) -> None:
    """Undo `pin` for the node, or for every node if none is named."""
    from router.commands import lifecycle as command

    client = admin(router)
    command.pin(client, model, node, pinned=False)


def keep_alive(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TIME", help="30m, 2h, forever or default.")],
    node: Node = None,
    router: Router = None,
) -> None:
    """Set how long a model may be idle before it is unloaded."""
    from router.commands import lifecycle as command

    client = admin(router)
    command.keep_alive(client, model, text, node)


def policies(router: Router = None, as_json: AsJson = False) -> None:
    """List pins and keep-alives."""
    from router.commands import lifecycle as command

    client = admin(router)
    command.policies(client, as_json=as_json)


def add_to(app: typer.Typer) -> None:
    for verb in (cordon, uncordon, drain, maintenance, wake, pin, unpin, policies):
        app.command()(verb)
    app.command("keep-alive")(keep_alive)
    app.add_typer(schedule_app, name="schedule")


# --- schedules ---


@schedule_app.command("add")
def add(
    model: Annotated[str, typer.Option("--model", help="The model.")],
    node: Annotated[
        str | None, typer.Option("--node", metavar="NAME", help="The best one, if not given.")
    ] = None,
    load: Annotated[
        str | None, typer.Option(metavar="CRON", help="When it is loaded: '0 8 * * 1-5'.")
    ] = None,
    unload: Annotated[
        str | None, typer.Option(metavar="CRON", help="When it is unloaded: '0 20 * * 1-5'.")
    ] = None,
    timezone: Annotated[str, typer.Option(help="Time zone of both: Europe/Berlin.")] = "UTC",
    router: Router = None,
    as_json: AsJson = False,
) -> None:
    """Load and unload a model at certain times."""
    from router.commands import lifecycle as command
    from router.lifecycle.crons import InvalidCron, UnknownTimezone, trigger_of

    if load is None and unload is None:
        raise typer.BadParameter("give --load, --unload or both")
    for option, line in (("--load", load), ("--unload", unload)):
        try:
            if line is not None:
                trigger_of(line, timezone)
        except InvalidCron as error:
            hint = "--timezone" if isinstance(error, UnknownTimezone) else option
            raise typer.BadParameter(str(error), param_hint=hint) from error
    body = {"model": model, "node": node, "load": load, "unload": unload, "timezone": timezone}
    client = admin(router)
    command.add_schedule(client, body, as_json=as_json)


@schedule_app.command("list")
def list_schedules(router: Router = None, as_json: AsJson = False, wide: Wide = False) -> None:
    """List the schedules, their next due times, and pending actions."""
    from router.commands import lifecycle as command

    client = admin(router)
    command.list_schedules(client, as_json=as_json, wide=wide)


@schedule_app.command("rm")
def rm(
    schedule_id: Annotated[str, typer.Argument(metavar="ID", help="As `schedule list` shows it.")],
    router: Router = None,
) -> None:
    """Remove a schedule."""
    from router.commands import lifecycle as command

    client = admin(router)
    command.remove_schedule(client, schedule_id)
