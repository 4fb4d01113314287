"""A network namespace without any network but loopback, and what has to be there for it."""

import fcntl
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
_SET_FLAGS = 0x8914
"""SIOCSIFFLAGS of Linux."""
_UP, _RUNNING = 0x1, 0x40
_WAYS = (["unshare", "-n"], ["unshare", "-rn"])
"""Commands that create a namespace: as root, and as a user who may have namespaces of his own."""


def way() -> list[str] | None:
    """The command that runs another one in a namespace of its own; None where there is none."""
    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        return None
    for command in _WAYS:
        if subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return command
    return None


def raise_loopback() -> None:
    """Brings loopback up; needs no program for it. Raises `OSError` outside a namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP | _RUNNING))


def is_cut_off() -> bool:
    """Returns True if loopback is the only network interface."""
    return [name for _, name in socket.if_nameindex()] == ["lo"]
