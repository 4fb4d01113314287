"""Measures commands of an admin on a router that is busy writing usage: neither delays the
other."""

import asyncio
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.bench import processes, routing
from tests.bench.figures import Figure
from tests.bench.machine import Cores
from tests.bench.processes import BenchFailure
from tests.bench.shared import SharedTools

COMMANDS = 20
LIMIT_S = 60.0
CONNECTIONS = 2


@dataclass(frozen=True, slots=True)
class Change:
    """One `router alias set`."""

    output: str
    code: int
    took_s: float


def measure(tools: SharedTools, cores: Cores, *, quick: bool) -> Iterator[Figure]:
    with routing.test_bed(tools, cores, routing.Effort.of(quick=quick)) as bed:
        requests = [bed.routed(routing.small_body())]
        changes, served = asyncio.run(_together(bed, requests))
        found = processes.fetch(f"http://127.0.0.1:{bed.port}/admin/aliases", bed.admin_key)
    failed = [change for change in changes if change.code]
    if failed:
        raise BenchFailure(f"{len(failed)} of {COMMANDS} failed: {failed[0].output}")
    note = f"as processes, while {served} requests were served and written"
    what = f"{COMMANDS} `router alias set` at once"
    yield Figure(f"{what}, done", len(found), "", COMMANDS, at_least=True, note=note)
    slowest_s = max(change.took_s for change in changes)
    yield Figure(f"{what}, the slowest", slowest_s, "s", note="its own start included")


async def _together(bed: routing.Bed, requests: Sequence[bytes]) -> tuple[list[Change], int]:
    """All commands at once, and requests until the last one has ended."""
    commands = asyncio.gather(*(_set(bed, number) for number in range(COMMANDS)))
    served = 0
    while not commands.done():
        tally = await routing.closed(bed.port, requests, CONNECTIONS, seconds=0.2)
        served += len(tally.seconds)
    return await commands, served


async def _set(bed: routing.Bed, number: int) -> Change:
    url = f"http://127.0.0.1:{bed.port}"
    script = processes.command("router")
    argv = [*script, "alias", "set", f"alias-{number}", routing.MODEL, "--router", url]
    began_s = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=processes.PROJECT,
        env=processes.environment({"MLX_FLEET_KEY": bed.admin_key}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode is not None
    return Change(output.decode(), process.returncode, time.perf_counter() - began_s)
