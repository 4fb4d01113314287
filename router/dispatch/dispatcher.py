"""Performs the scheduler's actions: sends requests to nodes, and reports to scheduler and ledger
how they ended. Nothing else sends an inference request to a node."""

import asyncio
import errno
import logging
import os
import time
from collections.abc import Awaitable
from dataclasses import dataclass

from msgspec.structs import replace

from node.protocol.paths import PATH_COUNT_TOKENS
from router.dispatch.scheduler_driver import SchedulerDriver
from router.errors import (
    DeadlineExceeded,
    NodeFailed,
    NodeRefused,
    OwnerUnreachable,
    RouterError,
    WrongNodeToken,
)
from router.fleet.fleet import Fleet
from router.fleet.prefix_index import PrefixIndex
from router.fleet.watcher import Watcher
from router.records.decisions import Decisions
from router.records.ledger import Ledger
from router.records.metrics import Metrics
from router.records.outcomes import (
    OUTCOME_CANCELLED,
    OUTCOME_NODE_FAILED,
    OUTCOME_REFUSED,
    OUTCOME_SERVED,
)
from router.scheduler.rejects import RETRY_AFTER_S
from router.settings import CONNECT_TIMEOUT_S
from router.states import KIND_AGENT
from router.types import Caller, Failure, Lease, NodeView, Ticket, Verdict
from router.upstream.foreign import ForeignResponse
from router.upstream.http_failures import CutOff, NotConnected, UpstreamBroken
from router.upstream.http_response import Response
from router.upstream.node_client import WholeResponse
from serving.log_limiter import LogLimiter
from serving.terminal.error_text import error_text

log = logging.getLogger("mlx_fleet.router")

_REMOVED = "The node was removed from the fleet."
ROUTER_FAULT_STATUSES = frozenset((*range(300, 400), 401, 403, 421, 426))
"""Statuses by which a node rejects the router's token, address or version, although the caller's
own key is valid. Redirects are among them, since they would lead around the router."""


@dataclass(frozen=True, slots=True)
class DispatchRecords:
    """The parts that keep what dispatched requests have shown."""

    prefixes: PrefixIndex
    decisions: Decisions
    metrics: Metrics


class NotSent(NodeFailed):
    """The request did not reach its node."""


class EndedByAdmin(NodeFailed):
    """An admin has ended the request on its node, which has not failed."""


