"""Costs of requests to paid servers, and the remaining monthly budget of each key.

A request reserves the upper bound of its cost until its response shows the real one.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import ceil

from node.protocol.chain.prefix import Chain, Fields
from router.errors import PaidBudgetUsed
from router.fleet.fleet import Fleet
from router.records.outcomes import OUTCOME_NODE_FAILED, OUTCOME_REFUSED, UnreportedAttempt
from router.routing.output_limit import output_limit
from router.types import Caller, Lease, Target, Ticket

TOKENS_PER_BYTE = 0.35
"""Estimated tokens per byte of a prompt, a high value."""
OUTPUT_TOKENS = 4096
"""Assumed response tokens of a request without a limit."""


class Budgets:
    """Owner of each key's costs of this month, and of the reserved amounts."""

    def __init__(
        self,
        fleet: Fleet,
        spent: Mapping[str, float],
        wall_clock: Callable[[], float],
        on_cost: Callable[[Lease, float], None],
    ) -> None:
        """`spent` has each key's costs since the beginning of the month. `on_cost` is called with
        the cost of each attempt at a paid server."""
        self._on_cost = on_cost
        self._fleet = fleet
        self._wall_clock = wall_clock
        self._month_s = month_s(wall_clock())
        self._spent = dict(spent)
        self._reserved: dict[str, Ticket] = {}

    # --- before a request ---

    def cost_bound(self, target: Target, fields: Fields, chain: Chain | None) -> float:
        """Upper bound of a request's cost, on the server where it is highest."""
        prompt_bytes = chain.sizes[-1] if chain else sum(len(bytes(raw)) for raw in fields.values())
        prompt_tokens = ceil(prompt_bytes * TOKENS_PER_BYTE)
        output_tokens = output_limit(fields, otherwise=OUTPUT_TOKENS)
        costs = (
            view.prices.cost(prompt_tokens, 0, output_tokens)
            for view in self._fleet.snapshot
            if view.prices is not None and target.is_on(view)
        )
        return max(costs, default=0.0)

    def check(self, caller: Caller, cost: float) -> None:
        """Raises `PaidBudgetUsed` if the cost exceeds the rest of the caller's budget."""
        budget = caller.paid_budget or 0.0
        used = self.spent(caller.key_id) + self._reserved_by(caller.key_id)
        if used + cost <= budget:
            return
        now_s = self._wall_clock()
        left = max(0.0, budget - used)
        raise PaidBudgetUsed(
            f"Of this key's budget for paid servers, {budget:g} a month, {left:.2f} is left, and "
            f"the request may cost {cost:.2f}. A new month begins at {_day(now_s)} UTC.",
            retry_after_s=ceil(next_month_s(now_s) - now_s),
        )

    def reserve(self, ticket: Ticket) -> None:
        """Reserves the ticket's cost until `release`, or until the request's next ticket."""
        if ticket.cost_bound is not None:
            self._reserved[ticket.request_id] = ticket
        elif self._reserved:
            self.release(ticket)

    def release(self, ticket: Ticket) -> None:
        """Drops the ticket's reservation."""
        self._reserved.pop(ticket.request_id, None)

    # --- after a request ---

    def charge(self, ticket: Ticket, lease: Lease, ended: UnreportedAttempt) -> float | None:
        """Charges an ended attempt to its caller and returns the cost; None if it was not at a paid
        server. If the server reported no token counts, the cost is the upper bound, or 0 if it
        refused or failed the request."""
        if ticket.cost_bound is None:
            return None
        view = self._fleet.node(lease.node_id)
        failed = ended.outcome == OUTCOME_NODE_FAILED and not ended.began
        cost = ticket.cost_bound
        if ended.tokens is not None and view is not None and view.prices is not None:
            cost = view.prices.cost(*ended.tokens[:3])
        elif failed or ended.outcome == OUTCOME_REFUSED:
            cost = 0.0
        self._turn_month()
        key_id = ticket.caller.key_id
        self._spent[key_id] = self._spent.get(key_id, 0.0) + cost
        self._on_cost(lease, cost)
        return cost

    def spent(self, key_id: str) -> float:
        """The key's costs of this month."""
        self._turn_month()
        return self._spent.get(key_id, 0.0)

    def _reserved_by(self, key_id: str) -> float:
        reserved = (each for each in self._reserved.values() if each.caller.key_id == key_id)
        return sum(each.cost_bound or 0.0 for each in reserved)

    def _turn_month(self) -> None:
        now = month_s(self._wall_clock())
        if now != self._month_s:
            self._month_s = now
            self._spent.clear()


def month_s(at_s: float) -> float:
    """Unix time at which the calendar month began, in UTC."""
    at = datetime.fromtimestamp(at_s, UTC)
    return datetime(at.year, at.month, 1, tzinfo=UTC).timestamp()


def next_month_s(at_s: float) -> float:
    at = datetime.fromtimestamp(at_s, UTC)
    years, month = divmod(at.month, 12)
    return datetime(at.year + years, month + 1, 1, tzinfo=UTC).timestamp()


def _day(at_s: float) -> str:
    """ISO date of the next month's first day."""
    return datetime.fromtimestamp(next_month_s(at_s), UTC).date().isoformat()
