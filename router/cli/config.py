"""`router config …` and `router reload`: arguments only."""

from typing import Annotated, Any

import typer

from router.cli.verbs import admin, group
from router.commands.options import AsJson, Router
from router.settings import Settings, sources
from serving.terminal.setting_options import with_settings

config_app = group("The file with the router's settings.")


def add_to(app: typer.Typer) -> None:
    app.add_typer(config_app, name="config")
    app.command()(reload)


@config_app.command()
@with_settings(Settings, only=("home",))
def init(
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    **given: Any,
) -> None:
    """Write a file with every setting, its meaning and its default."""
    from router.commands.home import config as command

    command.init(sources(given), force=force)


@config_app.command()
@with_settings(Settings, only=("home",))
def check(**given: Any) -> None:
    """Name every mistake in the file and in the environment."""
    from router.commands.home import config as command

    if not command.check(sources(given)):
        raise typer.Exit(1)


@config_app.command()
@with_settings(Settings)
def show(*, as_json: AsJson = False, **given: Any) -> None:
    """Show each setting, and where it is set."""
    from router.commands.home import config as command

    if not command.show(sources(given), as_json=as_json):
        raise typer.Exit(1)


def reload(router: Router = None, as_json: AsJson = False) -> None:
    """Let the router read its settings again; open requests go on. SIGHUP does the same."""
    from router.commands.home import config as command

    client = admin(router)
    command.reload(client, as_json=as_json)
