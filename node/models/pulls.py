"""The pulls of one node, a process for each. The status reports a pull until the model is there.
The agent retries a pull from the hub; a router retries one from a peer."""

import asyncio
import logging
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from signal import SIGKILL

import msgspec

from node.errors import ShuttingDown, UnknownModel
from node.hardware import python_command
from node.models.model_files import PARTIAL_MARKER
from node.models.pull import Unfinished, check_command, unfinished
from node.models.pull_process import PullOrder, PullReport
from node.models.store import ModelStore, delete_folder
from node.protocol.lifecycle import PullCommand
from node.protocol.messages import ModelState, ModelStatus
from serving.awake import Awake
from serving.processes.process_signal import send_signal

ENDED_AT_ONCE = "The process that pulls ended with code {}; the agent's log may say why."
WAITS_FOR_PEER = (
    "Its pull was interrupted. It resumes as soon as a node that has the model can be "
    "reached; `router models cancel-pull` ends it and deletes its files."
)
CUT_SHORT = (
    "It is not complete: its pull or its removal was interrupted. `router models pull` "
    "resumes it, `router models rm` deletes its files."
)
GOES_ON = "It is retried automatically; `router models cancel-pull` ends it."
FIRST_RETRY_S = 5.0
LAST_RETRY_S = 300.0
"""Seconds between two tries of a pull without progress; they double with each."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Pull:
    """A model that is being pulled, or whose pull was interrupted."""

    name: str
    done_bytes: int = 0
    total_bytes: int = 0
    reason: str | None = None
    """The reason why it does not continue, as a sentence."""
    since_unix_s: float = field(default_factory=time.time)
    task: asyncio.Task[None] | None = None
    is_from_peer: bool = False
    command: PullCommand | None = None
    """The command that the agent itself retries; None if a router has to, or nobody."""
    failures: int = 0
    """Number of failures in a row without progress."""
    furthest_bytes: int = 0
    retry_at_s: float = 0.0
    """Time from which it may be retried, on the agent's clock."""

    @property
    def wants_peer(self) -> bool:
        return self.is_from_peer and self.reason is not None

    @property
    def will_retry(self) -> bool:
        """True if it is interrupted and the agent or a router will retry it."""
        return self.wants_peer or (self.command is not None and self.task is None)

    def fail(self, failure: PullReport, command: PullCommand, now_s: float) -> None:
        self.reason = failure.failure
        if not self.is_from_peer and not failure.is_final:
            self.command = command
            self.reason = f"{self.reason} {GOES_ON}"
        self.failures = 1 if self.done_bytes > self.furthest_bytes else self.failures + 1
        self.furthest_bytes = max(self.furthest_bytes, self.done_bytes)
        # 2.0 to a large power is no float.
        self.retry_at_s = now_s + min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** min(self.failures - 1, 9))


