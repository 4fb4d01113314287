"""Keeps models and KV out of Time Machine's backups: models can be had again, and KV is made anew,
up to its daily limit, of what is in prompts. Tested by the commands that it gives, not on a Mac."""

import logging
import shlex
from pathlib import Path

from node.hardware import Runner
from node.settings import Settings

logger = logging.getLogger(__name__)


def unsaved_folders(settings: Settings) -> tuple[Path, ...]:
    """What is to be in no backup."""
    return settings.models_folder, settings.kv_folder


def is_excluded(folder: Path, run: Runner) -> bool:
    return "[Excluded]" in (run(["tmutil", "isexcluded", str(folder)]) or "")


def exclude_from_backups(settings: Settings, run: Runner) -> None:
    """Marks the folders, which stay so wherever they are moved to; warns of those that cannot be
    marked. Once it is done it is not done again."""
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
                "Time Machine may back up %s, with models or what prompts say. Run `%s`, or add it "
                "to what is left out, in System Settings > General > Time Machine > Options.",
                *(folder, shlex.join(command)),
            )
