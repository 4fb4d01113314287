"""Sets up the logs of a process. Levels are set for this product's loggers only: other libraries'
stay at warnings, and what they warn of is logged in the same place and form."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path

from serving.errors import CannotStart
from serving.logs.formats import formatter_of
from serving.logs.options import Form, LogOptions
from serving.logs.recent import RECENT

LOGGERS = ("mlx_fleet", "router", "node", "registry", "serving")
"""The roots of this product's loggers."""
REQUESTS = "mlx_fleet.requests"
"""The lines of `--log-requests`."""
ROTATE_BYTES = 10 * 1024 * 1024
KEPT_FILES = 5
CHILD_LOG = "FLEET_CHILD_LOG"
"""The environment variable by which child processes log like their parent; they write to its
standard error."""


class LogFileUnusable(CannotStart):
    """The log file cannot be opened."""

    def __init__(self, file: Path, error: OSError) -> None:
        super().__init__(f"The log file {file} cannot be written ({error.strerror or error}).")


@contextlib.contextmanager
def logging_to(options: LogOptions) -> Iterator[None]:
    """Logs records to the file, or else to standard error, and in a file what this process and its
    children print to standard error, too: a crash of native code leaves no more than that. Raises
    `LogFileUnusable`."""
    # A closed output must not turn each line into a traceback.
    logging.raiseExceptions = False
    set_level(options)
    if options.file is None:
        with _handled_by(logging.StreamHandler(), options.form):
            yield
    else:
        with _handled_by(_file_handler(options.file), options.form), _stderr_in(options.file):
            yield


def set_level(options: LogOptions) -> None:
    """Applies another level to this process; child processes take it at their start."""
    os.environ[CHILD_LOG] = f"{options.level},{options.form}"
    for name in LOGGERS:
        logging.getLogger(name).setLevel(options.level_number)


def log_like_parent() -> None:
    """Sets up the logs of a child process: at warnings in text if no parent has said otherwise."""
    level, _, form = os.environ.get(CHILD_LOG, "warning,text").partition(",")
    options = LogOptions(level, "json" if form == "json" else "text")
    for name in LOGGERS:
        logging.getLogger(name).setLevel(options.level_number)
    handler = logging.StreamHandler()
    handler.setFormatter(formatter_of(options.form))
    logging.getLogger().handlers = [handler]


def requests_to_stdout(form: Form) -> None:
    """Logs the lines of requests to standard output instead."""
    lines = logging.StreamHandler(sys.stdout)
    lines.setFormatter(formatter_of(form))
    logger = logging.getLogger(REQUESTS)
    logger.propagate = False
    logger.handlers = [lines, RECENT]


@contextlib.contextmanager
def _handled_by(handler: logging.Handler, form: Form) -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers
    for each in (handler, RECENT):
        each.setFormatter(formatter_of(form))
    root.handlers = [handler, RECENT]
    try:
        yield
    finally:
        root.handlers = before
        handler.close()


def _file_handler(file: Path) -> RotatingFileHandler:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(
            file, maxBytes=ROTATE_BYTES, backupCount=KEPT_FILES, encoding="utf-8"
        )
        os.chmod(file, 0o600)
    except OSError as error:
        raise LogFileUnusable(file, error) from error
    handler.rotator = _copy_and_truncate
    return handler


def _copy_and_truncate(source: str, target: str) -> None:
    """Rotates without another file under that name: child processes hold it open, and append."""
    shutil.copyfile(source, target)
    os.chmod(target, 0o600)
    os.truncate(source, 0)


@contextlib.contextmanager
def _stderr_in(file: Path) -> Iterator[None]:
    """Standard error is the file until the end, so that the error of a failed start, which is
    printed after that, is seen in the terminal."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with file.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)
