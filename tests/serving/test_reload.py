"""Reloads at SIGHUP, in a process of its own."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated

import pytest

from serving.errors import CannotStart
from serving.live_settings import LiveSettings
from serving.reload import reload, reloaded_at_hangup
from serving.setting import Setting
from serving.setting_kinds import PORT


@dataclass(frozen=True)
class Some:
    port: Annotated[int, Setting(PORT, "Port.", is_live=True)] = 1


async def test_what_is_wrong_goes_to_the_log_and_nothing_is_changed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def read() -> Some:
        raise CannotStart("config.toml:1: wrong.")

    live = LiveSettings(Some(), read)
    await reload(live)
    assert caplog.messages == ["Nothing was reloaded: config.toml:1: wrong."]
    assert live.current == Some()


async def test_a_hangup_reloads(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mlx_fleet.settings")
    changed = asyncio.Event()
    live = LiveSettings(Some(), lambda: Some(2))
    live.on_change(lambda _settings: changed.set())
    with reloaded_at_hangup(live, lambda: pytest.fail("it was stopped")):
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait_for(changed.wait(), 20)
        await asyncio.sleep(0)
    assert live.current == Some(2)
    assert caplog.messages == ["--port is 2 now, not 1."]


async def test_a_thread_gets_no_signals() -> None:
    async def run() -> None:
        with reloaded_at_hangup(LiveSettings(Some()), lambda: None):
            pass

    await asyncio.to_thread(asyncio.run, run())


CLOSED = """
import asyncio, os, signal
from dataclasses import dataclass
from serving.live_settings import LiveSettings
from serving.reload import reloaded_at_hangup

async def main():
    stopped = asyncio.Event()
    with reloaded_at_hangup(LiveSettings(None), stopped.set):
        print("ready", flush=True)
        await asyncio.wait_for(stopped.wait(), 20)
    os._exit(7)

# The end of its terminal is to be seen, and not to end this process by itself.
asyncio.run(main())
"""


def test_a_process_whose_terminal_is_closed_stops() -> None:
    leader, terminal = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", CLOSED],
        stdin=terminal,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as process:
        os.close(terminal)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        os.close(leader)
        process.send_signal(signal.SIGHUP)
        assert process.wait(20) == 7
