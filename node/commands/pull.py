"""`node-agent pull`."""

import os
from collections.abc import Callable
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

from node.commands.own_store import open_store
from node.models.pull import HubSource, open_hub, pull
from node.protocol.lifecycle import PullCommand
from serving.awake import kept_awake
from serving.terminal.bars import shown_bars
from serving.terminal.interrupt import Stopped
from serving.terminal.output import put


def pull_model(
    home: Path | None, command: PullCommand, hub: Callable[[], HubSource] = open_hub
) -> None:
    """Pulls a model and shows the progress."""
    store = open_store(home, make_home=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    try:
        with kept_awake(), shown_bars(*columns, TransferSpeedColumn()) as bars:
            bar = bars.add_task(command.repo_id, total=None)
            entry = pull(
                command,
                store,
                lambda done, total: bars.update(bar, completed=done, total=total),
                hub,
            )
    except KeyboardInterrupt:
        if not store.is_unfinished(command.model):
            raise
        raise Stopped(
            f"Stopped; {command.model} is not complete. The same command resumes it, and "
            f"`node-agent rm {command.model}` deletes its files."
        ) from None
    put(f"{entry.name} is at {entry.folder}{os.sep}")
