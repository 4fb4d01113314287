"""For all tests."""

from collections.abc import Iterator

import pytest

from node.hardware import MemoryReading
from serving.open_files import allow_many_files

# A shell on macOS allows 256 files, and a test may hold a thousand connections by both their ends.
allow_many_files()


@pytest.fixture(scope="session", autouse=True)
def _enough_memory() -> Iterator[None]:
    """Agents in this process refuse nothing because other programs have taken the memory."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("node.agent.watch.read_memory", lambda _kernel: MemoryReading())
        yield
