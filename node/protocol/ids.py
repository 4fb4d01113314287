"""Ids that clients see. They name the node that has the object, and the key that owns it.

In `resp_NODE-REQUEST`, `NODE` is the node's id and `REQUEST` the request's id in the node's
records. The id of a request that came through a router begins with its owner's mark: `OWNER-…`.
"""

import hashlib
import re
from typing import NamedTuple

RESPONSE_PREFIX = "resp_"
ITEM_PREFIXES = ("msg_", "rs_", "fc_", "ctc_", "tsc_")
"""Prefixes of the ids of a response's items. `msg_` is also the prefix of a message in Anthropic's
dialect."""
PREFIXES = ("chatcmpl-", "cmpl-", RESPONSE_PREFIX, *ITEM_PREFIXES, "req_")
OWNER_LENGTH = 10

_ID = re.compile(
    rf"(?:{'|'.join(PREFIXES)})(?P<node>[0-9a-f]{{16}})-(?P<request>[A-Za-z0-9._-]{{1,64}})"
)
_ITEM_ID = re.compile(rf"(?:{'|'.join(ITEM_PREFIXES)})(?P<response>.+)-i?[0-9]+")
_OWNED = re.compile(r"(?P<owner>[0-9a-f]{10})-")


class NodeId(NamedTuple):
    """The parts of an id."""

    node_id: str
    request_id: str

    @property
    def owner(self) -> str:
        """The mark of the key that owns the request; empty for a request without one."""
        found = _OWNED.match(self.request_id)
        return found["owner"] if found else ""


def client_id(prefix: str, node_id: str, request_id: str) -> str:
    """The id that clients see; `prefix` is one of `PREFIXES`."""
    return f"{prefix}{node_id}-{request_id}"


def parse_id(text: str) -> NodeId | None:
    """The parts of such an id; None for any other text."""
    found = _ID.fullmatch(text)
    return NodeId(found["node"], found["request"]) if found else None


def response_of(item_id: str) -> str | None:
    """Id of the response that an item belongs to. An item's id is that of its response with the
    item's own prefix and `-` and a number at the end. None for any other text."""
    found = _ITEM_ID.fullmatch(item_id)
    return RESPONSE_PREFIX + found["response"] if found else None


def owner_mark(key_id: str) -> str:
    """The first part of the ids of a key's requests. It is neither secret nor the key's id."""
    return hashlib.blake2b(key_id.encode(), digest_size=OWNER_LENGTH // 2).hexdigest()
