"""Settings files of clients on this machine: what a change would do to each, and the change."""

from __future__ import annotations

import difflib
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from router.commands.client import CommandFailed
from router.commands.connect.documents import NotReadable, find
from router.commands.connect.setup import SettingsFile
from serving.whole_file import written_whole

MOST_BYTES = 8 * 1024**2
_MAC_FOLDERS = {
    "~/.config/io.datasette.llm": "~/Library/Application Support/io.datasette.llm",
}
"""By folder, where macOS has it, if that is elsewhere."""
_PUBLIC = 0o644
_PRIVATE = 0o600


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file, and the text that it is to have."""

    path: Path
    before: str
    after: str
    exists: bool

    @property
    def is_needed(self) -> bool:
        return self.after != self.before

    def diff(self) -> list[str]:
        """Returns the changed lines with `+` and `-`, and some lines around them."""
        before, after = self.before.splitlines(), self.after.splitlines()
        return list(difflib.unified_diff(before, after, n=2, lineterm=""))[2:]


def path_of(file: SettingsFile, variable: Callable[[str], str]) -> Path:
    """Returns the file's path on this machine; `variable` reads the environment. Links are
    followed, since a link to a file among others in a repository has to stay one."""
    folder = variable(file.variable) if file.variable else ""
    if not folder:
        folder = file.folder
        if sys.platform == "darwin":
            folder = _MAC_FOLDERS.get(folder, folder)
    path = Path(folder).expanduser() / file.name
    commented = path.with_suffix(".jsonc")
    return (commented if file.form == "json" and commented.exists() else path).resolve()


def planned(file: SettingsFile, path: Path) -> FileChange:
    """Merges the settings with what is in the file. Raises `CommandFailed`."""
    text = _read(path)
    try:
        return FileChange(path, text or "", file.merged_into(text or ""), text is not None)
    except NotReadable as error:
        raise CommandFailed(
            f"{path} cannot be changed, since {error}. Without --write the settings are shown, to "
            "be added by hand."
        ) from error


def stored_key(file: SettingsFile, path: Path, wanted: str) -> str | None:
    """Returns the text that the file has in the place of the key `wanted`."""
    text = _read(path)
    try:
        return find(file.form, text, file.values, wanted, file.identity) if text else None
    except NotReadable:
        return None


def save(change: FileChange, *, private: bool) -> Path | None:
    """Writes the file, and returns the copy of what was there. A file with a key in it is private
    to its owner from then on. Raises `CommandFailed`."""
    path = change.path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = path.stat().st_mode & 0o777 if change.exists else _PUBLIC
        kept = _copy(path) if change.exists else None
        with written_whole(path, replace=True) as partial:
            partial.write_text(change.after)
            partial.chmod(_PRIVATE if private else mode)
    except OSError as error:
        raise _unusable(path, error) from error
    return kept


def _copy(path: Path) -> Path:
    """Copies the file beside itself, as private as a key in it needs."""
    kept = path.with_name(f"{path.name}.before-{time.strftime('%Y%m%d-%H%M%S')}")
    with written_whole(kept, replace=True) as partial:
        shutil.copyfile(path, partial)
    return kept


def _read(path: Path) -> str | None:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise CommandFailed(f"{path} is too large for a settings file.")
        return path.read_text()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{path} is not text ({error.reason}).") from error
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> CommandFailed:
    return CommandFailed(f"{path} cannot be used ({error.strerror or error}).")
