"""Removals beside a supervisor that a test plays; the rest is in test_control_models."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

from node.agent.disk import Disk
from node.engines.supervisor import Supervisor
from node.errors import ModelBusy, UnknownModel
from node.models.model_files import PARTIAL_MARKER
from node.models.store import ModelStore
from node.protocol.messages import ModelState, ModelStatus
from serving.awake import Awake
from serving.stay_awake import StayAwake
from tests.node.model_folders import make_model


async def nothing() -> None:
    pass


class PlayedSupervisor:
    """Tells of one model, and does something where it reads the store again."""

    def __init__(self) -> None:
        self.reported = ModelStatus(name="org/tiny", state=ModelState.ON_DISK, weight_bytes=1)
        self.on_refresh: Callable[[], Awaitable[None]] = nothing
        self.awake = Awake(StayAwake.NEVER)

    def status(self) -> tuple[ModelStatus, ...]:
        return (self.reported,)

    async def refresh(self) -> None:
        await self.on_refresh()


def disk_of(folder: Path, supervisor: PlayedSupervisor) -> Disk:
    return Disk(ModelStore(folder), cast(Supervisor, supervisor), lambda: None)


@pytest.mark.parametrize(
    ("state", "leases"),
    [
        (ModelState.LOADING, 0),
        (ModelState.READY, 0),
        (ModelState.DRAINING, 0),
        (ModelState.ON_DISK, 1),
    ],
)
async def test_a_model_that_someone_waits_for_is_not_removed(
    tmp_path: Path, state: ModelState, leases: int
) -> None:
    folder, supervisor = make_model(tmp_path / "org--tiny"), PlayedSupervisor()
    supervisor.reported = ModelStatus("org/tiny", state, 1, leases=leases)
    with pytest.raises(ModelBusy, match="unload it first"):
        await disk_of(tmp_path, supervisor).remove("org/tiny")
    assert not (folder / PARTIAL_MARKER).exists()


async def test_a_load_that_begins_while_the_model_is_removed_keeps_it(tmp_path: Path) -> None:
    folder, supervisor = make_model(tmp_path / "org--tiny"), PlayedSupervisor()

    async def begin_a_load() -> None:
        assert (folder / PARTIAL_MARKER).exists()
        supervisor.reported = ModelStatus("org/tiny", ModelState.LOADING, 1)

    supervisor.on_refresh = begin_a_load
    with pytest.raises(ModelBusy):
        await disk_of(tmp_path, supervisor).remove("org/tiny")
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors"]


async def test_a_removal_returns_what_it_has_freed(tmp_path: Path) -> None:
    folder, supervisor = make_model(tmp_path / "org--tiny"), PlayedSupervisor()
    size_bytes = sum(file.stat().st_size for file in folder.iterdir())
    disk = disk_of(tmp_path, supervisor)
    assert await disk.remove("org/tiny") == size_bytes
    assert not folder.exists()
    assert disk.free_bytes > 0
    with pytest.raises(UnknownModel):
        await disk.remove("org/tiny")


async def test_a_pull_that_left_nothing_is_removed_from_the_list(tmp_path: Path) -> None:
    disk = disk_of(tmp_path, PlayedSupervisor())
    (make_model(tmp_path / "org--other") / PARTIAL_MARKER).write_text("peer:")
    await disk.pulls.start()
    assert [model.name for model in disk.with_pulls(())] == ["org/other"]
    for file in (tmp_path / "org--other").iterdir():
        file.unlink()
    (tmp_path / "org--other").rmdir()
    assert await disk.remove("org/other") == 0
    assert disk.with_pulls(()) == ()


def test_what_is_whole_hides_the_pull_of_its_name(tmp_path: Path) -> None:
    supervisor = PlayedSupervisor()
    disk = disk_of(tmp_path, supervisor)
    whole = (ModelStatus("z", ModelState.READY, 1), ModelStatus("a", ModelState.READY, 1))
    assert [model.name for model in disk.with_pulls(whole)] == ["a", "z"]
