"""Callers that leave: their work is cancelled, in whatever phase it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import cast

from router.errors import ShuttingDown
from serving.exchange import Exchange


async def cancel_when_left(work: Awaitable[None], exchange: Exchange) -> None:
    """Awaits `work`, and cancels it when its caller leaves. Raises `ShuttingDown` where somebody
    else cancels it: nobody else does."""
    task = cast("asyncio.Task[None]", asyncio.current_task())
    exchange.on_left = task.cancel
    if exchange.left:
        task.cancel()
    try:
        await work
    except asyncio.CancelledError:
        task.uncancel()
        if not exchange.left:
            raise ShuttingDown from None
    finally:
        exchange.on_left = None
