import asyncio
import subprocess
import sys
from signal import SIGKILL, SIGTERM, Signals

import pytest

from serving.processes.process_signal import send_signal

WAIT_S = 30
SLEEPER = "import time; time.sleep(60)"


async def started(program: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", program)


@pytest.mark.parametrize("signal", [SIGKILL, SIGTERM])
async def test_a_signal_leaves_the_exit_code_to_the_one_who_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, signal: Signals
) -> None:
    def poll(popen: subprocess.Popen[bytes]) -> None:
        pytest.fail("a poll takes the exit code of a child that has just ended")

    process = await started(SLEEPER)
    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "poll", poll)
        send_signal(process, signal)
    async with asyncio.timeout(WAIT_S):
        assert await process.wait() == -signal


async def test_a_process_that_has_ended_gets_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    process = await started("")
    async with asyncio.timeout(WAIT_S):
        await process.wait()
    with monkeypatch.context() as patched:
        patched.setattr("os.kill", lambda pid, signal: pytest.fail("its number may be another's"))
        send_signal(process, SIGKILL)
    assert process.returncode == 0


async def test_a_process_whose_end_is_not_yet_known_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(pid: int, signal: int) -> None:
        raise ProcessLookupError

    process = await started(SLEEPER)
    with monkeypatch.context() as patched:
        patched.setattr("os.kill", gone)
        send_signal(process, SIGKILL)
    assert process.returncode is None
    send_signal(process, SIGKILL)
    async with asyncio.timeout(WAIT_S):
        await process.wait()
