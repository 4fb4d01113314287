"""Marks that requests carry to agents, and that prove their usage records."""

import hashlib
import hmac
from typing import NamedTuple

from node.protocol.messages import Finished
from router.types import Caller, Lease, Ticket

PROOF_BYTES = 16


class RequestMarks(NamedTuple):
    """Both are opaque to the agent, which repeats them in its usage record of the request."""

    origin: str
    """The router and key that sent the request."""
    proof: str
    """Proof that this router sent this request to this node."""


class Origins:
    """Makes and checks the marks of one registry, whose secret makes the proofs, so that usage
    records stay valid across restarts of the router. A node learns only the proofs of requests that
    it gets."""

    def __init__(self, router_id: str, secret: bytes) -> None:
        """`secret` has at most 64 bytes and is stored in the registry."""
        self._prefix = router_id + "/"
        self._secret = secret

    def of(self, caller: Caller) -> str:
        """Returns the origin of the caller's requests."""
        return self._prefix + caller.key_id

    def marks(self, ticket: Ticket, lease: Lease) -> RequestMarks:
        """Returns the marks that the lease's node gets with the request."""
        named = (lease.node_id, lease.node_request_id, ticket.caller.key_id, ticket.model)
        return RequestMarks(self.of(ticket.caller), self._proof(*named))

    def is_own(self, origin: str) -> bool:
        """Returns True if the origin is one of this router's callers."""
        return origin.startswith(self._prefix)

    def key_of(self, node_id: str, finished: Finished) -> str | None:
        """Returns the id of the key whose request it was; None if this router never sent that node
        a request with that id, key and model. The origin must be the router's own."""
        key_id = finished.origin[len(self._prefix) :]
        proof = self._proof(node_id, finished.request_id, key_id, finished.model)
        is_proven = hmac.compare_digest(proof.encode(), finished.proof.encode())
        return key_id if is_proven else None

    def _proof(self, *named: str) -> str:
        text = "\0".join(named).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, key=self._secret, digest_size=PROOF_BYTES).hexdigest()
