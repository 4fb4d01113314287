"""Checks of the agent's folder and of the disk that it is on."""

import fcntl
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from node.commands.checks import Check, Level
from node.settings import Settings

SAMPLE_BYTES = 64 * 1024**2
PIECE_BYTES = 4 * 1024**2
SPARE_BYTES = 10**9
"""The speed is not measured on a disk with less room."""
SLOW_BYTES_PER_S = 200 * 10**6
_F_NOCACHE = 48
"""macOS's F_NOCACHE, which Python does not name."""


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """Bytes per second of a large file, written through to the disk and read from it."""

    write: float
    read: float


def check_home(settings: Settings) -> Check:
    """Checks who can read and change the agent's folder, and its secrets."""
    home = settings.home
    try:
        found = home.stat()
    except FileNotFoundError:
        return Check("home", Level.OK, f"There is no {home} yet; the first start makes it.")
    except OSError as error:
        sentence = f"{home} cannot be read: {error.strerror}."
        return Check("home", Level.FAIL, sentence, "Give the agent another --home.")
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.getuid():
        sentence = f"{home} belongs to another user (uid {found.st_uid})."
        advice = f"Run `sudo chown -R $(id -un) {home}`, or run the agent as that user."
        return Check("home", Level.FAIL, sentence, advice)
    if open_files := _open_secrets(settings):
        names = ", ".join(file.name for file in open_files)
        advice = f"Run `chmod 600 {' '.join(map(str, open_files))}`, then pair the routers again."
        return Check("home", Level.FAIL, f"Other users can read {names} in {home}.", advice)
    advice = f"Run `chmod 700 {home}`."
    if mode & 0o022:
        sentence = f"Other users can change files in {home} ({mode:o})."
        return Check("home", Level.FAIL, sentence, advice)
    if mode & 0o055:
        sentence = f"Other users can list {home} ({mode:o}); its secrets are closed to them."
        return Check("home", Level.WARN, sentence, advice)
    return Check("home", Level.OK, f"Only you can read {home}.")


def _open_secrets(settings: Settings) -> list[Path]:
    """Files with secrets, besides the token, that others can read or change."""
    files = (settings.tls_file, settings.pairings_file)
    return [file for file in files if file.exists() and file.stat().st_mode & 0o077]


def check_disk_speed(
    settings: Settings, free_bytes: int, measure: Callable[[Path], DiskSpeed] | None = None
) -> Check:
    """Measures the disk with the models, with a file of its own."""
    name = "disk speed"
    folder = next((each for each in (settings.models_folder, settings.home) if each.is_dir()), None)
    if folder is None or free_bytes < SPARE_BYTES:
        why = "there is no folder of the agent yet" if folder is None else "there is no room"
        sentence = f"The speed of the disk is unknown, since {why}."
        return Check(name, Level.UNKNOWN, sentence, "It is measured once there is.")
    try:
        speed = (measure or measure_disk)(folder)
    except OSError as error:
        sentence = f"{folder} cannot be written to: {error.strerror}."
        return Check(name, Level.FAIL, sentence, "Make it writable, or give another --home.")
    sentence = f"The disk writes {speed.write / 1e6:,.0f} MB/s and reads {speed.read / 1e6:,.0f}."
    figures = {"write_bytes_per_s": round(speed.write), "read_bytes_per_s": round(speed.read)}
    where = "Put the agent's --home on an internal SSD."
    if speed.read < SLOW_BYTES_PER_S:
        advice = f"A model of 10 GB takes {10e9 / speed.read:.0f} s to load from it. {where}"
        return Check(name, Level.WARN, sentence, advice, figures)
    if speed.write < SLOW_BYTES_PER_S:
        advice = f"Pulls and stored KV are written slowly. {where}"
        return Check(name, Level.WARN, sentence, advice, figures)
    return Check(name, Level.OK, sentence, figures=figures)


def measure_disk(folder: Path) -> DiskSpeed:
    """Writes a file and reads it back past the system's cache, as far as that is possible. Raises
    `OSError`."""
    piece = os.urandom(PIECE_BYTES)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        if sys.platform == "darwin":
            fcntl.fcntl(file, _F_NOCACHE, 1)
        began_s = time.perf_counter()
        for _ in range(SAMPLE_BYTES // PIECE_BYTES):
            file.write(piece)
        os.fsync(file)
        written_s = time.perf_counter() - began_s
        if sys.platform == "linux":
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        began_s = time.perf_counter()
        while file.read(PIECE_BYTES):
            pass
        read_s = time.perf_counter() - began_s
    return DiskSpeed(SAMPLE_BYTES / max(written_s, 1e-9), SAMPLE_BYTES / max(read_s, 1e-9))
