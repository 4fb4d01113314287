"""Unit files and the output of `systemctl show`, as text."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from serving.services import systemd
from serving.services.description import InstalledService, ServiceState
from tests.serving.services.stands import service_in

VERIFIER = shutil.which("systemd-analyze")
HOME = Path("/home/anna/.mlx-fleet/router")


def test_systemd_starts_it_again_after_a_failure_for_ever() -> None:
    lines = systemd.unit_of(service_in(HOME)).splitlines()
    assert {"Restart=on-failure", "RestartSec=10", "StartLimitIntervalSec=0"} <= set(lines)
    assert {"TimeoutStopSec=30", "KillMode=mixed", "WantedBy=default.target"} <= set(lines)


def test_it_needs_nothing_of_a_shell() -> None:
    text = systemd.unit_of(service_in(HOME, "--host", "0.0.0.0"))
    assert (
        f'ExecStart="/bin/router" "serve" \\\n  "--home" "{HOME}" \\\n  "--host" "0.0.0.0"\n'
        in text
    )
    assert f"WorkingDirectory={HOME}\n" in text and 'Environment="PATH=/usr/bin:/bin"\n' in text
    assert "LimitNOFILE=10240\n" in text


def test_early_lines_are_in_the_log_that_the_program_rotates() -> None:
    text = systemd.unit_of(service_in(HOME))
    assert f"StandardError=append:{HOME}/logs/router.log\n" in text
    assert f"StandardOutput=append:{HOME}/logs/router.log\n" in text
    assert "UMask=0077\n" in text


def test_systemd_expands_nothing_in_a_text() -> None:
    text = systemd.unit_of(service_in(HOME, "--name", '50% $HOME "a\\b'))
    assert r'"--name" "50%% $$HOME \"a\\b"' in text


def test_its_home_and_log_are_read_back() -> None:
    home = Path("/home/anna b/100%")
    found = systemd.read_unit(systemd.unit_of(service_in(home)))
    assert found == InstalledService(home, home / "logs/router.log", None)
    assert systemd.read_unit("[Unit]\n") == InstalledService(None, None, None)


def test_people_read_an_option_with_its_value_in_a_line() -> None:
    lines = systemd.lines_of(systemd.unit_of(service_in(HOME, "--port", "1")))
    assert '"--port" "1"' in lines and "RestartSec=10" in lines


@pytest.mark.parametrize(
    ("output", "state"),
    [
        ("LoadState=not-found\nMainPID=0\nExecMainStatus=0\n", ServiceState(False)),
        (
            "LoadState=loaded\nMainPID=12\nExecMainStatus=0\nExecMainExitTimestampMonotonic=0\n",
            ServiceState(True, 12, None),
        ),
        (
            "LoadState=loaded\nMainPID=0\nExecMainStatus=2\nExecMainExitTimestampMonotonic=99\n",
            ServiceState(True, None, 2),
        ),
        ("nothing", ServiceState(False)),
    ],
)
def test_the_state_is_read(output: str, state: ServiceState) -> None:
    assert systemd.read_state(output) == state


@pytest.mark.skipif(VERIFIER is None, reason="systemd-analyze is not here to check the unit")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    assert VERIFIER is not None
    service = service_in(tmp_path / "a b%", "--name", 'x "y" 50% $HOME')
    service.home.mkdir()
    program = tmp_path / "router"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    file = tmp_path / "mlx-fleet.router.service"
    file.write_text(systemd.unit_of(service).replace("/bin/router", str(program)))
    checked = subprocess.run(
        [VERIFIER, "verify", "--user", str(file)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (checked.returncode, checked.stderr) == (0, "")
