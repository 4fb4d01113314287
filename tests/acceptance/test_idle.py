"""Tests the cost of an idle fleet."""

import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.acceptance.processes import Router as Front
from tests.acceptance.processes import (
    agent_in,
    agent_process,
    listening,
    register,
    router_process,
)
from tests.fakes import NO_TLS

WATCHED_S = 2.0
MOST_PER_S = 5.0
WATCHES = 20
"""Until one of them sees nothing of the start and the request any more."""


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not tell how often a process woke")
def test_nobody_wakes_more_than_five_times_a_second(tmp_path: Path) -> None:
    """The router and an agent that it watches, whose engine has served."""
    with agent_process(tmp_path, None) as running, router_process(tmp_path) as front:
        agent = agent_in(running)
        router = Front(front, listening(front), "")
        register(router, "a", agent)
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
        path = f"{agent.url}/v1/chat/completions"
        headers = agent.headers
        httpx.post(path, headers=headers, json=body, verify=NO_TLS).raise_for_status()
        processes = [psutil.Process(running.pid), psutil.Process(front.pid)]
        processes += processes[0].children(recursive=True)
        assert len(processes) == 3
        woke = [most_woken(processes)]
        while woke[-1] > MOST_PER_S and len(woke) < WATCHES:
            woke.append(most_woken(processes))
    assert woke[-1] <= MOST_PER_S, woke


def most_woken(processes: list[psutil.Process]) -> float:
    """Returns the wakeups per second of the process that woke most often in the interval."""
    before, began_s = [woken(each) for each in processes], time.monotonic()
    time.sleep(WATCHED_S)
    counts = [woken(each) - at for each, at in zip(processes, before, strict=True)]
    return max(counts) / (time.monotonic() - began_s)


def woken(process: psutil.Process) -> int:
    """Returns the number of times that threads of the process have woken from a wait of their
    own."""
    total = 0
    for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
        fields = dict(line.split(":\t") for line in status.read_text().splitlines())
        total += int(fields["voluntary_ctxt_switches"])
    return total
