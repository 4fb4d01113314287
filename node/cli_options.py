"""Options that several verbs of `node-agent` have."""

from pathlib import Path
from typing import Annotated

import typer

from node.settings import Settings
from serving.setting import help_of

Home = Annotated[Path | None, typer.Option(help=help_of(Settings, "home"), metavar="FOLDER")]
Url = Annotated[str | None, typer.Option(help="The agent's address, if not this machine's.")]
Token = Annotated[
    str | None,
    typer.Option(envvar="MLX_FLEET_NODE_TOKEN", help="That agent's token.", show_envvar=True),
]
Json = Annotated[bool, typer.Option("--json", help="JSON, for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def is_spare(context: typer.Context, name: str) -> bool:
    """True if that option comes from the environment, where it is more likely meant for another
    server."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "ENVIRONMENT"
