"""Who may send requests to this agent: programs of its own machine, by the token in its folder, and
paired routers, each by its own secret."""

import hmac

from starlette.types import Scope

from node.errors import LocalOnly, NotARouter, Unauthorized
from node.server.pairings import Pairings
from serving.http.exchange import mark_authenticated
from serving.own_machine import is_loopback

LOCAL = ""
"""In place of a router's id: a program of this machine."""


class Access:
    """Checks the token of each request."""

    def __init__(self, token: str, pairings: Pairings) -> None:
        self._token = token.encode()
        self._pairings = pairings

    def check(self, scope: Scope, token: bytes) -> str:
        """Id of the router that sends the request, or `LOCAL`; marks the connection as a known
        caller's. Raises `Unauthorized`."""
        caller = self._caller(scope, token)
        mark_authenticated(scope)
        return caller

    def still_admits(self, caller: str) -> bool:
        """True unless the router has been unpaired since it was admitted."""
        return caller == LOCAL or self._pairings.has(caller)

    def check_router(self, scope: Scope, token: bytes) -> str:
        """Id of the paired router that sends the request. Raises `Unauthorized`, and `NotARouter`
        for this machine's own token."""
        caller = self.check(scope, token)
        if caller == LOCAL:
            raise NotARouter
        return caller

    def check_local(self, scope: Scope, token: bytes) -> None:
        """Raises `Unauthorized`, and `LocalOnly` for a router."""
        if self.check(scope, token) != LOCAL:
            raise LocalOnly

    def check_reader(self, scope: Scope, token: bytes) -> None:
        """Admits this machine's programs without a token, others as `check` does."""
        if token or not _is_from_here(scope):
            self.check(scope, token)

    def _caller(self, scope: Scope, token: bytes) -> str:
        if hmac.compare_digest(token, self._token):
            if not _is_from_here(scope):
                raise Unauthorized(
                    "This token is for programs of the agent's own machine; a router of another "
                    "machine is paired, with the code that `node-agent pair` shows there."
                )
            return LOCAL
        router_id = self._pairings.router_of(token.decode("latin-1")) if token else None
        if router_id is None:
            raise Unauthorized
        return router_id


def _is_from_here(scope: Scope) -> bool:
    client = scope.get("client")
    return client is not None and is_loopback(client[0])
