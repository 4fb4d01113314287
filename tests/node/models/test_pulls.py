"""The pulls of one agent: real processes, a source that a test plays."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from node.errors import BadRequest, ShuttingDown, UnknownModel
from node.models.model_files import PARTIAL_MARKER
from node.models.pull_process import PullReport
from node.models.pulls import FIRST_RETRY_S, GOES_ON, LAST_RETRY_S, Pulls
from node.models.store import ModelStore
from node.protocol.lifecycle import Peer, PullCommand
from node.protocol.messages import ModelState, ModelStatus
from serving.awake import Awake
from serving.stay_awake import StayAwake
from tests.fakes import FakeClock
from tests.node.model_folders import CONFIG, make_model, safetensors, share
from tests.node.models.test_peer import PlayedPeer, playing
from tests.serving.caffeinate import TERMINATED, begun, install

WAIT_S = 20.0
FILES = {"config.json": CONFIG, "model.safetensors": safetensors(bytes(300_000))}


class World:
    """The pulls of one store, and a wait for what they report."""

    def __init__(self, folder: Path, when: StayAwake = StayAwake.NEVER) -> None:
        self.awake = Awake(when)
        self.store = ModelStore(folder)
        self.arrivals = 0
        self.clock = FakeClock()
        self._changed = asyncio.Event()
        self.pulls = Pulls(self.store, self._changed.set, self._on_arrived, self.awake, self.clock)

    async def _on_arrived(self) -> None:
        self.arrivals += 1

    async def until_still(self) -> tuple[ModelStatus, ...]:
        """The reported statuses once no pull runs."""
        async with asyncio.timeout(WAIT_S):
            while any(self.pulls.is_running(each.name) for each in self.pulls.statuses()):
                await self._changed.wait()
                self._changed.clear()
        return self.pulls.statuses()


def from_peer(peer: PlayedPeer) -> PullCommand:
    return PullCommand("org/tiny", peer=Peer(peer.url, share(FILES)))


async def test_a_pull_keeps_the_machine_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caffeinate = install(tmp_path / "bin", monkeypatch)
    monkeypatch.setattr("serving.awake.RELEASE_S", 0.0)
    world = World(tmp_path / "models", StayAwake.BUSY)
    with playing(PlayedPeer(files=dict(FILES))) as peer:
        world.pulls.begin(from_peer(peer))
        await caffeinate.until(begun())
        await world.until_still()
        await caffeinate.until(begun(), TERMINATED)
    await world.awake.close()


async def test_a_pull_is_reported_until_the_model_is_there(tmp_path: Path) -> None:
    world = World(tmp_path)
    with playing(PlayedPeer(files=dict(FILES))) as peer:
        world.pulls.begin(from_peer(peer))
        (status,) = world.pulls.statuses()
        assert (status.name, status.state) == ("org/tiny", ModelState.PULLING)
        assert (status.reason, status.progress) == (None, 0.0)
        # It runs already.
        world.pulls.begin(from_peer(peer))
        assert await world.until_still() == ()
    assert world.arrivals == 1
    assert world.store.find("org/tiny") is not None
    assert sorted(path for _, path, _ in peer.requested) == sorted(FILES)
    await world.pulls.close()


async def test_a_pull_that_fails_reports_why_and_resumes_when_commanded_again(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    with playing(PlayedPeer(files=dict(FILES), cut_at=100_000)) as peer:
        world.pulls.begin(from_peer(peer))
        (status,) = await world.until_still()
        assert status.state is ModelState.PULLING
        assert status.reason is not None and "stopped delivering" in status.reason
        assert status.wants_peer and status.retry_after_s == FIRST_RETRY_S
        world.clock.advance(FIRST_RETRY_S)
        assert world.pulls.statuses()[0].retry_after_s == 0.0
        assert world.store.list() == ()
        assert world.pulls.forget("org/other") is False
        peer.cut_at = None
        peer.requested.clear()
        world.pulls.begin(msgspec.structs.replace(from_peer(peer), resumes=True))
        assert world.pulls.statuses()[0].reason is None
        assert not world.pulls.statuses()[0].wants_peer
        assert await world.until_still() == ()
    (_, path, given) = peer.requested[0]
    assert path == "model.safetensors" and given != "bytes=0-"
    await world.pulls.close()


async def test_a_pull_whose_process_is_killed_is_resumed(tmp_path: Path) -> None:
    world, go_on = World(tmp_path), threading.Event()
    own = psutil.Process()
    others = set(own.children())
    with playing(PlayedPeer(files=dict(FILES), cut_at=100_000, cut=go_on.wait)) as peer:
        world.pulls.begin(from_peer(peer))
        async with asyncio.timeout(WAIT_S):
            while not any("safetensors" in path for _, path, _ in peer.requested):
                await asyncio.sleep(0.01)
        for child in set(own.children()) - others:
            child.kill()
        (status,) = await world.until_still()
        assert "ended with code -9" in (status.reason or "") and status.wants_peer
        go_on.set()
        peer.cut_at = None
        world.pulls.begin(msgspec.structs.replace(from_peer(peer), resumes=True))
        assert await world.until_still() == ()
    assert world.store.find("org/tiny") is not None
    await world.pulls.close()


async def test_a_cancelled_pull_leaves_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    with playing(PlayedPeer(files=dict(FILES), cut_at=100_000)) as peer:
        world.pulls.begin(from_peer(peer))
        await world.until_still()
        assert list(tmp_path.iterdir()) == [tmp_path / "org--tiny"]
        await world.pulls.cancel("org/tiny")
        world.pulls.begin(from_peer(peer))
        await world.pulls.cancel("org/tiny")
    assert world.pulls.statuses() == ()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UnknownModel):
        await world.pulls.cancel("org/tiny")


class Stuck(Pulls):
    """Pulls of which the next ones end at these bytes."""

    ends: list[int]
    is_final = False

    async def _pulled(self, pull: Any, command: PullCommand) -> PullReport | None:
        self.command = command
        pull.done_bytes = self.ends.pop(0)
        return PullReport(failure="It fails.", is_final=self.is_final)

    async def until_still(self) -> None:
        while self.is_running("m"):
            await asyncio.sleep(0)


def stuck(folder: Path, clock: FakeClock, ends: list[int]) -> Stuck:
    async def arrived() -> None:
        raise AssertionError

    pulls = Stuck(ModelStore(folder), lambda: None, arrived, Awake(StayAwake.NEVER), clock)
    pulls.ends = ends
    return pulls


FROM_HUB = PullCommand("m", "org/m", token="hf_secret")


async def test_a_pull_without_progress_is_retried_less_and_less_often(tmp_path: Path) -> None:
    pulls = stuck(tmp_path, FakeClock(), [7, 7, 7, 8, *[8] * 40])
    waits_s = []
    while pulls.ends:
        pulls.begin(PullCommand("m", peer=Peer("http://127.0.0.1:9", share(FILES))))
        await pulls.until_still()
        waits_s.append(pulls.statuses()[0].retry_after_s)
    assert waits_s[:6] == [5.0, 10.0, 20.0, 5.0, 10.0, 20.0]
    assert waits_s[-1] == LAST_RETRY_S


async def test_what_the_hub_does_not_deliver_is_tried_again_by_the_agent_itself(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    pulls = stuck(tmp_path, clock, [7, 7, 7, 8, 8])
    pulls.begin(FROM_HUB)
    await pulls.until_still()
    waits_s = []
    while pulls.ends:
        (status,) = pulls.statuses()
        assert status.reason == f"It fails. {GOES_ON}" and not status.wants_peer
        waits_s.append(status.retry_after_s)
        clock.advance(status.retry_after_s - 0.1)
        pulls.retry_due()
        assert not pulls.is_running("m")
        clock.advance(0.1)
        pulls.retry_due()
        assert pulls.statuses()[0].reason is None
        await pulls.until_still()
        assert pulls.command == FROM_HUB
    assert waits_s == [5.0, 10.0, 20.0, 5.0]


async def test_what_another_try_would_not_change_is_not_tried_again(tmp_path: Path) -> None:
    clock = FakeClock()
    pulls = stuck(tmp_path, clock, [0])
    pulls.is_final = True
    pulls.begin(FROM_HUB)
    await pulls.until_still()
    clock.advance(LAST_RETRY_S)
    pulls.retry_due()
    (status,) = pulls.statuses()
    assert (status.reason, status.retry_after_s) == ("It fails.", 0.0)


async def test_a_pull_that_waits_for_its_next_try_ends_when_it_is_cancelled_or_removed(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    pulls = stuck(tmp_path, clock, [0, 0, 0])

    async def given_up(name: str) -> None:
        pulls.stop_retries(name)

    for end in (pulls.cancel, given_up):
        pulls.begin(FROM_HUB)
        await pulls.until_still()
        clock.advance(LAST_RETRY_S)
        await end("m")
        pulls.retry_due()
        assert not pulls.is_running("m")
    assert pulls.statuses()[0].retry_after_s == 0.0
    pulls.begin(FROM_HUB)
    await pulls.until_still()
    clock.advance(LAST_RETRY_S)
    await pulls.close()
    pulls.retry_due()
    assert not pulls.is_running("m")


async def test_a_router_resumes_no_pull_that_is_cancelled_or_that_it_need_not_resume(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    resumed = PullCommand("org/tiny", peer=Peer("http://127.0.0.1:9", share(FILES)), resumes=True)
    with pytest.raises(UnknownModel):
        world.pulls.begin(resumed)
    (make_model(tmp_path / "org--tiny") / PARTIAL_MARKER).write_text("peer:hub:org/tiny@c0ffee")
    (make_model(tmp_path / "org--half") / PARTIAL_MARKER).write_text("")
    await world.pulls.start()
    with pytest.raises(UnknownModel):
        world.pulls.begin(msgspec.structs.replace(resumed, model="org/half"))
    world.pulls.stop_retries("org/tiny")
    assert not any(status.wants_peer for status in world.pulls.statuses())
    with pytest.raises(UnknownModel):
        world.pulls.begin(resumed)
    await world.pulls.cancel("org/tiny")
    assert not (tmp_path / "org--tiny").exists()


async def test_a_start_resumes_the_hubs_pulls_and_waits_with_the_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for name, source in (
        ("org--hub", "hub:org/hub@c0ffee"),
        ("org--peer", "peer:hub:org/peer@c0ffee"),
        ("half-removed", ""),
    ):
        (make_model(tmp_path / name) / PARTIAL_MARKER).write_text(source)
    make_model(tmp_path / "whole")
    world = World(tmp_path)
    await world.pulls.start()
    statuses = {status.name: status for status in world.pulls.statuses()}
    assert sorted(statuses) == ["half-removed", "org/hub", "org/peer"]
    assert statuses["org/hub"].reason is None
    for name in ("org/peer", "half-removed"):
        assert "interrupted" in (statuses[name].reason or "")
        assert statuses[name].disk_bytes > 0
        assert statuses[name].wants_peer == (name == "org/peer")
    assert world.pulls.is_running("org/hub") and not world.pulls.is_running("org/peer")
    assert world.pulls.forget("org/peer") is True
    # The agent's end keeps what has arrived.
    await world.pulls.close()
    assert (tmp_path / "org--hub" / PARTIAL_MARKER).read_text() == "hub:org/hub@c0ffee"
    with pytest.raises(ShuttingDown):
        world.pulls.begin(PullCommand("org/hub", "org/hub"))


async def test_a_pull_from_nowhere_or_under_no_name_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path / "none")
    await world.pulls.start()
    for command in (PullCommand("org/tiny"), PullCommand("../x", "org/tiny")):
        with pytest.raises(BadRequest):
            world.pulls.begin(command)
    assert world.pulls.statuses() == ()


async def test_a_hub_that_cannot_be_reached_is_reported_as_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    world = World(tmp_path)
    world.pulls.begin(PullCommand("org/tiny", "org/tiny"))
    (status,) = await world.until_still()
    assert status.reason is not None and "org/tiny" in status.reason
    assert status.reason.endswith(".")
    assert list(tmp_path.iterdir()) == []
    await world.pulls.cancel("org/tiny")
    assert world.pulls.statuses() == ()
