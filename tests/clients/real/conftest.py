"""These tests are no part of `make test`: they fetch 800 MB of clients. `make clients-real` runs
them, and at their end there is a table of what was seen."""

import os

import pytest

SWITCH = "MLX_FLEET_CLIENTS_REAL"
SEEN: list[tuple[str, str, float, str]] = []
"""Client, scenario, seconds, and what was seen."""

collect_ignore_glob = [] if os.environ.get(SWITCH) else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not SEEN:
        return
    terminalreporter.write_sep("=", "real clients")
    for client, scenario, seconds, seen in SEEN:
        terminalreporter.write_line(f"{client:<10} {scenario:<10} {seconds:6.1f} s  {seen}")
