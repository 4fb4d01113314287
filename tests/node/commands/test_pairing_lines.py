"""Lines that an agent prints for the person who adds it to a router."""

import re
import sys
from pathlib import Path

import pytest

from node.commands import pairing_lines
from node.commands.pairing_lines import announce_pairing, announce_token, own_command
from node.protocol.pairing import Code
from node.server.pairing_codes import PairingDesk
from node.server.pairings import Pairings
from node.settings import Settings, default_home

FINGERPRINT = bytes(range(32))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PairingDesk:
    monkeypatch.setattr(pairing_lines, "own_name", lambda: "studio.local")
    monkeypatch.setattr(pairing_lines, "own_ipv4", lambda: "192.168.1.7")
    return PairingDesk("n1", FINGERPRINT, Pairings(tmp_path / "pairings.json"))


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("0.0.0.0", "studio.local"),
        ("::", "studio.local"),
        ("0:0:0:0:0:0:0:0", "studio.local"),
        ("192.0.2.1", "192.0.2.1"),
    ],
)
def test_the_line_for_the_router_works_as_it_is_printed(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    desk: PairingDesk,
    host: str,
    name: str,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    announce_pairing(Settings(home=default_home(), host=host), 8801, desk)
    lines = capsys.readouterr().out.splitlines()
    found = re.fullmatch(r"  router add-node (\S+) --code (\S+)", lines[1])
    assert found is not None
    assert found[1] == f"https://{name}:8801"
    assert Code.read(found[2]) == desk.codes.begin_try()
    by_address = "If that name does not resolve, use its present address: https://192.168.1.7:8801."
    assert (by_address in lines) == (name == "studio.local")


def test_output_that_is_no_terminal_never_has_a_code(
    capsys: pytest.CaptureFixture[str], desk: PairingDesk
) -> None:
    announce_pairing(Settings(home=Path("/a b"), host="0.0.0.0"), 8801, desk)
    (line,) = capsys.readouterr().out.splitlines()
    assert "--code" not in line
    assert "`node-agent pair --home '/a b'`" in line


async def test_an_agent_with_a_router_announces_nothing(
    capsys: pytest.CaptureFixture[str], desk: PairingDesk
) -> None:
    await desk.pairings.add("r1", "desk")
    announce_pairing(Settings(home=default_home(), host="0.0.0.0"), 8801, desk)
    assert capsys.readouterr().out == ""


def test_a_token_is_announced_for_a_router_of_the_same_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=default_home(), host="127.0.0.1")
    announce_token(settings, 8801, "secret")
    _, line, how = capsys.readouterr().out.splitlines()
    assert line.endswith("router add-node http://127.0.0.1:8801 --token TOKEN")
    assert how == "`node-agent token` prints the token on this machine."
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    announce_token(settings, 8801, "secret")
    assert "--token secret" in capsys.readouterr().out


def test_a_command_names_an_unusual_home() -> None:
    assert own_command("pair", Settings(home=default_home())) == "node-agent pair"
    assert own_command("pair", Settings(home=Path("/a b"))) == "node-agent pair --home '/a b'"
