"""Tests the reading of macOS's reports of its firewall and the local network, by recorded
answers."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from node.commands.checks import Level
from node.commands.doctor_network import (
    check_firewall,
    check_local_network,
    check_network,
    dial_http,
    program_paths,
)
from node.settings import Settings

PYTHON = Path(
    "/opt/homebrew/Cellar/python@3.13/3.13.9/Frameworks/Python.framework/Versions/3.13/bin/python3.13"
)
APP = PYTHON.parents[1] / "Resources" / "Python.app"
PROGRAM = (PYTHON, APP / "Contents" / "MacOS" / "Python", APP)
ON = "Firewall is enabled. (State = 1)"
NOT_ALL = "Firewall has block all state set to disabled."
LISTED = """ALF: total number of apps = 2

1 : /usr/libexec/rapportd
             (Allow incoming connections)

2 : {path}
             ({verdict} incoming connections)
"""


class Mac:
    """Answers as `socketfilterfw` does."""

    def __init__(self, **answers: str | None) -> None:
        self.answers = {
            "getglobalstate": ON,
            "getblockall": NOT_ALL,
            "listapps": "ALF: total number of apps = 0",
            "getappblocked": "Incoming connection to the application is permitted",
            **answers,
        }

    def __call__(self, command: Sequence[str]) -> str | None:
        if command[0] == "scutil":
            return "Annas-Mac"
        if command[0] == "route":
            return self.answers.get("route")
        assert command[0] == "/usr/libexec/ApplicationFirewall/socketfilterfw"
        return self.answers[command[1].removeprefix("--")]


@pytest.mark.parametrize(
    ("mac", "level", "words"),
    [
        (Mac(getglobalstate="Firewall is disabled. (State = 0)"), Level.OK, "is off"),
        (Mac(getglobalstate="Firewall is enabled. (State = 2)"), Level.FAIL, "blocks all"),
        (Mac(getblockall="Firewall has block all state set to enabled."), Level.FAIL, "blocks all"),
        (Mac(getblockall="Block all ENABLED!"), Level.FAIL, "blocks all"),
        (Mac(getglobalstate=None), Level.WARN, "does not report"),
        (
            Mac(listapps=LISTED.format(path=PYTHON, verdict="Allow")),
            Level.OK,
            "allows connections to",
        ),
        (Mac(listapps=LISTED.format(path=APP, verdict="Allow")), Level.OK, "allows connections to"),
        (Mac(listapps=LISTED.format(path=APP, verdict="Block")), Level.FAIL, "no router can reach"),
        (Mac(listapps=LISTED.format(path="/bin/other", verdict="Allow")), Level.WARN, "by ssh"),
        (Mac(listapps=None), Level.WARN, "by ssh"),
        (
            Mac(getappblocked="Incoming connection to the application is blocked"),
            Level.FAIL,
            "no router can reach",
        ),
    ],
)
def test_the_firewall_is_read(mac: Mac, level: Level, words: str) -> None:
    check = check_firewall(mac, PROGRAM)
    assert check.level is level
    assert words in check.sentence
    assert bool(check.advice) is ("blocks" in check.sentence or "by ssh" in check.sentence)


def test_the_advice_names_this_python() -> None:
    assert f"--unblockapp {PYTHON}`" in check_firewall(Mac(), PROGRAM).advice


def test_on_loopback_no_firewall_matters(tmp_path: Path) -> None:
    checks = list(check_network(Settings(home=tmp_path), Mac(), PROGRAM))
    assert [check.name for check in checks] == ["local network", "firewall"]
    assert {check.level for check in checks} == {Level.OK}


def test_beyond_loopback_the_name_by_which_others_reach_this_mac_is_reported(
    tmp_path: Path,
) -> None:
    settings = Settings(home=tmp_path, host="0.0.0.0")
    checks = {check.name: check for check in check_network(settings, Mac(), PROGRAM)}
    assert "Annas-Mac.local" in checks["name"].sentence
    assert checks["firewall"].level is Level.WARN


def test_the_local_network_permission_is_needed_by_the_process_that_connects(
    tmp_path: Path,
) -> None:
    local, _ = check_network(Settings(home=tmp_path), Mac(), PROGRAM)
    assert "the router, which connects to the agents" in local.sentence
    assert "Privacy & Security > Local Network" in local.advice


@pytest.mark.parametrize(
    ("number", "level"),
    [(errno.EHOSTUNREACH, Level.WARN), (errno.ECONNREFUSED, Level.OK), (0, Level.OK)],
)
def test_a_terminal_without_a_route_to_the_gateway_may_lack_the_permission(
    number: int, level: Level
) -> None:
    dialed: list[str] = []

    def dial(address: str) -> int:
        dialed.append(address)
        return number

    mac = Mac(route="   route to: default\n    gateway: 192.168.1.1\n  interface: en0\n")
    check = check_local_network(mac, dial)
    assert (check.level, dialed) == (level, ["192.168.1.1"])
    assert "Privacy & Security > Local Network" in check.advice
    assert ("192.168.1.1" in check.sentence) is (level is Level.WARN)


def test_a_dial_reports_the_system_s_error_number() -> None:
    # Nothing listens at port 80 of this address.
    assert dial_http("127.0.0.77") == errno.ECONNREFUSED


def test_this_python_is_known_by_its_real_path() -> None:
    python, app, bundle = program_paths()
    assert python.is_absolute() and not python.is_symlink()
    assert app.parent.parent.parent == bundle
