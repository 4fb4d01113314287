"""Verbs about what is in the router's folder: arguments only."""

from pathlib import Path
from typing import Annotated, Any

import typer

from router.cli.verbs import is_given
from router.commands.options import AsJson, Router
from router.settings import Settings, read_settings
from serving.terminal.setting_options import with_settings

_REGISTRY = ("home", "registry_url")


def add_to(app: typer.Typer) -> None:
    app.command()(migrate)
    app.command()(backup)
    app.command()(restore)


@with_settings(Settings, only=_REGISTRY)
def migrate(**given: Any) -> None:
    """Update the registry to this version of mlx-fleet, with the router stopped."""
    from router.commands.home import migrate as command

    command.run(read_settings(given))


@with_settings(Settings, only=_REGISTRY)
def backup(
    *,
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The backup; not made if it exists.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    allow_plain_http: Annotated[
        bool,
        typer.Option(
            "--allow-plain-http", help="Plain HTTP from another machine: it shows credentials."
        ),
    ] = False,
    router: Router = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Copy the registry to a file, while the router runs or not.

    Without --home and --registry-url the running router makes the copy."""
    from router.commands.client import AdminClient, find_router
    from router.commands.home import backup as command

    of_file = any(is_given(context, name) for name in _REGISTRY)
    chosen = command.BackupOptions(file, force, allow_plain_http, of_file)
    client = AdminClient(find_router(router))
    command.run(client, read_settings(given), chosen, as_json=as_json)


@with_settings(Settings, only=_REGISTRY)
def restore(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of `router backup`.")],
    **given: Any,
) -> None:
    """Put a backup in the registry's place, with the router stopped."""
    from router.commands.home import restore as command

    command.run(read_settings(given), file)
