"""Name and address of this machine in its network."""

import contextlib
import socket

from node.hardware import Runner, is_mac, run_command

_ELSEWHERE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737); nothing is sent to it."""


def own_name(run: Runner = run_command, *, mac: bool | None = None) -> str:
    """The name by which other machines reach this one. On macOS the host name may come from a DHCP
    server or be just "Mac", so the Bonjour name is used, which others can resolve."""
    if is_mac() if mac is None else mac:
        name = run(["scutil", "--get", "LocalHostName"])
        if name:
            return f"{name}.local"
    return socket.gethostname()


def own_ipv4() -> str | None:
    """The address from which this machine connects to others; None without a network."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
        caller.connect(_ELSEWHERE)
        address = str(caller.getsockname()[0])
        return None if address.startswith("127.") or address == "0.0.0.0" else address
    return None
