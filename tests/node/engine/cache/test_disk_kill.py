"""A process that is killed while it spills loses at most the file that it was writing."""

import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from node.engine.cache.parts import FileRead
from tests.node.engine.cache.disk_spiller import STEPS, content_bytes, spill, spill_until
from tests.node.engine.cache.disk_world import TIMEOUT_S, World, close_worlds, same, some_tensors

KILLS = 1000 if os.environ.get("MLX_FLEET_SOAK") else 50
MOST_REPORTS = 6
"""Most reports of a process, before it is to be killed …"""
LONGEST_WAIT_S = 0.03
"""… within this time."""

# A clean process that has everything imported, and from which each child is forked. A child also
# imports what was started here: pytest.
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pytest", "tests.node.engine.cache.disk_spiller"])


@pytest.fixture(autouse=True)
def _closed_in_the_end() -> Iterator[None]:
    yield
    close_worlds()


def _killed(process: BaseProcess) -> None:
    process.join(TIMEOUT_S)
    assert process.exitcode == -signal.SIGKILL
    process.close()


def _life(home: Path, moment: random.Random) -> tuple[dict[int, int], set[int]]:
    """One process, from start to kill: the files that it knew as written with their parents, and
    those that it gave up."""
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=spill, args=(home, moment.randrange(1 << 30), theirs))
    process.start()
    theirs.close()
    written: dict[int, int] = {}
    gone: set[int] = set()
    with ours:
        for _ in range(1 + moment.randrange(MOST_REPORTS)):
            assert ours.poll(TIMEOUT_S)
            _note(ours.recv(), written, gone)
        wait([process.sentinel], moment.uniform(0, LONGEST_WAIT_S))
        process.kill()
        _killed(process)
        with suppress(EOFError):
            while True:
                _note(ours.recv(), written, gone)
    return written, gone


def _note(report: tuple[str, int, int], written: dict[int, int], gone: set[int]) -> None:
    match report:
        case ("written", file, parent):
            written[file] = parent
        case ("gone", file, _):
            gone.add(file)


def _lost(file: int, parents: dict[int, int], gone: set[int]) -> bool:
    """Returns True if the process had dropped neither the file nor one that it continues."""
    while file and file not in gone:
        file = parents[file]
    return not file


def _verify(world: World) -> dict[int, int]:
    """That all entries can be read and contain what was written, and that there is nothing else:
    the parents of the files."""
    parents = {}
    for entry in world.tier.entries():
        assert entry.parent_file == 0 or entry.parent_file in parents
        parents[entry.file] = entry.parent_file
        world.tier.read(entry.file)
        report = world.next_report()
        assert isinstance(report, FileRead)
        seed = entry.parent_tokens
        assert same(report.tensors, some_tensors(seed, content_bytes(seed)))
    assert world.names() == {f"{file}.safetensors" for file in parents}
    assert world.tier.nbytes == sum(world.path(file).stat().st_size for file in parents)
    return parents


@pytest.mark.timeout(30 * 60 if KILLS > 50 else 120)
def test_what_was_written_outlives_a_kill_at_any_moment(tmp_path: Path) -> None:
    moment = random.Random(7)
    parents: dict[int, int] = {}
    spills = 0
    for _ in range(KILLS):
        written, gone = _life(tmp_path, moment)
        known = parents | written
        world = World(tmp_path)
        parents = _verify(world)
        world.tier.close()
        assert not [file for file in known.keys() - parents if _lost(file, known, gone)]
        spills += len(written)
    assert spills > KILLS


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_each_step_leaves_whole_files(step: str, tmp_path: Path) -> None:
    process = _CONTEXT.Process(target=spill_until, args=(tmp_path, step))
    process.start()
    _killed(process)
    world = World(tmp_path)
    entries = world.tier.entries()
    assert len(entries) == (2 if step == "after index" else 1)
    for seed, entry in enumerate(entries, start=1):
        world.tier.read(entry.file)
        report = world.next_report()
        assert isinstance(report, FileRead)
        assert same(report.tensors, some_tensors(seed))
    assert world.names() == {f"{entry.file}.safetensors" for entry in entries}
