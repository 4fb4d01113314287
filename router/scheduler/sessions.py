"""Which node a session was served by. Hints: nothing breaks where they are wrong or lost."""

from collections import OrderedDict
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from router.scheduler.warm_sessions import Demand
from router.types import Ticket

MAX_SESSIONS = 20_000
TTL_S = 3600.0
"""A session that was quiet for so long is forgotten."""

FIRST_TURNS_PER_S, FIRST_TOKENS = 0.1, 500.0
"""What a session's turns are taken for before there were any."""
MIN_GAP_S = 0.5
GAP_WEIGHT, TOKENS_WEIGHT = 0.4, 0.3
"""Of the latest turn in a session's means; of the first ones, more."""


class Pace(msgspec.Struct, frozen=True):
    """How often a session has turns, and how much of each has to be prefilled where it is warm.

    What a turn costs where it is not warm says nothing of those to come: a first prompt of a minute
    may have turns of a second after it.
    """

    turns_per_s: float = FIRST_TURNS_PER_S
    tokens: float = FIRST_TOKENS
    """That a turn adds to its prompt."""
    squared_tokens: float = FIRST_TOKENS**2
    turns: int = 0

    def after_gap(self, gap_s: float) -> "Pace":
        """The next turn came so long after the one before."""
        mean_s = (1.0 - GAP_WEIGHT) / self.turns_per_s + GAP_WEIGHT * max(MIN_GAP_S, gap_s)
        return replace(self, turns_per_s=1.0 / mean_s)

    def after_turn(self, tokens: float) -> "Pace":
        """A turn has added so many."""
        weight = max(TOKENS_WEIGHT, 1.0 / (self.turns + 2))
        return replace(
            self,
            tokens=self.tokens + weight * (tokens - self.tokens),
            squared_tokens=self.squared_tokens + weight * (tokens**2 - self.squared_tokens),
            turns=self.turns + 1,
        )

    def demand(self, slowness: float) -> Demand:
        """Where a token takes so many times as long as one at a prompt's beginning."""
        return Demand(
            self.turns_per_s,
            self.turns_per_s * self.tokens * slowness,
            self.turns_per_s * self.squared_tokens * slowness**2,
        )


NEW_PACE = Pace()


@dataclass(slots=True)
class Session:
    key: str
    node_id: str
    head: int
    """Last hash of its latest chain."""
    ticket_id: str
    """Of its latest turn."""
    prompt_bytes: int
    """Of that chain; 0 where it is not the whole prompt's."""
    prompt_tokens: int
    """Of that chain, as its node counted; 0 where it did not, or counted more than that."""
    arrived_s: float
    """When its latest turn came."""
    pace: Pace
    used_s: float


class Sessions:
    """Owner of the table, the least recently used first."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[str, Session] = OrderedDict()
        self._by_head: dict[int, str] = {}
        self._by_ticket: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, ticket: Ticket, now_s: float) -> Session | None:
        """The ticket's own session: by the client's hint, else by the response or the chain that it
        goes on from; else the session that it came from."""
        hints = ticket.hints
        return (
            self._known(hints.session, now_s)
            or self._known(self._key_of_turn(ticket), now_s)
            or self._known(hints.parent, now_s)
        )

    def key(self, ticket: Ticket) -> str:
        """What the ticket's session is to be called, whether it is known or not."""
        chain = ticket.chain
        return (
            ticket.hints.session
            or self._key_of_turn(ticket)
            or (f"#{chain.head:x}" if chain else f"?{ticket.request_id}")
        )

    def bind(self, session: Session) -> str | None:
        """The session has been served. Returns the node where it was before, if that is another
        one."""
        before = self._by_key.pop(session.key, None)
        if before is not None:
            self._forget_turn(before)
        self._by_key[session.key] = session
        self._by_head[session.head] = session.key
        self._by_ticket[session.ticket_id] = session.key
        self._expire(session.used_s)
        return before.node_id if before and before.node_id != session.node_id else None

    def _known(self, key: str, now_s: float) -> Session | None:
        session = self._by_key.get(key) if key else None
        return session if session is not None and now_s - session.used_s < TTL_S else None

    def _key_of_turn(self, ticket: Ticket) -> str:
        """Of the session whose latest turn the ticket goes on from."""
        key = self._by_ticket.get(ticket.follows) if ticket.follows else None
        if key is not None:
            return key
        chain = ticket.chain
        if chain is None:
            return ""
        # A session's latest chain ends with an item's end.
        for end in reversed(chain.items):
            key = self._by_head.get(chain.hashes[end - 1]) if end else None
            if key is not None:
                return key
        return ""

    def _expire(self, now_s: float) -> None:
        while self._by_key:
            key, session = next(iter(self._by_key.items()))
            if len(self._by_key) <= MAX_SESSIONS and now_s - session.used_s < TTL_S:
                return
            del self._by_key[key]
            self._forget_turn(session)

    def _forget_turn(self, session: Session) -> None:
        if self._by_head.get(session.head) == session.key:
            del self._by_head[session.head]
        if self._by_ticket.get(session.ticket_id) == session.key:
            del self._by_ticket[session.ticket_id]
