"""Wakes nodes that sleep, and learns how long that takes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from registry.records import NodeRecord
from router.fleet.fleet import Fleet
from router.types import NodeView
from router.upstream import magic_packet
from router.waking import Waking
from serving.terminal.error_text import error_text

USUAL_S = 20.0
"""Seconds that a node takes to respond, until it has been woken once."""
NEWEST_SHARE = 0.3
"""Weight of the newest time in the mean."""
MOST_S = 60.0
"""Seconds after which a node that does not respond counts as one that cannot be woken."""
AGAIN_S = 4.0
"""Seconds between two packets: one may be lost."""
REST_S = 600.0
"""Seconds for which requests do not wake a node that did not respond."""

log = logging.getLogger("mlx_fleet.nodes")

Send = Callable[[Sequence[str], Sequence[str]], None]
"""Sends packets for these MAC addresses to these addresses. Raises `OSError`."""


@dataclass(slots=True)
class _Known:
    """A node, and all that is known of its waking."""

    record: NodeRecord
    usual_s: float = USUAL_S
    begun_s: float | None = None
    rests_until_s: float | None = None
    task: asyncio.Task[None] | None = None
    awake: asyncio.Event | None = None


class Waker:
    """Owner of the times that nodes take to wake, and of the tasks that wake them."""

    def __init__(
        self,
        fleet: Fleet,
        send: Send = magic_packet.send,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._send = send
        self._clock = clock
        self._nodes: dict[str, _Known] = {}
        fleet.listen(self._on_fleet)

    def follow(self, record: NodeRecord) -> None:
        """Applies how a node that is new or has changed is woken."""
        known = self._nodes.get(record.id)
        if known is None:
            self._nodes[record.id] = _Known(record)
        else:
            known.record = record
            known.rests_until_s = None
        self._show(record.id)

    def forget(self, node_id: str) -> None:
        known = self._nodes.pop(node_id, None)
        if known is not None and known.task is not None:
            known.task.cancel()

    async def close(self) -> None:
        tasks = [each.task for each in self._nodes.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def macs(self, node_id: str) -> tuple[str, ...]:
        """The MAC addresses that the node is woken at: the one that an admin has set, else those
        that its agent reports or has reported last."""
        known, view = self._nodes.get(node_id), self._fleet.node(node_id)
        if known is None:
            return ()
        if known.record.wake_mac is not None:
            return (known.record.wake_mac,)
        reported = view.status.macs if view is not None and view.status is not None else ()
        return reported or known.record.macs or ()

    def is_waking(self, node_id: str) -> bool:
        known = self._nodes.get(node_id)
        return known is not None and known.task is not None

    def wake(self, node_id: str) -> bool:
        """Begins to wake the node, unless it is awake or being woken. False if its MAC address is
        not known."""
        known, view = self._nodes.get(node_id), self._fleet.node(node_id)
        if known is None or view is None or not self.macs(node_id):
            return False
        if known.task is None and not view.reachable:
            known.begun_s = self._clock()
            known.awake = asyncio.Event()
            known.task = asyncio.create_task(self._run(node_id, known, known.awake))
            self._show(node_id)
        return True

    async def _run(self, node_id: str, known: _Known, awake: asyncio.Event) -> None:
        name, begun_s = known.record.name, self._clock()
        log.info("node %s is being woken", name)
        try:
            is_awake = await self._send_until(node_id, known, awake)
        finally:
            known.task, known.awake, known.begun_s = None, None, None
        took_s = self._clock() - begun_s
        if is_awake:
            known.usual_s += NEWEST_SHARE * (took_s - known.usual_s)
            log.info("node %s is awake after %.1f s", name, took_s)
        else:
            known.rests_until_s = self._clock() + REST_S
            log.warning(
                "node %s could not be woken; no request tries it for %.0f min",
                *(name, REST_S / 60),
            )
            asyncio.get_running_loop().call_later(REST_S, self._show, node_id)
        self._show(node_id)

    async def _send_until(self, node_id: str, known: _Known, awake: asyncio.Event) -> bool:
        """Sends packets until the node responds, or for `MOST_S`."""
        for _ in range(int(MOST_S / AGAIN_S)):
            view = self._fleet.node(node_id)
            if view is None:
                return False
            if view.reachable:
                return True
            addresses = magic_packet.targets(view.url)
            try:
                await asyncio.to_thread(self._send, self.macs(node_id), addresses)
            except OSError as error:
                log.warning("node %s cannot be woken: %s", known.record.name, error_text(error))
                return False
            try:
                async with asyncio.timeout(AGAIN_S):
                    await awake.wait()
                    return True
            except TimeoutError:
                continue
        return False

    def _on_fleet(self) -> None:
        for view in self._fleet.snapshot:
            known = self._nodes.get(view.node_id)
            if known is None:
                continue
            if view.reachable:
                known.rests_until_s = None
                if known.awake is not None:
                    known.awake.set()
            self._show(view.node_id)

    def _show(self, node_id: str) -> None:
        """Shows the fleet whether requests may wake the node."""
        view = self._fleet.node(node_id)
        if view is not None:
            self._fleet.set_waking(node_id, self._waking(view))

    def _waking(self, view: NodeView) -> Waking | None:
        known = self._nodes.get(view.node_id)
        if known is None or not known.record.wakes or not self.macs(view.node_id):
            return None
        rests = known.rests_until_s is not None and self._clock() < known.rests_until_s
        return None if rests else Waking(known.usual_s, known.begun_s)
