"""Claude Code, Codex and OpenCode themselves against router and node agents with the scripted
engine, each in a network namespace of its own with an environment and a home of its own."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.clients.real.conftest import SEEN
from tests.clients.real.namespace import ROOT, way
from tests.clients.real.packages import Missing, installed
from tests.clients.real.programs import CLIENTS
from tests.clients.real.scenarios import SCENARIOS

_TIMEOUT_S = 600


@pytest.fixture(scope="module")
def commands() -> Path:
    """The folder with the clients' commands."""
    try:
        return installed()
    except Missing as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def unshare() -> list[str]:
    found = way()
    if found is None:
        pytest.skip("No network namespace can be made here (`unshare -n`); it takes Linux.")
    return found


@pytest.mark.timeout(_TIMEOUT_S)
@pytest.mark.parametrize(
    ("scenario", "client"),
    [
        (name, client)
        for name, each in SCENARIOS.items()
        for client in CLIENTS
        if client in each.clients
    ],
)
def test_a_session_ends_as_it_should(
    tmp_path: Path, unshare: list[str], commands: Path, client: str, scenario: str
) -> None:
    inside = [sys.executable, "-m", "tests.clients.real.inside"]
    begun_s = time.monotonic()
    done = subprocess.run(
        [*unshare, *inside, client, scenario, str(commands), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    seconds = time.monotonic() - begun_s
    is_good = done.returncode == 0
    seen = done.stdout.strip().splitlines()[-1] if is_good else "FAILED"
    SEEN.append((client, scenario, seconds, seen))
    assert is_good, f"{done.stdout}\n{done.stderr}"
