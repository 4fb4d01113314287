"""What requests to paid servers cost, and what each key has left of its month's budget.

A request holds the most that it is taken to cost until its answer says what it did.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from math import ceil

import msgspec

from node.protocol.prefix import Chain, Fields
from router.errors import PaidBudgetUsed
from router.fleet.fleet import Fleet
from router.records.ledger import OUTCOME_NODE_FAILED, OUTCOME_REFUSED, Ended
from router.types import Caller, Lease, Target, Ticket

TOKENS_PER_BYTE = 0.35
"""Of a prompt, taken high."""
ANSWER_TOKENS = 4096
"""Of an answer whose request has no limit of its own."""
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_ANSWERS = ("n", "best_of")
_MOST = 1_000_000_000


_NULL = msgspec.Raw(b"null")
_decode_number = msgspec.json.Decoder(int | float | None).decode
_decode_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Budgets:
    """One owner of what each key has spent this month, and of what is held."""

    def __init__(
        self, fleet: Fleet, spent: Mapping[str, float], wall_clock: Callable[[], float]
    ) -> None:
        """`spent`: by key, since the beginning of the month."""
        self.on_cost: Callable[[Lease, float], None] = lambda lease, cost: None
        """Called with what an attempt at a paid server has cost."""
        self._fleet = fleet
        self._wall_clock = wall_clock
        self._month_s = month_s(wall_clock())
        self._spent = dict(spent)
        self._held: dict[str, Ticket] = {}

    # --- before a request ---

    def most_cost(self, target: Target, fields: Fields, chain: Chain | None) -> float:
        """What a request is taken to cost at most, where it costs most."""
        prompt_bytes = chain.sizes[-1] if chain else sum(len(bytes(raw)) for raw in fields.values())
        prompt_tokens = ceil(prompt_bytes * TOKENS_PER_BYTE)
        answers = max(_number(fields, (name,), 1) for name in _ANSWERS) * _prompts(fields)
        answer_tokens = _number(fields, _LIMITS, ANSWER_TOKENS) * answers
        costs = (
            view.prices.cost(prompt_tokens, 0, answer_tokens)
            for view in self._fleet.snapshot
            if view.prices is not None and target.is_on(view)
        )
        return max(costs, default=0.0)

    def check(self, caller: Caller, cost: float) -> None:
        """Raises `PaidBudgetUsed` where the caller has not so much left."""
        budget = caller.paid_budget or 0.0
        used = self.spent(caller.key_id) + self._held_by(caller.key_id)
        if used + cost <= budget:
            return
        now_s = self._wall_clock()
        left = max(0.0, budget - used)
        raise PaidBudgetUsed(
            f"Of this key's budget for paid servers, {budget:g} a month, {left:.2f} is left, and "
            f"the request may cost {cost:.2f}. A new month begins at {_day(now_s)} UTC.",
            retry_after_s=ceil(next_month_s(now_s) - now_s),
        )

    def hold(self, ticket: Ticket) -> None:
        """Until `release`, or the request's next ticket, nobody else has what this one may
        cost."""
        if ticket.may_cost is not None:
            self._held[ticket.request_id] = ticket
        elif self._held:
            self.release(ticket)

    def release(self, ticket: Ticket) -> None:
        """The ticket's request is over."""
        self._held.pop(ticket.request_id, None)

    # --- after it ---

    def charge(self, ticket: Ticket, lease: Lease, ended: Ended) -> float | None:
        """What an attempt has cost its caller; None where it was none at a paid server. Without the
        server's word it is the most that it may have cost, unless it was refused or failed."""
        if ticket.may_cost is None:
            return None
        view = self._fleet.node(lease.node_id)
        failed = ended.outcome == OUTCOME_NODE_FAILED and not ended.began
        cost = ticket.may_cost
        if ended.tokens is not None and view is not None and view.prices is not None:
            cost = view.prices.cost(*ended.tokens)
        elif failed or ended.outcome == OUTCOME_REFUSED:
            cost = 0.0
        self._turn_month()
        key_id = ticket.caller.key_id
        self._spent[key_id] = self._spent.get(key_id, 0.0) + cost
        self.on_cost(lease, cost)
        return cost

    def spent(self, key_id: str) -> float:
        """This month."""
        self._turn_month()
        return self._spent.get(key_id, 0.0)

    def _held_by(self, key_id: str) -> float:
        held = (each for each in self._held.values() if each.caller.key_id == key_id)
        return sum(each.may_cost or 0.0 for each in held)

    def _turn_month(self) -> None:
        now = month_s(self._wall_clock())
        if now != self._month_s:
            self._month_s = now
            self._spent.clear()


def month_s(at_s: float) -> float:
    """When the calendar month began, in UTC."""
    at = datetime.fromtimestamp(at_s, UTC)
    return datetime(at.year, at.month, 1, tzinfo=UTC).timestamp()


def next_month_s(at_s: float) -> float:
    at = datetime.fromtimestamp(at_s, UTC)
    years, month = divmod(at.month, 12)
    return datetime(at.year + years, month + 1, 1, tzinfo=UTC).timestamp()


def _day(at_s: float) -> str:
    """Of the next month, its first."""
    return datetime.fromtimestamp(next_month_s(at_s), UTC).date().isoformat()


def _number(fields: Fields, names: Iterable[str], otherwise: int) -> int:
    """Of the first field that is there; one that is no number is for the server to refuse."""
    for name in names:
        try:
            number: int | float | None = _decode_number(fields.get(name, _NULL))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if number is not None and number > 0:
            return ceil(min(number, _MOST))
    return otherwise


def _prompts(fields: Fields) -> int:
    """How many texts are to be completed, each by itself."""
    raw = fields.get("prompt", _NULL)
    if not bytes(raw).startswith(b"["):
        return 1
    try:
        parts = _decode_parts(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 1
    return max(1, sum(bytes(part)[:1] in (b'"', b"[") for part in parts))
