"""Excludes models and KV from Time Machine's backups: both can be downloaded or computed again, and
stored KV contains what prompts say. Tested by the commands that it runs, not on a Mac."""

import logging
import shlex
from pathlib import Path

from node.hardware import Runner
from node.settings import Settings

logger = logging.getLogger(__name__)


def unsaved_folders(settings: Settings) -> tuple[Path, ...]:
    """Folders that belong in no backup."""
    return settings.models_folder, settings.kv_folder


def is_excluded(folder: Path, run: Runner) -> bool:
    return "[Excluded]" in (run(["tmutil", "isexcluded", str(folder)]) or "")


def exclude_from_backups(settings: Settings, run: Runner) -> None:
    """Excludes the folders, wherever they are moved to, and logs a warning for one that cannot be
    excluded. An excluded folder is skipped."""
    for folder in unsaved_folders(settings):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            logger.warning("%s cannot be made: %s.", folder, error.strerror or error)
            continue
        if is_excluded(folder, run):
            continue
        command = ["tmutil", "addexclusion", str(folder)]
        if run(command) is None:
            logger.warning(
                (
                    "Time Machine may back up %s with its models or KV. Run `%s`, or exclude the "
                    "folder in System Settings > General > Time Machine > Options."
                ),
                *(folder, shlex.join(command)),
            )
