"""Operations on stored responses, forwarded to the node that stores them."""

import asyncio
import re

from node.protocol.ids import RESPONSE_PREFIX, parse_id
from node.protocol.paths import PATH_RESPONSES
from router.api.bodies import Scope
from router.api.methods import check_method
from router.api.ownership import node_of_own
from router.api.whole_responses import send_bytes
from router.client.response_headers import PASSED_HEADERS
from router.core import Core
from router.errors import BadRequest, ShuttingDown, UnknownPath, UnknownResponse
from router.types import Caller, NodeView
from router.upstream.node_client import WholeResponse
from serving.http.exchange import Send

_TARGET = re.compile(PATH_RESPONSES + r"/(?P<id>[^/]+)(?P<verb>/cancel|/input_items)?")
_METHODS = {None: ("GET", "DELETE"), "/cancel": ("POST",), "/input_items": ("GET",)}
_QUERY = re.compile(rb"[!-~]{0,2000}")


class StoredResponses:
    """Serves `/v1/responses/{id}` and the paths below it."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def serve(self, caller: Caller, scope: Scope, send: Send) -> None:
        """Serves a request below `PATH_RESPONSES`.

        Raises `UnknownPath`, `MethodNotAllowed`, `UnknownResponse`, `BadRequest` for a query that
        cannot be forwarded, and what `Dispatcher.follow_up` raises.
        """
        path = scope["path"]
        target = _TARGET.fullmatch(path)
        if target is None:
            raise UnknownPath.at(path)
        is_id = parse_id(target["id"]) is not None
        method = check_method(scope, *_METHODS[target["verb"]], is_there=is_id)
        view = self._node_of(target["id"], caller)
        target_on_node = path + _query(scope["query_string"])
        try:
            response = await self._core.dispatcher.follow_up(view, caller, method, target_on_node)
        except asyncio.CancelledError:
            raise ShuttingDown from None
        await send_node_response(send, view, response)

    def _node_of(self, response_id: str, caller: Caller) -> NodeView:
        if not response_id.startswith(RESPONSE_PREFIX):
            raise UnknownResponse
        gone = "The node that stored this response is not part of the fleet any more."
        return node_of_own(self._core.fleet, caller, response_id, UnknownResponse, gone)


def _query(query: bytes) -> str:
    """Returns the query with its question mark, as it is forwarded to the node."""
    if not _QUERY.fullmatch(query):
        raise BadRequest("The query is longer than 2,000 characters, or not valid in a URL.")
    return f"?{query.decode('ascii')}" if query else ""


async def send_node_response(send: Send, view: NodeView, response: WholeResponse) -> None:
    """Sends a node's whole response unchanged."""
    headers = [
        (name, response.headers[name]) for name in PASSED_HEADERS if name in response.headers
    ]
    headers.append((b"x-fleet-node", view.name.encode()))
    await send_bytes(send, response.status, response.body, headers)
