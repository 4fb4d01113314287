"""Requests of clients that end before a ticket is made of them: who is told of it."""

import time

from router.api.bodies import Scope, client_of
from router.auth import key_from_headers
from router.core import Core
from router.errors import RouterError, Unauthorized
from router.records.outcomes import BY_DISCONNECT, PHASE_BODY
from router.records.request_log import EarlyRequest
from serving.tracing.context import trace_lines


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
            core.metrics.refused(error)
            core.ledger.request_log.refused(self._early_request(scope, begin_s), error)

    def left(self, scope: Scope, begin_s: float) -> None:
        """A client has disconnected before it had sent its whole body."""
        self._core.metrics.aborted("", BY_DISCONNECT, PHASE_BODY)
        self._core.ledger.request_log.left(self._early_request(scope, begin_s))

    def _early_request(self, scope: Scope, begin_s: float) -> EarlyRequest:
        headers = scope["headers"]
        key = self._core.keys.name_of(key_from_headers(headers))
        return EarlyRequest(scope["path"], key, trace_lines(headers), time.monotonic() - begin_s)
