"""Remembers which node served each session. These are hints: nothing breaks if they are wrong or
lost."""

from collections import OrderedDict
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from router.scheduler.warm_sessions import Demand
from router.types import Ticket

MAX_SESSIONS = 20_000
TTL_S = 3600.0
"""Seconds without a turn after which a session is forgotten."""

FIRST_TURNS_PER_S, FIRST_TOKENS = 0.1, 500.0
"""Rate and size of a session's turns that are assumed before any was seen."""
MIN_GAP_S = 0.5
GAP_WEIGHT, TOKENS_WEIGHT = 0.4, 0.3
"""Least weights of the latest turn in a session's means; the first turns have more."""


class SessionPace(msgspec.Struct, frozen=True):
    """Rate of a session's turns, and the tokens that each has to prefill where the session is warm.

    The cost of a turn where the session is not warm says nothing about later ones: a first prompt
    of a minute may be followed by turns of a second.
    """

    turns_per_s: float = FIRST_TURNS_PER_S
    tokens: float = FIRST_TOKENS
    """Mean tokens that a turn adds to its prompt."""
    squared_tokens: float = FIRST_TOKENS**2
    turns: int = 0

    def after_gap(self, gap_s: float) -> "SessionPace":
        """The pace after a turn that came so long after the one before it."""
        mean_s = (1.0 - GAP_WEIGHT) / self.turns_per_s + GAP_WEIGHT * max(MIN_GAP_S, gap_s)
        return replace(self, turns_per_s=1.0 / mean_s)

    def after_turn(self, tokens: float) -> "SessionPace":
        """The pace after a turn that added so many tokens."""
        weight = max(TOKENS_WEIGHT, 1.0 / (self.turns + 2))
        return replace(
            self,
            tokens=self.tokens + weight * (tokens - self.tokens),
            squared_tokens=self.squared_tokens + weight * (tokens**2 - self.squared_tokens),
            turns=self.turns + 1,
        )

    def demand(self, slowness: float) -> Demand:
        """The session's demand on a node where each of its tokens takes `slowness` times as long as
        one at a prompt's beginning."""
        return Demand(
            self.turns_per_s,
            self.turns_per_s * self.tokens * slowness,
            self.turns_per_s * self.squared_tokens * slowness**2,
        )


NEW_PACE = SessionPace()


@dataclass(slots=True)
class Session:
    key: str
    node_id: str
    head: int
    """Last hash of the latest turn's chain."""
    ticket_id: str
    """Ticket of the latest turn."""
    prompt_bytes: int
    """Size of that chain; 0 if it does not cover the whole prompt."""
    prompt_tokens: int
    """Tokens of that chain as its node counted them; 0 if unknown, or if the count covers more than
    the chain."""
    arrived_s: float
    """Arrival of the latest turn."""
    pace: SessionPace
    used_s: float


class Sessions:
    """Owner of the known sessions, the least recently used first."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[str, Session] = OrderedDict()
        self._by_head: dict[int, str] = {}
        self._by_ticket: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __bool__(self) -> bool:
        return len(self) > 0

    def find(self, ticket: Ticket, now_s: float) -> Session | None:
        """The session that the ticket continues: by the client's hint, else by the response or the
        chain that it extends; else the session that it was started from."""
        hints = ticket.hints
        return (
            self._known(hints.session, now_s)
            or self._known(self._key_of_turn(ticket), now_s)
            or self._known(hints.parent, now_s)
        )

    def key(self, ticket: Ticket) -> str:
        """The key of the ticket's session, known or new."""
        chain = ticket.chain
        return (
            ticket.hints.session
            or self._key_of_turn(ticket)
            or (f"#{chain.head:x}" if chain else f"?{ticket.request_id}")
        )

    def bind(self, session: Session) -> str | None:
        """Stores a session that has been served. Returns the node where it was before if that is
        another one."""
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
        """Key of the session whose latest turn the ticket extends; empty if there is none."""
        key = self._by_ticket.get(ticket.follows) if ticket.follows else None
        if key is not None:
            return key
        chain = ticket.chain
        if chain is None:
            return ""
        # Only the end of an item can be the end of a session's latest chain.
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