class Pulls:
    """Owner of all pulls of the agent. Routers' tokens for the hub stay in memory."""

    def __init__(
        self,
        store: ModelStore,
        on_change: Callable[[], None],
        on_arrived: Callable[[], Awaitable[None]],
        awake: Awake,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_arrived` is called when a model is complete. `awake` keeps the machine awake during a
        pull."""
        self._store = store
        self._awake = awake
        self._on_change = on_change
        self._on_arrived = on_arrived
        self._clock = clock
        self._pulls: dict[str, _Pull] = {}
        self._closing = False

    async def start(self) -> None:
        """Resumes the pulls from the hub that the agent's last end interrupted. Those from a peer
        wait for a router and a new ticket."""
        try:
            found = await asyncio.to_thread(unfinished, self._store.folder)
        except OSError as error:
            logger.warning("Unfinished pulls cannot be listed: %s", error)
            return
        for each in found:
            self._resume(each)

    def begin(self, command: PullCommand) -> None:
        """Starts a pull, unless it is running. Raises `BadRequest`, `ShuttingDown`, or
        `UnknownModel` if the command only resumes and there is no pull that waits for a peer."""
        if self._closing:
            raise ShuttingDown
        check_command(command, self._store)
        before = self._pulls.get(command.model)
        if before is not None and before.task is not None:
            return
        if command.resumes and not (before is not None and before.wants_peer):
            raise UnknownModel(f"There is no pull of {command.model!r} that waits for a peer.")
        pull = _Pull(command.model, is_from_peer=command.peer is not None)
        self._pulls[command.model] = pull
        if before is not None:
            pull.done_bytes, pull.total_bytes = before.done_bytes, before.total_bytes
            pull.failures, pull.furthest_bytes = before.failures, before.furthest_bytes
        pull.task = asyncio.create_task(self._run(pull, command))
        self._on_change()

    def retry_due(self) -> None:
        """Retries interrupted pulls from the hub that are due."""
        now_s = self._clock()
        due = [
            each for each in self._pulls.values() if each.will_retry and each.retry_at_s <= now_s
        ]
        for command in [each.command for each in due if each.command is not None]:
            if not self._closing:
                self.begin(command)

    async def cancel(self, name: str) -> None:
        """Ends the pull and deletes its files. Raises `UnknownModel` if there is none."""
        pull = self._pulls.get(name)
        if pull is None:
            raise UnknownModel(f"There is no pull of {name!r} on this node.")
        self.stop_retries(name)
        await _end(pull)
        folder = self._store.folder_for(name)
        if (folder / PARTIAL_MARKER).exists():
            await asyncio.to_thread(delete_folder, folder)
        if self._pulls.get(name) is pull:
            del self._pulls[name]
        self._on_change()

    def is_running(self, name: str) -> bool:
        pull = self._pulls.get(name)
        return pull is not None and pull.task is not None

    def stop_retries(self, name: str) -> None:
        """Prevents retries of the pull, since its files are deleted."""
        if (pull := self._pulls.get(name)) is not None:
            pull.is_from_peer = False
            pull.command = None

    def forget(self, name: str) -> bool:
        """Removes a pull that is not running from the status; True if there was one."""
        return not self.is_running(name) and self._pulls.pop(name, None) is not None

    def statuses(self) -> tuple[ModelStatus, ...]:
        return tuple(_status(pull, self._clock()) for pull in self._pulls.values())

    async def close(self) -> None:
        """Ends all processes; the files stay."""
        self._closing = True
        await asyncio.gather(*(_end(pull) for pull in self._pulls.values()))

    def _resume(self, each: Unfinished) -> None:
        if each.repo_id:
            logger.info("Resuming the pull of %s.", each.name)
            self.begin(PullCommand(each.name, each.repo_id, each.commit or None))
            return
        self._pulls[each.name] = _Pull(
            each.name,
            done_bytes=each.here_bytes,
            reason=WAITS_FOR_PEER if each.is_from_peer else CUT_SHORT,
            is_from_peer=each.is_from_peer,
        )

    async def _run(self, pull: _Pull, command: PullCommand) -> None:
        try:
            with self._awake.work():
                failure = await self._pulled(pull, command)
        except OSError as error:
            failure = PullReport(failure=f"The process that pulls cannot be started: {error}.")
        finally:
            pull.task = None
        pull.since_unix_s = time.time()
        if failure is None:
            logger.info("Pulled %s.", pull.name)
            # Comes first, so that the status always reports the model, either as pulling or as
            # present.
            await self._on_arrived()
            if self._pulls.get(pull.name) is pull:
                del self._pulls[pull.name]
        else:
            pull.fail(failure, command, self._clock())
            logger.error("Cannot pull %s: %s", pull.name, pull.reason)
        self._on_change()

    async def _pulled(self, pull: _Pull, command: PullCommand) -> PullReport | None:
        """Runs the process to its end. Returns the report of a failure, or None."""
        process = await asyncio.create_subprocess_exec(
            *python_command(), "-m", "node.models.pull_process", stdin=PIPE, stdout=PIPE
        )
        try:
            assert process.stdin is not None and process.stdout is not None
            order = PullOrder(str(self._store.folder), command)
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            report = PullReport()
            async for line in process.stdout:
                report = msgspec.json.decode(line, type=PullReport)
                if not report.failure:
                    pull.done_bytes, pull.total_bytes = report.done_bytes, report.total_bytes
                    self._on_change()
            code = await process.wait()
        finally:
            await _kill(process)
        if report.failure:
            return report
        return PullReport(failure=ENDED_AT_ONCE.format(code)) if code else None


async def _end(pull: _Pull) -> None:
    if pull.task is not None:
        pull.task.cancel()
        await asyncio.wait({pull.task})


async def _kill(process: Process) -> None:
    send_signal(process, SIGKILL)
    await process.wait()
    assert process.stdin is not None
    process.stdin.close()


def _status(pull: _Pull, now_s: float) -> ModelStatus:
    progress = pull.done_bytes / pull.total_bytes if pull.total_bytes else 0.0
    return ModelStatus(
        name=pull.name,
        state=ModelState.PULLING,
        weight_bytes=pull.total_bytes,
        since_unix_s=pull.since_unix_s,
        reason=pull.reason,
        retry_after_s=max(0.0, pull.retry_at_s - now_s) if pull.will_retry else 0.0,
        wants_peer=pull.wants_peer,
        progress=min(max(progress, 0.0), 1.0),
        disk_bytes=pull.done_bytes,
    )
