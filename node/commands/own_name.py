"""What this machine is called on its network."""

import contextlib
import socket

from node.hardware import Runner, is_mac, run_command

_ELSEWHERE = ("192.0.2.1", 9)
"""An address of documentation (RFC 5737): nothing is sent to it."""


def own_name(run: Runner = run_command, *, mac: bool | None = None) -> str:
    """The name by which other machines reach this one. The name that macOS has as a host may be
    one that a DHCP server gave, or just "Mac"; its Bonjour name is what others resolve."""
    if is_mac() if mac is None else mac:
        name = run(["scutil", "--get", "LocalHostName"])
        if name:
            return f"{name}.local"
    return socket.gethostname()


def own_ipv4() -> str | None:
    """The address from which this machine would call others; None where it has no network."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
        caller.connect(_ELSEWHERE)
        address = str(caller.getsockname()[0])
        return None if address.startswith("127.") or address == "0.0.0.0" else address
    return None
