"""Ids that clients see: they name the node that holds what they stand for, and whose it is.

`resp_NODE-REQUEST`: `NODE` is the node's id, `REQUEST` the id of the request as the node's records
have it. A request that came through a router begins with the owner's mark: `OWNER-…`.
"""

import hashlib
import re
from typing import NamedTuple

RESPONSE_PREFIX = "resp_"
ITEM_PREFIXES = ("msg_", "rs_", "fc_", "ctc_", "tsc_")
"""Of a response's items; `msg_` is a message's of Anthropic's dialect, too."""
PREFIXES = ("chatcmpl-", "cmpl-", RESPONSE_PREFIX, *ITEM_PREFIXES, "req_")
OWNER_LENGTH = 10

_ID = re.compile(
    rf"(?:{'|'.join(PREFIXES)})(?P<node>[0-9a-f]{{16}})-(?P<request>[A-Za-z0-9._-]{{1,64}})"
)
_ITEM_ID = re.compile(rf"(?:{'|'.join(ITEM_PREFIXES)})(?P<response>.+)-i?[0-9]+")
_OWNED = re.compile(r"(?P<owner>[0-9a-f]{10})-")


class NodeId(NamedTuple):
    """An id, taken apart."""

    node_id: str
    request_id: str

    @property
    def owner(self) -> str:
        """The mark of the key; empty where no router gave one."""
        found = _OWNED.match(self.request_id)
        return found["owner"] if found else ""


def client_id(prefix: str, node_id: str, request_id: str) -> str:
    """The id as clients see it; `prefix` is one of `PREFIXES`."""
    return f"{prefix}{node_id}-{request_id}"


def parse_id(text: str) -> NodeId | None:
    """What such an id says; None for another text."""
    found = _ID.fullmatch(text)
    return NodeId(found["node"], found["request"]) if found else None


def response_of(item_id: str) -> str | None:
    """Id of the response that an item belongs to: the item's is that of its response with the
    item's own prefix, and a number behind it. None for a text that is no such id."""
    found = _ITEM_ID.fullmatch(item_id)
    return RESPONSE_PREFIX + found["response"] if found else None


def owner_mark(key_id: str) -> str:
    """What the ids of a key's requests begin with: not secret, and not the key's id."""
    return hashlib.blake2b(key_id.encode(), digest_size=OWNER_LENGTH // 2).hexdigest()
