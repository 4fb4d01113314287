"""The commands of both programs, for tests and tables of the documentation."""

from collections.abc import Iterator
from typing import Any

import typer

import node.cli
import router.cli.main


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every verb of a command line. `Any`: the click that typer brings has a private name."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, each in inner.items():
        yield from _commands(each, f"{path} {name}")


ALL_COMMANDS = [
    *_commands(typer.main.get_command(router.cli.main.app), "router"),
    *_commands(typer.main.get_command(node.cli.app), "node-agent"),
]


def options_of(command: Any) -> list[Any]:
    """The options of a verb, without `--help`."""
    found = [each for each in command.params if each.opts[0].startswith("--")]
    return [each for each in found if "--help" not in each.opts]