class Dispatcher:
    """Sends tickets to nodes and reports their outcomes."""

    def __init__(
        self,
        fleet: Fleet,
        watcher: Watcher,
        ledger: Ledger,
        driver: SchedulerDriver,
        records: DispatchRecords,
    ) -> None:
        self._fleet = fleet
        self._watcher = watcher
        self._ledger = ledger
        self._driver = driver
        self._records = records
        self.traffic = driver.traffic
        self._without_token_count: set[str] = set()
        """Ids of servers that refuse the field which requests a token count."""
        self._log_limiter = LogLimiter()

    async def place(self, ticket: Ticket) -> Lease:
        """Waits for a lease, as `SchedulerDriver.place`, and records the failure of a request that
        gets none."""
        try:
            return await self._driver.place(ticket)
        except RouterError as error:
            self._records.metrics.request_ended(ticket.model, "", error.code)
            raise
        except asyncio.CancelledError:
            self._records.metrics.request_ended(ticket.model, "", OUTCOME_CANCELLED)
            self._ledger.left(ticket)
            raise

    async def place_again(
        self, ticket: Ticket, lease: Lease, failure: Failure, retry_after_s: float | None = None
    ) -> Lease | None:
        """Returns a lease in place of one whose node failed before content, as
        `SchedulerDriver.place_again`; None if no node can take the ticket.

        Raises `DeadlineExceeded`.
        """
        has_responded = failure in (Failure.ERROR_RESPONSE, Failure.BUSY)
        outcome = OUTCOME_REFUSED if has_responded else OUTCOME_NODE_FAILED
        self._ledger.ended(lease, time.monotonic(), outcome)
        self._record_end(lease, outcome)
        try:
            return await self._driver.place_again(ticket, lease, failure, retry_after_s)
        except DeadlineExceeded:
            raise
        except asyncio.CancelledError:
            self._ledger.left(ticket)
            raise
        except RouterError:
            return None
        finally:
            self._release_client(lease.node_id)

    def prepare(self, ticket: Ticket, lease: Lease) -> ForeignResponse | None:
        """Starts the usage record of an attempt; returns the reader of the response if the node is
        a third-party server.

        Raises `NotSent` if the node was removed or restarted.
        """
        view = self._fleet.node(lease.node_id)
        if view is None or self._watcher.client(lease.node_id) is None:
            raise NotSent(_REMOVED)
        instance_id = view.status.instance_id if view.status else ""
        if instance_id != lease.instance_id:
            raise NotSent(f"The node {view.name} has restarted.")
        reported = view.kind == KIND_AGENT
        if ticket.path != PATH_COUNT_TOKENS:
            self._ledger.opened(ticket, lease, view.name, instance_id, reported=reported)
        if reported:
            return None
        may_add_count = lease.node_id not in self._without_token_count
        return ForeignResponse(ticket, may_add_count=may_add_count)

    def open(
        self, ticket: Ticket, lease: Lease, foreign: ForeignResponse | None
    ) -> Awaitable[Response]:
        """Sends the ticket to its node and returns the response once its head has arrived.
        `foreign` is what `prepare` returned. Raises `OSError` if the connection fails before
        that."""
        client = self._watcher.client(lease.node_id)
        if client is None:
            raise NotSent(_REMOVED)
        if foreign is not None and foreign.body is not ticket.body:
            ticket = replace(ticket, path=foreign.path, body=foreign.body)
        return client.open(ticket, lease, self._ledger.origins.marks(ticket, lease))

    def disable_token_count(self, lease: Lease) -> None:
        """Notes that the lease's node refuses the field which requests a token count."""
        self._without_token_count.add(lease.node_id)

    async def follow_up(
        self, view: NodeView, caller: Caller, method: str, target: str
    ) -> WholeResponse:
        """Forwards a request about an object that a node stores; returns its response, whatever the
        status.

        Raises `OwnerUnreachable` if the node cannot be reached, and what `refused` returns if it
        rejects the router.
        """
        client = self._watcher.client(view.node_id)
        if client is None or not view.reachable:
            raise owner_unreachable(view)
        try:
            response = await client.follow_up(method, target, self._ledger.origins.of(caller))
        except OSError as error:
            raise owner_unreachable(view) from error
        if response.status in ROUTER_FAULT_STATUSES:
            raise _refusal(view.name, response.status)
        return response

    def node_failed(self, lease: Lease, error: Exception) -> NodeFailed:
        """Returns the error for a broken connection to the lease's node."""
        name = self.node_name(lease)
        if isinstance(error, CutOff):
            return EndedByAdmin(f"The node {name} is being drained.")
        if isinstance(error, NotConnected):
            return NodeFailed(f"The node {name} took no connection within {CONNECT_TIMEOUT_S:g} s.")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            short = "The router has as many files open as it may (`ulimit -n`)"
            if self._log_limiter.due(short):
                more = self._log_limiter.suppressed(short)
                log.warning("%s: a request could not be sent to its node%s.", short, more)
            return NotSent(f"{short}.")
        return NodeFailed(f"The connection to the node {name} broke{_cause(error)}.")

    def refused(self, lease: Lease, status: int) -> RouterError:
        """Returns the error for a node that rejects the router itself; the caller's key is
        valid."""
        return _refusal(self.node_name(lease), status)

    def node_name(self, lease: Lease) -> str:
        return self._fleet.name_of(lease.node_id)

    def on_first_content(self, ticket: Ticket, lease: Lease) -> None:
        """Records that the first content of the response is being sent to the client."""
        ttft_s = time.monotonic() - ticket.arrived_s
        self._ledger.began(lease, ttft_s)
        self._driver.on_first_content(lease, ttft_s)

    def done(
        self, ticket: Ticket, lease: Lease, outcome: str, response: ForeignResponse | None = None
    ) -> None:
        """Ends the request with its outcome. An agent's usage record says later whether it was
        served; a third-party server's usage is read from its response."""
        now_s = time.monotonic()
        view = self._fleet.node(lease.node_id)
        judged_later = view is None or view.kind == KIND_AGENT
        served = outcome == OUTCOME_SERVED and not judged_later
        self._driver.on_done(lease, served=served, failed=outcome == OUTCOME_NODE_FAILED)
        tokens = response.tokens if response else None
        if served and ticket.chain is not None:
            prompt_tokens = (tokens.prompt if tokens else 0) or lease.prompt_tokens
            self._records.prefixes.on_served(lease.node_id, ticket.chain, prompt_tokens)
        if response is not None and tokens is not None:
            self._records.metrics.third_party_tokens(lease, tokens)
            usage = response.usage_record(lease, now_s)
            self._records.decisions.on_verdict(Verdict(lease, now_s, failed=False, usage=usage))
        self._ledger.ended(lease, now_s, outcome, tokens, response.events if response else None)
        self._record_end(lease, outcome)
        self._release_client(lease.node_id)

    def _record_end(self, lease: Lease, outcome: str) -> None:
        self._records.decisions.ended(lease.ticket_id, outcome)
        self._records.metrics.request_ended(lease.model, lease.node_id, outcome)

    def forget_node(self, node_id: str) -> None:
        """Deletes what was learned about a removed node, and closes its client once it is idle."""
        self._driver.on_node_removed(node_id)
        self._without_token_count.discard(node_id)
        self._release_client(node_id)

    def _release_client(self, node_id: str) -> None:
        if self._watcher.awaits_release(node_id) and not self.traffic.in_flight(node_id):
            self._watcher.release(node_id)
            # A node that was added again meanwhile keeps what was learned since.
            if self._watcher.client(node_id) is None:
                self._driver.on_node_removed(node_id)


def owner_unreachable(view: NodeView, otherwise: str = "") -> OwnerUnreachable:
    """Returns the error for an unreachable node that alone can serve the caller; `otherwise` names
    the alternative, as the rest of a sentence."""
    return OwnerUnreachable(
        f"The node {view.name}, which stores this, cannot be reached now; try again later"
        f"{otherwise}.",
        retry_after_s=RETRY_AFTER_S,
    )


def _cause(error: Exception) -> str:
    """Describes how a connection broke, as the end of a sentence. Messages of other libraries are
    left out, since they may contain the node's address, which callers must not see."""
    if isinstance(error, UpstreamBroken):
        return f" ({error_text(error)})"
    number = error.errno if isinstance(error, OSError) else None
    return "" if number is None else f" ({os.strerror(number)})"


def _refusal(name: str, status: int) -> RouterError:
    if status in (401, 403):
        return WrongNodeToken(
            f"The node {name} refused the router's token; it has to be removed and added again "
            "with the right one."
        )
    return NodeRefused(f"The node {name} refused the router's request with status {status}.")
