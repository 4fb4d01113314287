"""Units of a user's systemd, which is played."""

from pathlib import Path

import pytest

from serving.errors import CannotStart
from serving.services.description import User
from serving.services.installation import install, uninstall
from serving.services.machine import Ran
from serving.services.systemd_place import UserUnit
from tests.serving.services.stands import Commands, service_in

UNIT = "mlx-fleet.router.service"


def silent(_line: str) -> None:
    pass


def unit_of(commands: Commands, home: Path, *, at_boot: bool = False) -> UserUnit:
    return UserUnit("mlx-fleet.router", commands.machine(User("anna", 501, home)), at_boot)


def test_a_unit_is_enabled_and_started(tmp_path: Path) -> None:
    commands = Commands()
    unit = unit_of(commands, tmp_path)
    service = service_in(tmp_path / "r")
    install(service, [unit], unit.machine, silent)
    file = tmp_path / ".config" / "systemd" / "user" / UNIT
    assert file.read_text() == unit.render(service)
    assert commands.ran == [
        "systemctl --user show --property=Version",
        "systemctl --user daemon-reload",
        f"systemctl --user enable {UNIT}",
        f"systemctl --user reset-failed {UNIT}",
        f"systemctl --user restart {UNIT}",
    ]


def test_no_systemd_of_the_user_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    refusal = Ran(1, "Failed to connect to bus: No medium found\n")
    unit = unit_of(Commands({"systemctl": lambda _command: refusal}), tmp_path)
    with pytest.raises(CannotStart, match=r"cannot be used here \(Failed to connect .* by ssh"):
        install(service_in(tmp_path / "r"), [unit], unit.machine, silent)
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_fails_is_named(tmp_path: Path) -> None:
    plays = {"systemctl --user enable": lambda _command: Ran(1, "one\nRefused.\n")}
    unit = unit_of(Commands(plays), tmp_path)
    with pytest.raises(CannotStart, match=rf"`systemctl --user enable {UNIT}` says: Refused\."):
        unit.load(silent)


def test_with_the_machine_it_starts_by_lingering(tmp_path: Path) -> None:
    commands = Commands({"loginctl show-user": lambda _command: Ran(0, "Linger=yes\n")})
    unit = unit_of(commands, tmp_path, at_boot=True)
    unit.load(silent)
    assert commands.ran[-1] == "loginctl enable-linger anna"
    assert unit.starts() == "with the machine"
    assert unit_of(Commands(), tmp_path).starts() == "when anna logs in"


def test_lingering_that_is_refused_names_the_command(tmp_path: Path) -> None:
    commands = Commands({"loginctl": lambda _command: Ran(1, "Access denied")})
    with pytest.raises(CannotStart, match="Run `sudo loginctl enable-linger anna`"):
        unit_of(commands, tmp_path, at_boot=True).load(silent)


def test_it_is_disabled_and_forgotten(tmp_path: Path) -> None:
    shown = Ran(0, "LoadState=loaded\nMainPID=12\n")
    commands = Commands({"systemctl --user show --property=LoadState": lambda _command: shown})
    unit = unit_of(commands, tmp_path)
    install(service_in(tmp_path / "r"), [unit], unit.machine, silent)
    assert uninstall([unit], ["sudo"], silent) == [unit.file]
    assert not unit.file.exists()
    assert commands.ran[-2:] == [
        f"systemctl --user disable --now {UNIT}",
        "systemctl --user daemon-reload",
    ]
