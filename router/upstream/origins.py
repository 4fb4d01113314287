"""What a router's requests carry to agents, and by which their accounts are known again."""

import hashlib
import hmac
from typing import NamedTuple

from node.protocol.messages import Finished
from router.types import Caller, Lease, Ticket

PROOF_BYTES = 16


class Stamp(NamedTuple):
    """Both are opaque to the agent, which repeats them in its accounts of the request."""

    origin: str
    """Whose request it is."""
    proof: str
    """That this router gave this request to this node."""


class Origins:
    """Of one registry, whose secret makes the proofs: accounts of requests from before the router's
    restart are as good as others. A node learns the proofs of what it is sent, and of nothing else.
    """

    def __init__(self, router_id: str, secret: bytes) -> None:
        """`secret`: at most 64 bytes, kept with the registry."""
        self._prefix = router_id + "/"
        self._secret = secret

    def of(self, caller: Caller) -> str:
        """The origin of the caller's requests."""
        return self._prefix + caller.key_id

    def stamp(self, ticket: Ticket, lease: Lease) -> Stamp:
        """What the lease's node is sent with the request."""
        named = (lease.node_id, lease.node_request_id, ticket.caller.key_id, ticket.model)
        return Stamp(self.of(ticket.caller), self._proof(*named))

    def is_own(self, origin: str) -> bool:
        """Whether it is of this router's callers."""
        return origin.startswith(self._prefix)

    def key_of(self, node_id: str, finished: Finished) -> str | None:
        """The id of the key whose request it was; None where this router never gave that node
        a request of that id, for that key and that model. The origin `is_own`."""
        key_id = finished.origin[len(self._prefix) :]
        proof = self._proof(node_id, finished.request_id, key_id, finished.model)
        is_proven = hmac.compare_digest(proof.encode(), finished.proof.encode())
        return key_id if is_proven else None

    def _proof(self, *named: str) -> str:
        text = "\0".join(named).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, key=self._secret, digest_size=PROOF_BYTES).hexdigest()
