"""Cancels the work for clients that disconnect, whatever its phase."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import cast

from router.errors import ShuttingDown
from serving.http.exchange import Exchange


class CancelOnDisconnect:
    """A context for the current task, which is cancelled when its client disconnects; that ends the
    context and is no error. Raises `ShuttingDown` if the task is cancelled for another reason."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._task = cast("asyncio.Task[None]", asyncio.current_task())

    def __enter__(self) -> None:
        self._exchange.on_disconnect = self._task.cancel
        if self._exchange.disconnected:
            self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        self._exchange.on_disconnect = None
        if kind is not asyncio.CancelledError:
            return False
        self._task.uncancel()
        if not self._exchange.disconnected:
            raise ShuttingDown from None
        return True
