"""`node-agent pull`."""

import os
from collections.abc import Callable
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from node.commands.configuration import open_store
from node.downloads import HubSource, open_hub, pull
from node.protocol.lifecycle import PullCommand
from serving.awake import kept_awake
from serving.screen import Screen
from serving.terminal import put


def pull_model(
    home: Path | None, command: PullCommand, hub: Callable[[], HubSource] = open_hub
) -> None:
    """Pulls a model and shows how far it is."""
    store = open_store(home, make_home=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    shown = Progress(*columns, TransferSpeedColumn(), console=Screen(), transient=True)
    with kept_awake(), shown as bars:
        bar = bars.add_task(command.repo_id, total=None)
        entry = pull(
            command,
            store,
            lambda done, total: bars.update(bar, completed=done, total=total),
            hub,
        )
    put(f"{entry.name} is at {entry.folder}{os.sep}")
