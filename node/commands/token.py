"""`node-agent token`: prints the token that a router needs to add this agent."""

from pathlib import Path

from node.app import load_token
from node.commands.agent_client import CommandFailed
from node.commands.configuration import read_settings
from serving.terminal.output import put


def show(home: Path | None) -> None:
    """Prints the token alone, for `--token "$(node-agent token)"`. Raises `CommandFailed` if there
    is none yet, and `StartError`."""
    settings = read_settings({"home": home})
    if not settings.token_file.exists():
        raise CommandFailed(
            f"There is no token in {settings.home} yet: `node-agent serve` makes it at its first "
            "start."
        )
    put(load_token(settings)[0])
