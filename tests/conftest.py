"""For all tests."""

import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from node.hardware import MemoryReading
from node.ipc import child_process
from serving.logs.logs import CHILD_LOG, LOGGERS
from serving.logs.recent import RECENT
from serving.open_files import allow_many_files

OWN_LOGGERS = (*LOGGERS, "uvicorn")

# A shell on macOS allows 256 files, and a test may hold a thousand connections by both their ends.
allow_many_files()
# No example fails because the machine is busy, and no run fails by the luck of its examples.
settings.register_profile(
    "ours",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="MLX_FLEET_SOAK" not in os.environ,
)
settings.load_profile("ours")
# A shell that runs the tests in the background has them ignore SIGINT, and so would every child.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _enough_memory() -> Iterator[None]:
    """Agents in this process refuse nothing because other programs have taken the memory."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("node.agent.pressure_watch.read_memory", lambda _kernel: MemoryReading())
        yield


@pytest.fixture(autouse=True)
def _same_loggers() -> Iterator[None]:
    """No test changes what the next one logs, or what its child processes log: a server that starts
    in this process sets levels and handlers for good."""
    before = {each: (each.level, each.propagate, each.handlers[:]) for each in _loggers()}
    yield
    os.environ.pop(CHILD_LOG, None)
    RECENT.setFormatter(None)
    for each in _loggers():
        level, each.propagate, each.handlers = before.get(each, (logging.NOTSET, True, []))
        each.setLevel(level)


def _loggers() -> list[logging.Logger]:
    names = [name for name in logging.root.manager.loggerDict if name.startswith(OWN_LOGGERS)]
    return list(map(logging.getLogger, names))


@pytest.fixture(params=[child_process.LINK_BYTES, 4096], ids=["wide", "narrow"])
def link_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links to child processes as usual, and with as little room as macOS gives by itself."""
    monkeypatch.setattr(child_process, "LINK_BYTES", request.param)
