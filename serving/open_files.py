"""The limit of open files of this process, sockets included."""

import logging
import os
import resource

_MOST_FILES = 10_240
"""Most files that macOS allows if its hard limit is infinite."""

log = logging.getLogger("mlx_fleet.serving")


def allow_many_files() -> int:
    """Raises the limit as far as the system allows and returns it. Shells on macOS and launchd
    allow 256, and each stream needs at least one file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return open_files()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError) as error:
        log.warning("The limit of open files stays at %d: %s.", soft, error)
    return open_files()


def open_files() -> int:
    """The present limit; if there is none, the number that we would request."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if soft == resource.RLIM_INFINITY else soft


def open_now() -> int:
    """The number of files that this process has open, sockets included."""
    # The listing itself is one of them.
    return len(os.listdir("/dev/fd")) - 1
