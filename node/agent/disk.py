"""The models on this node's disk: pulls, copies for peers, removals."""

import asyncio
from collections.abc import Callable

from node.engines.supervisor import Supervisor
from node.errors import BadRequest, ModelBusy, PullRunning
from node.hardware import free_disk_bytes
from node.models.model_files import PARTIAL_MARKER
from node.models.pulls import Pulls
from node.models.shares import Shares
from node.models.store import ModelStore
from node.protocol.lifecycle import PullCommand, Share
from node.protocol.messages import NOT_LOADED, ModelStatus


class Disk:
    """Owner of the pulls and of the copies for peers."""

    def __init__(
        self, store: ModelStore, supervisor: Supervisor, on_change: Callable[[], None]
    ) -> None:
        self._store = store
        self._supervisor = supervisor
        self.pulls = Pulls(store, on_change, supervisor.refresh, supervisor.awake)
        self.shares = Shares(store)
        self.free_bytes = 0
        """Free bytes of the disk with the models."""

    async def start(self) -> None:
        await self.refresh()
        await self.pulls.start()

    async def refresh(self) -> None:
        self.free_bytes = await asyncio.to_thread(free_disk_bytes, self._store.folder)

    async def close(self) -> None:
        self.shares.close()
        await self.pulls.close()

    def with_pulls(self, models: tuple[ModelStatus, ...]) -> tuple[ModelStatus, ...]:
        """The models that can be served and those that are being pulled, sorted by name."""
        here = {model.name for model in models}
        coming = (model for model in self.pulls.statuses() if model.name not in here)
        return tuple(sorted((*models, *coming), key=lambda model: model.name))

    async def pull(self, command: PullCommand) -> None:
        """Starts a pull like `Pulls.begin`. Also raises `BadRequest` for a model that is served
        from elsewhere."""
        entry = await asyncio.to_thread(self._store.find, command.model)
        if entry is not None and entry.folder.parent != self._store.folder.resolve():
            raise BadRequest(
                f"{command.model} is served from {entry.folder}, outside the agent's own folder.",
                param="model",
            )
        self.pulls.begin(command)

    async def share(self, name: str) -> Share:
        """The same as `Shares.share`. Raises `UnknownModel`."""
        return await self.shares.share(await self._supervisor.find(name))

    async def remove(self, name: str) -> int:
        """Deletes a model, complete or unfinished, and returns the bytes freed. Raises `ModelBusy`
        while it is in memory, `PullRunning`, and the errors of `ModelStore.remove`."""
        if self.pulls.is_running(name):
            raise PullRunning(
                f"{name} is being pulled; `router models cancel-pull {name}` ends that."
            )
        self._check_at_rest(name)
        marker = self._store.folder_for(name) / PARTIAL_MARKER
        if not marker.parent.exists() and self.pulls.forget(name):
            return 0
        is_whole = marker.parent.is_dir() and not marker.parent.is_symlink()
        if is_whole and not marker.exists():
            # The marker hides the model from new requests; requests that found it before are
            # checked for once more.
            marker.touch()
            await self._supervisor.refresh()
            try:
                self._check_at_rest(name)
            except ModelBusy:
                marker.unlink()
                raise
        self.pulls.stop_retries(name)
        freed_bytes = await asyncio.to_thread(self._store.remove, name)
        self.pulls.forget(name)
        await self._supervisor.refresh()
        await self.refresh()
        return freed_bytes

    def _check_at_rest(self, name: str) -> None:
        for model in self._supervisor.status():
            if model.name == name and (model.state not in NOT_LOADED or model.leases):
                raise ModelBusy(
                    f"{name} is in memory; unload it first with `router unload {name}`."
                )
