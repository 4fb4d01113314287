"""The option `--version` of every command line."""

from typing import Any

import typer

from serving.terminal.output import put


def version_option(command: str) -> Any:
    """The option for an argument of type bool. It prints the version and exits."""

    def show(is_given: bool) -> None:
        if is_given:
            from serving.version import own_version

            put(f"{command} {own_version()}")
            raise typer.Exit

    return typer.Option("--version", callback=show, is_eager=True, help="The version.")
