"""The node's events, for routers that are connected and for those that reconnect later."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

import msgspec

from node.agent.open_request import Job
from node.protocol.messages import Event, Finished, PrefixDelta

MOST_FINISHED = 10_000
SUBSCRIBER_LIMIT = 20_000
"""Events that may wait for one subscriber before it is disconnected."""
SUBSCRIBER_BYTES = 64 << 20
"""Bytes of prefixes in those events, the only large part of any event."""


OnFinished = Callable[[Finished, Job], None]


class EventHub:
    """Keeps the last finished requests, and publishes all events to the subscribers."""

    def __init__(self) -> None:
        self._listeners: list[OnFinished] = []
        self._finished: deque[Finished] = deque(maxlen=MOST_FINISHED)
        self._seq = 0
        self._subscribers: set[_Subscriber] = set()
        self._watched = asyncio.Event()
        self._closed = False

    def listen(self, on_finished: OnFinished) -> None:
        """Calls the listener with each record from now on, and with its request."""
        self._listeners.append(on_finished)

    async def until_watched(self) -> None:
        """Waits until there is a subscriber."""
        await self._watched.wait()

    @property
    def is_watched(self) -> bool:
        return bool(self._subscribers)

    def finish(self, finished: Finished, job: Job) -> None:
        """Numbers the record, keeps it and publishes it."""
        self._seq += 1
        numbered = msgspec.structs.replace(finished, seq=self._seq)
        self._finished.append(numbered)
        for listener in self._listeners:
            listener(numbered, job)
        self.publish(numbered)

    def publish(self, event: Event) -> None:
        for subscriber in tuple(self._subscribers):
            subscriber.on_event(event)
            if subscriber.closed:
                self._drop(subscriber)

    def close(self) -> None:
        """Ends all subscriptions. A later one gets the kept records, and ends."""
        self._closed = True
        for subscriber in tuple(self._subscribers):
            subscriber.close()
            self._drop(subscriber)

    async def subscribe(
        self, first: Event, after: int, pieces: Callable[[], Iterator[Event]] = lambda: iter(())
    ) -> AsyncIterator[list[Event]]:
        """Yields `first` and the kept records after number `after`. Then, one per turn of the event
        loop, the events that `pieces` makes of the state at the start; then everything new since,
        all that waits at a time. Ends for a subscriber with more than `SUBSCRIBER_LIMIT` events or
        `SUBSCRIBER_BYTES` waiting."""
        subscriber = _Subscriber([first, *(kept for kept in self._finished if kept.seq > after)])
        if self._closed:
            subscriber.close()
        self._subscribers.add(subscriber)
        self._watched.set()
        try:
            made = pieces()
            yield await subscriber.read()
            for piece in made:
                yield [piece]
                await asyncio.sleep(0)
            while events := await subscriber.read():
                yield events
        finally:
            self._drop(subscriber)

    def _drop(self, subscriber: "_Subscriber") -> None:
        self._subscribers.discard(subscriber)
        if not self._subscribers:
            self._watched.clear()


class _Subscriber:
    def __init__(self, events: list[Event]) -> None:
        self.closed = False
        self._events = events
        self._waiting_bytes = 0
        self._some = asyncio.Event()
        self._some.set()

    def on_event(self, event: Event) -> None:
        if isinstance(event, PrefixDelta):
            self._waiting_bytes += len(event.changed) + len(event.removed)
        if len(self._events) >= SUBSCRIBER_LIMIT or self._waiting_bytes > SUBSCRIBER_BYTES:
            self._events.clear()
            self.close()
            return
        self._events.append(event)
        self._some.set()

    def close(self) -> None:
        self.closed = True
        self._some.set()

    async def read(self) -> list[Event]:
        """All events that wait; empty at the end."""
        await self._some.wait()
        events, self._events = self._events, []
        self._waiting_bytes = 0
        if not self.closed:
            self._some.clear()
        return events
