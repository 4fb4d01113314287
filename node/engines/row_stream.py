"""One request at an engine, as the agent sees it."""

import asyncio
import time
from collections.abc import Callable

from node.errors import NodeError
from node.ipc.messages import Accepted, Delta, Progress
from node.protocol.messages import FinishReason

_GRAVITY = (
    FinishReason.STOP,
    FinishReason.LENGTH,
    FinishReason.CANCELLED,
    FinishReason.REFUSED,
    FinishReason.ERROR,
)


class RowStream:
    """One request at an engine: accepted or refused, then deltas until the last."""

    def __init__(self, uid: str, on_end: "RowEnd") -> None:
        self.uid = uid
        self.accepted: Accepted | None = None
        self.token_count = 0
        """Output tokens of all choices."""
        self.finish: FinishReason | None = None
        """The most severe finish reason of its choices so far."""
        self.first_content_s: float | None = None
        """Monotonic time of the first text."""
        self.progress: Progress | None = None
        """Progress of the prefill as last reported; None before and after it."""
        self.ended = False
        self.failure: NodeError | None = None
        self._on_end = on_end
        self._deltas: list[Delta] = []
        self._choice_tokens: dict[int, int] = {}
        """Output tokens of each choice so far."""
        self._waiter: asyncio.Future[None] | None = None

    async def until_accepted(self) -> Accepted:
        """Waits until the engine has accepted the request. Raises `RowRefused`, `EngineDied`, or
        the error that the row was abandoned with."""
        while self.accepted is None and self.failure is None:
            await self._wait(None)
        if self.failure is not None:
            raise self.failure
        assert self.accepted is not None
        return self.accepted

    async def next(self, timeout_s: float | None = None) -> list[Delta]:
        """Returns all buffered deltas, in order; an empty list after `timeout_s` without one. Once
        the buffer is empty, raises `EngineDied` or the error that the row was abandoned with."""
        if not self._deltas and self.failure is None:
            await self._wait(timeout_s)
        deltas, self._deltas = self._deltas, []
        if not deltas and self.failure is not None:
            raise self.failure
        return deltas

    def on_accepted(self, accepted: Accepted) -> None:
        self.accepted = accepted
        self._wake()

    def on_delta(self, delta: Delta) -> None:
        self._deltas.append(delta)
        self.token_count += delta.token_count - self._choice_tokens.get(delta.choice, 0)
        self._choice_tokens[delta.choice] = delta.token_count
        if delta.parts and self.first_content_s is None:
            self.first_content_s = time.monotonic()
            self.progress = None
        if delta.finish is not None and (
            self.finish is None or _GRAVITY.index(delta.finish) > _GRAVITY.index(self.finish)
        ):
            self.finish = delta.finish
        if delta.is_last:
            self._end(delta)
        self._wake()

    def on_progress(self, progress: Progress) -> None:
        if self.first_content_s is None:
            is_done = progress.done_tokens >= progress.total_tokens
            self.progress = None if is_done else progress

    def on_failure(self, failure: NodeError) -> None:
        self.failure = failure
        self._end(None)
        self._wake()

    def _end(self, last: Delta | None) -> None:
        self.ended = True
        self._on_end(self, last)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self, timeout_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if timeout_s is None else loop.call_later(timeout_s, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


RowEnd = Callable[[RowStream, Delta | None], None]
"""Called once for each row, with its last delta; None if it failed without one."""
