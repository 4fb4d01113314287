"""This machine's user and commands."""

import os
import pwd
from pathlib import Path

import pytest

from serving.errors import CannotStart
from serving.services.machine import NOT_FOUND, Ran, run_command, this_machine


def test_a_command_is_known_by_its_code_and_all_its_output() -> None:
    assert run_command(["sh", "-c", "echo a; echo b >&2; exit 3"]) == Ran(3, "a\nb\n")
    assert Ran(3, "a\nb.\n").last_line == "b" and Ran(3, "").last_line == "exit code 3"


def test_a_command_that_is_absent_is_one_that_failed() -> None:
    assert run_command(["/nowhere/at-all"]) == Ran(NOT_FOUND, "No such file or directory")


def test_a_service_is_that_of_the_user_who_called_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = pwd.getpwuid(os.getuid())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = this_machine({"HOME": "/root", "SUDO_USER": entry.pw_name})
    assert found.is_root and found.user.name == entry.pw_name
    assert found.user.home == Path(entry.pw_dir)
    with pytest.raises(CannotStart, match="does not know the user"):
        this_machine({"SUDO_USER": "no such user"})


def test_without_sudo_the_home_is_that_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", os.getuid)
    assert this_machine({"HOME": "/somewhere"}).user.home == Path("/somewhere")
