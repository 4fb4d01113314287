"""The output of `service install`, `uninstall` and `status`."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from serving.errors import CannotStart
from serving.services.description import User
from serving.services.verbs import ServiceVerbs
from tests.serving.services.stands import Launchd, program_in

SERVES = "router listening on http://127.0.0.1:8800\n"


class Mac:
    """A Mac with a launchd that is played; each start writes these lines into the log."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.launchd = Launchd(**options)
        self.home = folder / ".mlx-fleet" / "router"
        self.log = self.home / "logs" / "router.log"
        self.lines = SERVES
        self.user = User("anna", 501, folder)
        start = self.launchd.plays["launchctl bootstrap"]

        def log_start(command: Any) -> Any:
            with self.log.open("a") as log:
                log.write(self.lines)
            return start(command)

        self.launchd.plays["launchctl bootstrap"] = log_start

    def verbs(self, *, is_root: bool = False, **options: Any) -> ServiceVerbs:
        machine = self.launchd.machine(self.user, is_root=is_root, is_mac=True)
        return ServiceVerbs(program_in(self.home, **options), machine)


@pytest.fixture(autouse=True)
def _at_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "router").write_text("")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("COLUMNS", "80")


def test_an_install_shows_the_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mac = Mac(tmp_path)
    assert mac.verbs().install(at_boot=False, as_json=False)
    shown = capsys.readouterr()
    rows = " ".join(shown.out.split())
    assert "mlx-fleet.router, a LaunchAgent, starts when anna logs in" in rows
    assert "state running (pid 4711)" in rows and "next Look at it." in rows
    assert "Changed" not in shown.out and "last exit" not in shown.out
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    assert mac.launchd.paused_s == 0.5, "it is not watched once it serves"
    assert mac.verbs(port=81).install(at_boot=False, as_json=False)
    assert "router.plist:\n  + --port 81\n" in capsys.readouterr().out


def test_a_service_that_is_slow_to_start_is_waited_for(tmp_path: Path) -> None:
    mac = Mac(tmp_path)
    mac.lines = "reading\n"
    assert mac.verbs().install(at_boot=False, as_json=False)
    assert mac.launchd.paused_s == 40


def test_a_failure_shows_the_end_of_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mac = Mac(tmp_path, exit_code=2)
    mac.lines = f"{SERVES}router: Port 80 is in use.\n"
    assert not mac.verbs().install(at_boot=False, as_json=True)
    shown = capsys.readouterr()
    row = json.loads(shown.out)
    assert (row["running"], row["loaded"], row["last_exit"]) == (False, True, 2)
    assert row["next"] == f"Its log says why: tail {mac.log}."
    assert shown.err.endswith(
        "  router: Port 80 is in use.\nIt is started again every 10 s until `service uninstall`.\n"
    )
    assert mac.launchd.paused_s == 0.5
    mac.log.unlink()
    mac.lines = ""
    assert not mac.verbs().install(at_boot=False, as_json=True)
    assert f"The end of {mac.log}:\n  (nothing)\n" in capsys.readouterr().err


def test_status_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mac = Mac(tmp_path)
    assert not mac.verbs().status(as_json=False)
    assert "`router service install` makes one." in capsys.readouterr().out
    mac.verbs().install(at_boot=False, as_json=False)
    capsys.readouterr()
    assert mac.verbs().status(as_json=True)
    assert json.loads(capsys.readouterr().out)["log_file"] == str(mac.log)
    mac.launchd.loaded = dict.fromkeys(mac.launchd.loaded, 0)
    assert not mac.verbs().status(as_json=False)
    assert "It has ended without an error" in capsys.readouterr().out
    mac.launchd.loaded.clear()
    assert not mac.verbs().status(as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "not running, and not known to the system" in shown
    assert "`router service install` starts it." in shown


def test_a_file_that_is_not_ours_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mac = Mac(tmp_path)
    file = tmp_path / "Library" / "LaunchAgents" / "mlx-fleet.router.plist"
    file.parent.mkdir(parents=True)
    file.write_text("hello")
    with pytest.raises(CannotStart, match="is a service of something else"):
        mac.verbs().install(at_boot=False, as_json=False)
    assert file.read_text() == "hello"
    mac.verbs().status(as_json=False)
    assert "The file is not ours" in capsys.readouterr().out


def test_an_uninstall_names_what_it_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mac = Mac(tmp_path)
    mac.verbs().install(at_boot=False, as_json=False)
    capsys.readouterr()
    mac.verbs().uninstall(as_json=False)
    shown = capsys.readouterr().out
    assert "Removed " in shown and f"Left as it is: {mac.home}" in shown
    assert mac.launchd.loaded == {} and mac.log.exists()
    mac.verbs().uninstall(as_json=True)
    assert json.loads(capsys.readouterr().out) == {"removed": [], "left": str(mac.home)}


def test_with_sudo_only_a_daemon_is_installed(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="without sudo: it is a service of anna's own"):
        Mac(tmp_path).verbs(is_root=True).install(at_boot=False, as_json=False)


def test_the_file_is_printed_and_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mac = Mac(tmp_path)
    mac.verbs().print_file(at_boot=True)
    shown = capsys.readouterr()
    assert shown.err == "# /Library/LaunchDaemons/mlx-fleet.router.plist\n"
    assert "<key>UserName</key>\n\t<string>anna</string>" in shown.out
    assert not mac.home.exists() and mac.launchd.ran == []
