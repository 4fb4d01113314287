"""The plists of docs/guides/macos.md: launchd and our own commands take them as they stand."""

import plistlib
import re
from pathlib import Path
from typing import Any

import pytest
import typer

import node.cli
import router.cli.main
from node.app import STOP_GRACE_S
from node.commands.serve import FLUSH_S, GRACE_S, LAST_RESORT_S
from tests.doc_tables import DOCS

TEXT = (DOCS / "guides/macos.md").read_text()
PLISTS: list[dict[str, Any]] = [
    plistlib.loads(block.encode())
    for block in re.findall(r"^```xml\n(.*?)^```$", TEXT, re.M | re.S)
]
COMMANDS: dict[str, Any] = {
    "node-agent": typer.main.get_command(node.cli.app),
    "router": typer.main.get_command(router.cli.main.app),
}
AGENT_ENDS_S = GRACE_S + STOP_GRACE_S + FLUSH_S + LAST_RESORT_S


def test_there_is_one_for_each_of_the_two() -> None:
    assert [plist["Label"] for plist in PLISTS] == ["mlx-fleet.node-agent", "mlx-fleet.router"]
    for plist in PLISTS:
        assert f"/{plist['Label']}.plist" in TEXT


@pytest.mark.parametrize("plist", PLISTS, ids=lambda plist: plist["Label"])
def test_its_command_is_one_of_ours_with_options_that_it_has(plist: dict[str, Any]) -> None:
    program, verb, *options = plist["ProgramArguments"]
    command = COMMANDS[Path(program).name].commands[verb]
    assert command.make_context(verb, options).params


@pytest.mark.parametrize("plist", PLISTS, ids=lambda plist: plist["Label"])
def test_launchd_neither_slows_it_down_nor_kills_it_early(plist: dict[str, Any]) -> None:
    assert plist["ProcessType"] == "Interactive"
    assert plist["ExitTimeOut"] > AGENT_ENDS_S
    assert plist["RunAtLoad"] is True
    # A failure is started again, an end that was asked for is not.
    assert plist["KeepAlive"] == {"SuccessfulExit": False}


@pytest.mark.parametrize("plist", PLISTS, ids=lambda plist: plist["Label"])
def test_every_path_is_whole(plist: dict[str, Any]) -> None:
    places = [plist["ProgramArguments"][0], plist["StandardOutPath"], plist["StandardErrorPath"]]
    assert all(Path(place).is_absolute() for place in places)
