"""Learns from ended leases: speeds of nodes, and where sessions are warm."""

from collections import OrderedDict

from msgspec.structs import replace

from node.protocol.paths import PATH_COUNT_TOKENS
from router.scheduler.node_state import NodeBooks, OpenLease
from router.scheduler.rates import NodeRates, Rates
from router.scheduler.sessions import Session, Sessions
from router.types import Lease, Verdict

MAX_UNJUDGED = 4096
"""Limit of ended leases whose verdict is outstanding."""
AWAITED_S = 60.0
"""No verdict comes later than this: the client has disconnected, or the node is gone."""


class Feedback:
    """Owner of the ended leases whose verdict is outstanding."""

    def __init__(self, rates: Rates, books: NodeBooks, sessions: Sessions) -> None:
        self._rates = rates
        self._books = books
        self._sessions = sessions
        self._unjudged: OrderedDict[Lease, tuple[float, OpenLease]] = OrderedDict()
        """Each with the time of its end, and without its request's body."""

    def await_verdict(self, open_lease: OpenLease, now_s: float) -> None:
        if open_lease.ticket.path == PATH_COUNT_TOKENS:
            return
        open_lease.ticket = replace(open_lease.ticket, body=b"")
        self._unjudged[open_lease.lease] = now_s, open_lease
        while True:
            ended_s, _ = next(iter(self._unjudged.values()))
            if len(self._unjudged) <= MAX_UNJUDGED and now_s - ended_s < AWAITED_S:
                return
            self._unjudged.popitem(last=False)

    def on_verdict(self, verdict: Verdict) -> None:
        _, open_lease = self._unjudged.pop(verdict.lease, (0.0, None))
        if verdict.failed:
            self._books.fail(verdict.lease, verdict.ended_s)
            return
        self._books.serve(verdict.lease, verdict.ended_s)
        if open_lease is None:
            return
        self._learn_service(open_lease, verdict.ended_s)
        usage = verdict.usage
        prompt_tokens = usage.prompt_tokens if usage else 0
        if usage is not None:
            self._learn_usage(open_lease, verdict)
        output_tokens = usage.completion_tokens if usage else 0
        self._bind(open_lease, verdict.ended_s, prompt_tokens, output_tokens)

    def on_served(self, open_lease: OpenLease, now_s: float) -> None:
        """Learns from a lease on a node that keeps no usage records."""
        self._books.serve(open_lease.lease, now_s)
        self._learn_service(open_lease, now_s)
        lease, terms = open_lease.lease, open_lease.terms
        rates = self._rates.known(lease.node_id, lease.model)
        if rates is not None and open_lease.first_content_s is not None:
            self._learn_decode(open_lease, rates, now_s)
            seconds = open_lease.first_content_s - lease.granted_s
            guessed_s = rates.prefill.seconds(terms.cached_tokens, terms.prompt_tokens)
            # Beside other requests it may have waited for them, so this is an upper bound of its
            # prefill.
            if open_lease.ticket.is_whole and (open_lease.was_alone or seconds < guessed_s):
                self._rates.learn_prefill(lease, terms.cached_tokens, terms.prompt_tokens, seconds)
        self._bind(open_lease, now_s, 0, 0)

    def _learn_decode(self, open_lease: OpenLease, rates: NodeRates, now_s: float) -> None:
        """Learns the decode speed without knowing the response's length. Assuming the mean length
        for all of them gives the right duration of responses in all, and only that matters."""
        tokens = self._rates.averages(open_lease.lease.model).output_tokens.value
        if open_lease.ticket.stream and open_lease.first_content_s is not None:
            rates.learn_decode(now_s - open_lease.first_content_s, tokens, open_lease.rows)
            return
        most_s = now_s - open_lease.lease.granted_s
        if most_s < tokens * rates.row_step_s.value:
            rates.learn_decode(most_s, tokens, open_lease.rows)

    def _learn_service(self, open_lease: OpenLease, ended_s: float) -> None:
        rates = self._rates.known(open_lease.lease.node_id, open_lease.lease.model)
        if rates is not None:
            rates.service_s.learn(max(0.0, ended_s - open_lease.lease.granted_s))

    def _learn_usage(self, open_lease: OpenLease, verdict: Verdict) -> None:
        lease, usage, chain = open_lease.lease, verdict.usage, open_lease.ticket.chain
        rates = self._rates.known(lease.node_id, lease.model)
        if usage is None or rates is None:
            return
        self._rates.learn(lease, usage, open_lease.rows)
        if (
            open_lease.terms.load_s
            and open_lease.was_alone
            and open_lease.first_content_s is not None
        ):
            first_s = open_lease.first_content_s - lease.granted_s
            rates.load_s.learn(max(0.0, first_s - usage.prefill_s))
        prompt_bytes = chain.sizes[-1] if chain and open_lease.ticket.is_whole else 0
        self._rates.averages(lease.model).learn(prompt_bytes, usage)

    def _bind(
        self, open_lease: OpenLease, now_s: float, prompt_tokens: int, output_tokens: int
    ) -> None:
        """Records that the lease's session is warm on its node, and nowhere else."""
        lease, chain = open_lease.lease, open_lease.ticket.chain
        if not chain:
            return
        is_whole = open_lease.ticket.is_whole
        session = Session(
            key=open_lease.session,
            node_id=lease.node_id,
            head=chain.head,
            ticket_id=lease.ticket_id,
            prompt_bytes=chain.sizes[-1] if is_whole else 0,
            prompt_tokens=prompt_tokens if is_whole else 0,
            arrived_s=open_lease.ticket.arrived_s,
            pace=open_lease.pace,
            used_s=now_s,
        )
        left_node_id = self._sessions.bind(session)
        book = self._books.known(left_node_id) if left_node_id else None
        if book is not None and lease.model in book.warm:
            # A copy of the prefix stays there until it is evicted, and nobody needs it.
            book.warm[lease.model].forget(open_lease.session)
        book = self._books.known(lease.node_id)
        if book is not None and book.instance_id == lease.instance_id:
            tokens = (prompt_tokens or open_lease.terms.prompt_tokens) + output_tokens
            book.touch(open_lease, tokens, now_s)
