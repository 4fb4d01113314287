"""The router without placement: `python -m tests.bench.relay_alone`, set up as `router serve` is by
its environment.

Everything is the router as `router serve` runs it, but requests go to the nodes in turn: no prompt
is looked at, nothing is compared, queued or learned. What is left is what the relay alone costs.
"""

import asyncio
import itertools
import socket
from dataclasses import replace

import uvloop

from node.protocol.chain.prefix import Fields, Head, PrefixHasher
from router.app import open_core
from router.commands.serve import (
    Server,
    stopped_by_signals,
    tune_garbage_collector,
)
from router.fleet.prefix_index import PrefixIndex
from router.scheduler.scheduler import Scheduler
from router.settings import Settings, read_settings
from router.types import Action, Decision, Grant, Lease, Moment, Ticket
from serving.http.listening import listening
from serving.http.quiet_server import Stop


class InTurn(Scheduler):
    """The next node, whatever is requested."""

    def __init__(self) -> None:
        super().__init__(PrefixIndex())
        self._turns = itertools.count()

    def on_request(self, ticket: Ticket, moment: Moment) -> list[Action]:
        view = moment.fleet[next(self._turns) % len(moment.fleet)]
        instance_id = view.status.instance_id if view.status else ""
        lease = Lease(ticket.request_id, view.node_id, ticket.model, moment.now_s, 1, instance_id)
        return [Grant(lease, Decision(ticket.request_id, ticket.model, moment.now_s, "", ()))]

    def on_first_content(self, lease: Lease, moment: Moment) -> list[Action]:
        return []

    def on_done(
        self, lease: Lease, moment: Moment, *, served: bool, failed: bool = False
    ) -> list[Action]:
        return []


class NoChains(PrefixHasher):
    """Looks at no prompt."""

    def chain(
        self, fields: Fields, path: str, model: str, *, salt: str = "", head: Head | None = None
    ) -> None:
        return None


async def serve(settings: Settings, listeners: list[socket.socket], stop: Stop) -> None:
    async with open_core(settings) as core:
        driver = core.dispatcher._driver
        driver._scheduler = driver.traffic._scheduler = InTurn()
        tune_garbage_collector()
        await Server(replace(core, prefix_hasher=NoChains()), stop).serve(listeners)


def main() -> None:
    settings, stop = read_settings({}), Stop()
    with (
        listening(settings.host, settings.port) as listeners,
        stopped_by_signals(stop),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(serve(settings, listeners, stop))


if __name__ == "__main__":
    main()
