"""Requests of clients that end before a ticket is made of them: who is told of it."""

import time

from router.api.bodies import Scope, client_of
from router.auth import key_from_headers
from router.core import Core
from router.errors import RouterError, Unauthorized
from router.records.outcomes import BY_DISCONNECT, PHASE_BODY


class EarlyEnds:
    """Records them in the log of requests, and wrong keys in the router's own."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def refused(self, scope: Scope, error: RouterError, begin_s: float) -> None:
        """A request that began at this monotonic time has ended with an error."""
        core, path = self._core, scope["path"]
        if error.status == Unauthorized.status:
            core.refusals.wrong_key(client_of(scope), path)
        if error.request_id is None:  # others had a ticket, whose end is recorded already
            total_s = time.monotonic() - begin_s
            core.metrics.refused(error)
            core.ledger.request_log.refused(path, self._key(scope), error, total_s)

    def left(self, scope: Scope, begin_s: float) -> None:
        """A client has disconnected before it had sent its whole body."""
        total_s = time.monotonic() - begin_s
        self._core.metrics.aborted("", BY_DISCONNECT, PHASE_BODY)
        self._core.ledger.request_log.left(scope["path"], self._key(scope), total_s)

    def _key(self, scope: Scope) -> str:
        """The name of the request's key."""
        return self._core.keys.name_of(key_from_headers(scope["headers"]))
