"""Tests that a Mac is kept awake, with a command that records how it is called."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from serving.awake import RELEASE_S, Awake, kept_awake, need_command
from serving.errors import CannotStart
from serving.stay_awake import StayAwake
from tests.serving.caffeinate import LEFT, TERMINATED, Caffeinate, begun, install


@pytest.fixture
def caffeinate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Caffeinate:
    monkeypatch.setattr("serving.awake.RELEASE_S", 0.0)
    return install(tmp_path / "bin", monkeypatch)


async def test_stays_awake_from_the_first_work_until_a_while_after_the_last(
    caffeinate: Caffeinate,
) -> None:
    awake = Awake(StayAwake.BUSY)
    awake.start()
    with awake.work():
        with awake.work():
            await caffeinate.until(begun())
        assert caffeinate.notes == [begun()]
    await caffeinate.until(begun(), TERMINATED)
    with awake.work():
        await caffeinate.until(begun(), TERMINATED, begun())
    await awake.close()
    assert caffeinate.notes == [begun(), TERMINATED, begun(), TERMINATED]


async def test_work_within_the_while_goes_on_with_the_same_process(
    caffeinate: Caffeinate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.awake.RELEASE_S", RELEASE_S)
    awake = Awake(StayAwake.BUSY)
    for _ in range(3):
        with awake.work():
            await caffeinate.until(begun())
    assert awake._timer is not None
    left_s = awake._timer.when() - asyncio.get_running_loop().time()
    assert 55.0 < left_s <= 60.0
    await awake.close()
    assert caffeinate.notes == [begun(), TERMINATED]


async def test_always_is_from_the_start_to_the_end(caffeinate: Caffeinate) -> None:
    awake = Awake(StayAwake.ALWAYS)
    awake.start()
    await caffeinate.until(begun())
    with awake.work():
        pass
    await asyncio.sleep(0)
    await awake.close()
    assert caffeinate.notes == [begun(), TERMINATED]


async def test_never_is_never(caffeinate: Caffeinate) -> None:
    awake = Awake(StayAwake.NEVER)
    awake.start()
    with awake.work():
        assert awake._task is None
    await awake.close()
    assert caffeinate.notes == []


async def test_a_mode_may_change_while_there_is_work_and_while_there_is_none(
    caffeinate: Caffeinate,
) -> None:
    awake = Awake(StayAwake.NEVER)
    awake.start()
    with awake.work():
        awake.set_mode(StayAwake.BUSY)
        await caffeinate.until(begun())
    await caffeinate.until(begun(), TERMINATED)
    awake.set_mode(StayAwake.ALWAYS)
    await caffeinate.until(begun(), TERMINATED, begun())
    awake.set_mode(StayAwake.ALWAYS)
    awake.set_mode(StayAwake.BUSY)
    await caffeinate.until(begun(), TERMINATED, begun(), TERMINATED)
    with awake.work():
        await caffeinate.until(*(begun(), TERMINATED) * 2, begun())
        awake.set_mode(StayAwake.NEVER)
        await caffeinate.until(*(begun(), TERMINATED) * 3)
    await awake.close()


async def test_without_the_command_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    awake = Awake(StayAwake.BUSY)
    with awake.work():
        assert awake._task is None
    await awake.close()
    need_command(StayAwake.BUSY)
    with pytest.raises(CannotStart, match="no caffeinate"):
        need_command(StayAwake.ALWAYS)


async def test_a_command_that_ends_by_itself_is_logged_and_not_begun_at_each_request(
    caffeinate: Caffeinate, caplog: pytest.LogCaptureFixture
) -> None:
    command = caffeinate.folder / "caffeinate"
    command.write_text(command.read_text().replace("while", "exit 3; while"))
    awake = Awake(StayAwake.BUSY)
    with awake.work():
        await caffeinate.until(begun())
        async with asyncio.timeout(20):
            while not caplog.messages:
                await asyncio.sleep(0.01)
        for _ in range(3):
            with awake.work():
                await asyncio.sleep(0)
    await awake.close()
    assert caffeinate.notes == [begun()]
    assert caplog.messages == [
        "This machine may sleep while it works: caffeinate ended with code 3."
    ]


async def test_it_ends_with_a_process_that_is_killed(caffeinate: Caffeinate) -> None:
    code = (
        "import asyncio\n"
        "from serving.awake import RELEASE_S, Awake\n"
        "from serving.stay_awake import StayAwake\n"
        "async def main():\n"
        "    Awake(StayAwake.ALWAYS).start()\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        await caffeinate.until(begun(process.pid))
        process.kill()
    await caffeinate.until(begun(process.pid), LEFT)


async def test_a_command_of_its_own_is_kept_awake_to_its_end(caffeinate: Caffeinate) -> None:
    with kept_awake():
        await caffeinate.until(begun())
    assert caffeinate.notes == [begun(), TERMINATED]
