"""Property lists and the output of `launchctl print`, as text."""

import plistlib
from pathlib import Path
from typing import Any

import pytest

from serving.services import launchd
from serving.services.description import InstalledService, ServiceState
from tests.serving.services.stands import service_in

HOME = Path("/Users/anna/.mlx-fleet/router")


def contents(*options: str, user_name: str | None = None) -> dict[str, Any]:
    service = service_in(HOME, *options)
    found: dict[str, Any] = plistlib.loads(
        launchd.plist_of(service, "mlx-fleet.router", user_name=user_name).encode()
    )
    return found


def test_launchd_starts_it_again_after_a_failure_and_not_after_an_end() -> None:
    found = contents()
    assert found["Label"] == "mlx-fleet.router"
    assert found["RunAtLoad"] is True and found["KeepAlive"] == {"SuccessfulExit": False}
    assert found["ThrottleInterval"] == 10 and found["ExitTimeOut"] == 30
    assert found["ProcessType"] == "Interactive"


def test_it_needs_nothing_of_a_shell() -> None:
    found = contents("--host", "0.0.0.0")
    assert found["ProgramArguments"] == [
        *("/bin/router", "serve", "--home", str(HOME), "--host", "0.0.0.0"),
    ]
    assert found["WorkingDirectory"] == str(HOME)
    assert found["EnvironmentVariables"] == {
        "HOME": "/Users/anna/.mlx-fleet",
        "PATH": "/usr/bin:/bin",
    }
    limits = {"NumberOfFiles": 10_240}
    assert found["SoftResourceLimits"] == found["HardResourceLimits"] == limits


def test_early_lines_are_in_the_log_that_the_program_rotates() -> None:
    found = contents()
    log_file = str(HOME / "logs" / "router.log")
    assert found["StandardErrorPath"] == found["StandardOutPath"] == log_file
    assert found["Umask"] == 0o077


def test_only_a_daemon_names_its_user() -> None:
    assert "UserName" not in contents()
    assert contents(user_name="anna")["UserName"] == "anna"


def test_text_that_means_something_in_xml_stays_as_it_is() -> None:
    assert contents("--name", '<a>&"é')["ProgramArguments"][-1] == '<a>&"é'


def test_its_home_log_and_user_are_read_back() -> None:
    text = launchd.plist_of(service_in(HOME), "x", user_name="anna")
    assert launchd.read_plist(text) == InstalledService(HOME, HOME / "logs/router.log", "anna")
    text = launchd.plist_of(service_in(HOME), "x", user_name=None)
    assert launchd.read_plist(text) == InstalledService(HOME, HOME / "logs/router.log", None)


@pytest.mark.parametrize("text", ["", "<plist", "hello", "<plist><array/></plist>"])
def test_another_file_is_none_of_ours(text: str) -> None:
    assert launchd.read_plist(text) is None
    assert launchd.lines_of(text) == text.splitlines()


def test_people_read_an_option_with_its_value_in_a_line() -> None:
    text = launchd.plist_of(service_in(HOME, "--port", "1"), "x", user_name=None)
    lines = launchd.lines_of(text)
    assert lines[:3] == ["/bin/router serve", f"--home {HOME}", "--port 1"]
    assert "ExitTimeOut: 30" in lines


def test_the_state_is_that_of_the_service_and_not_of_its_parts() -> None:
    running = "gui/501/x = {\n\tstate = running\n\tpid = 4711\n\tlast exit code = (never exited)\n"
    assert launchd.read_state(running) == ServiceState(True, 4711, None)
    part = "\tendpoints = {\n\t\tpid = 7\n\t\tlast exit code = 3\n\t}\n"
    failed = f"system/x = {{\n{part}\tstate = spawn scheduled\n\tlast exit code = 78: EX_CONFIG\n}}"
    assert launchd.read_state(failed) == ServiceState(True, None, 78)
    assert launchd.read_state(failed).has_failed
