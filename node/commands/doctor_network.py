"""Checks of macOS's settings for connections to and from this Mac.

Tested with recorded outputs only, not on a Mac.
"""

import errno
import re
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from node.commands.checks import Check, Level
from node.commands.own_name import own_name
from node.hardware import Runner
from node.settings import Settings
from serving.own_machine import is_loopback
from serving.unreached import LOCAL_NETWORK

_FIREWALL = "/usr/libexec/ApplicationFirewall/socketfilterfw"
_DIAL_S = 3.0
_OFF, _BLOCKS_ALL = "0", "2"
"""States of the firewall; 1 is on."""


def check_network(settings: Settings, run: Runner, program: Sequence[Path]) -> Iterator[Check]:
    """All checks of the network. `program`: the paths by which macOS may know the running
    Python."""
    yield check_local_network(run)
    if is_loopback(settings.host):
        sentence = "The agent listens on loopback only, so no other machine connects to this Mac."
        yield Check("firewall", Level.OK, sentence)
        return
    yield check_firewall(run, program)
    yield check_name(own_name(run, mac=True))


def program_paths() -> tuple[Path, ...]:
    """Paths of the running Python. A framework build hands over to an app inside the framework."""
    python = Path(sys.executable).resolve()
    app = python.parent.parent / "Resources" / "Python.app"
    return (python, app / "Contents" / "MacOS" / "Python", app)


def check_local_network(run: Runner, dial: Callable[[str], int] | None = None) -> Check:
    """Checks whether this command may connect to others in the local network, by the gateway.
    `dial` is as the function of that name."""
    name = "local network"
    address = gateway(run)
    if address is not None and (dial or dial_http)(address) == errno.EHOSTUNREACH:
        sentence = (
            f"There is no route from this terminal even to the gateway, {address}: macOS may block "
            "its access to the local network."
        )
        return Check(name, Level.WARN, sentence, LOCAL_NETWORK)
    sentence = (
        "macOS asks once whether a program may connect to others in the local network: the "
        "router, which connects to the agents, and an agent that copies models from a peer. "
        "Incoming connections need no permission."
    )
    advice = f"If `router doctor` finds no route to a node: {LOCAL_NETWORK}"
    return Check(name, Level.OK, sentence, advice)


def gateway(run: Runner) -> str | None:
    """The address of the local network's gateway; None if there is none."""
    found = re.search(r"gateway:\s*(\S+)", run(["route", "-n", "get", "default"]) or "")
    return None if found is None else found[1]


def dial_http(address: str) -> int:
    """The error number of a connection to port 80; 0 if it succeeds, or fails without one. A
    refused connection has reached the machine."""
    try:
        with socket.create_connection((address, 80), timeout=_DIAL_S):
            return 0
    except OSError as error:
        return error.errno or 0


def check_firewall(run: Runner, program: Sequence[Path]) -> Check:
    """Checks whether the firewall lets connections through to the agent."""
    name = "firewall"
    found = re.search(r"State = (\d)", run([_FIREWALL, "--getglobalstate"]) or "")
    if found is None:
        return Check(name, Level.WARN, "macOS does not report whether its firewall is on.")
    if found[1] == _OFF:
        return Check(name, Level.OK, "The firewall is off.")
    blocks_all = "enabled" in (run([_FIREWALL, "--getblockall"]) or "").lower()
    if found[1] == _BLOCKS_ALL or blocks_all:
        sentence = "The firewall blocks all incoming connections, routers too."
        advice = "Switch that off in System Settings > Network > Firewall > Options."
        return Check(name, Level.FAIL, sentence, advice)
    allowed = _is_allowed(run, program)
    if allowed:
        return Check(name, Level.OK, f"The firewall allows connections to {program[0]}.")
    let_through = (
        f"Run `sudo {_FIREWALL} --add {program[0]}` and `sudo {_FIREWALL} --unblockapp "
        f"{program[0]}`, or allow it in System Settings > Network > Firewall > Options."
    )
    if allowed is False:
        sentence = (
            f"The firewall blocks connections to {program[0]}: no router can reach this agent."
        )
        return Check(name, Level.FAIL, sentence, let_through)
    sentence = (
        f"The firewall is on and does not know {program[0]} yet: at the first connection "
        "macOS asks in a window, which nobody sees if the agent was started by ssh, and "
        "blocks connections until someone responds to it."
    )
    return Check(name, Level.WARN, sentence, let_through)


def check_name(name: str) -> Check:
    sentence = f"Other machines reach this Mac as {name}, if the network forwards Bonjour."
    return Check("name", Level.OK, sentence)


def _is_allowed(run: Runner, program: Sequence[Path]) -> bool | None:
    """True if connections are let through; None if the firewall does not know the program."""
    lines = (run([_FIREWALL, "--listapps"]) or "").splitlines()
    for line, verdict in pairwise([*lines, ""]):
        listed = line.partition(" : ")[2].strip()
        if listed and Path(listed) in program:
            return "block" not in verdict.lower()
    # It reports programs that it does not know as "permitted", so only "blocked" is reliable.
    for path in program:
        if "blocked" in (run([_FIREWALL, "--getappblocked", str(path)]) or "").lower():
            return False
    return None
