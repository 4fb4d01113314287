"""`node-agent pull`."""

import os
from pathlib import Path

from huggingface_hub.utils.tqdm import disable_progress_bars
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from node.commands.configuration import open_store
from node.downloads import Hub, PullRequest, pull


def pull_model(home: Path | None, request: PullRequest, hub: Hub | None = None) -> None:
    """Pulls a model and shows how far it is."""
    store = open_store(home, make_home=True)
    # One bar for all files instead of the library's own, one for each.
    disable_progress_bars()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), transient=True) as bars:
        bar = bars.add_task(request.repo_id, total=None)
        entry = pull(
            request,
            store,
            lambda done, total: bars.update(bar, completed=done, total=total),
            hub or Hub(),
        )
    print(f"{entry.name} is at {entry.folder}{os.sep}")
