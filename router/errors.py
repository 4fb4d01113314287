"""Errors of the router. A class's docstring is its default message; its fields are the only map
from errors to HTTP statuses and OpenAI error codes."""

from typing import Self

from node.protocol import api_errors
from node.protocol.error_envelopes import openai_envelope
from node.protocol.overflow import Overflow
from serving.unreached import Cause


class RouterError(api_errors.ApiError):
    """The router failed on this request."""

    def __init__(
        self,
        message: str | None = None,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message, param=param, retry_after_s=retry_after_s)
        self.position: int | None = None
        """Position that the request had, or would have had, in the queue, from 1; None if it was
        not queued."""
        self.estimated_wait_s: float | None = None
        """Estimated seconds from that position until a node is granted."""
        self.request_id: str | None = None
        """Id of the request that the error ends; None before it has one."""
        self.model = ""
        """The model that the request names; empty if it is not known."""

    def set_standing(self, position: int, estimated_wait_s: float | None) -> None:
        """Sets the queue position and the estimated wait that `standing` returns."""
        self.position, self.estimated_wait_s = position, estimated_wait_s

    def standing(self) -> dict[str, object]:
        """The queue position and estimated wait that the error's body carries in every dialect;
        empty if it has nothing to do with the queue."""
        fields: dict[str, object] = {}
        if self.position is not None:
            fields["position"] = self.position
        if self.estimated_wait_s is not None:
            fields["estimated_wait_s"] = round(self.estimated_wait_s, 1)
        return fields

    def body(self) -> bytes:
        """The error in OpenAI's envelope, as JSON, with a `request_id` beside it if there is
        one."""
        return openai_envelope(self, self.request_id or "", self.standing())


class BadRequest(api_errors.BadRequestError, RouterError): ...


class ContextTooLong(BadRequest):
    """The prompt is longer than the model's context."""

    code = "context_length_exceeded"

    def __init__(
        self,
        message: str | None = None,
        *,
        overflow: Overflow | None = None,
        param: str | None = None,
    ) -> None:
        """`overflow` is None if the token counts are not known."""
        super().__init__(message or (overflow and overflow.openai), param=param)
        self.overflow = overflow


class Unauthorized(RouterError):
    """The API key is missing or wrong. Send it as `Authorization: Bearer KEY`; `router keys create`
    makes one."""

    status = 401
    code = "invalid_api_key"
    kind = "authentication_error"


class Forbidden(RouterError):
    """This API key may not do that."""

    status = 403
    code = "permission_denied"
    kind = "permission_error"


class UnknownPath(api_errors.UnknownPathError, RouterError): ...


class NotHere(api_errors.NotHereError, RouterError): ...


class MethodNotAllowed(api_errors.MethodNotAllowedError, RouterError): ...


class UnknownModel(RouterError):
    """No node of the fleet has this model."""

    status = 404
    code = "model_not_found"
    kind = "invalid_request_error"


class UnknownResponse(RouterError):
    """There is no response with this id."""

    status = 404
    code = "response_not_found"
    kind = "invalid_request_error"


class UnknownPreviousResponse(RouterError):
    """There is no response with the id in `previous_response_id`; send the whole input without
    it."""

    status = 404
    code = "previous_response_not_found"
    kind = "invalid_request_error"


class UnknownItem(RouterError):
    """There is no item with this id; send the item whole."""

    status = 404
    code = "item_not_found"
    kind = "invalid_request_error"


class UnknownRequest(api_errors.UnknownRequestError, RouterError): ...


class RequestCancelled(api_errors.RequestCancelledError, RouterError): ...


class BodyTooLarge(api_errors.BodyTooLargeError, RouterError): ...


class QueueFull(RouterError):
    """Too many requests wait for this model; try again later."""

    status = 429
    code = "queue_full"
    kind = "rate_limit_error"


class TooManyWaiting(api_errors.TooManyWaitingError, RouterError): ...


class ServersNotAllowed(RouterError):
    """Only a server of kind openai has this model, which is not the fleet's own, and the API key
    lacks the scope external; `router keys create NAME --scope inference,external` makes one that
    has it."""

    status = 403
    code = "external_not_allowed"
    kind = "permission_error"


class PaidNotAllowed(RouterError):
    """This name leads to a paid server, and the API key has no budget for those; `router keys
    set-budget KEY AMOUNT` gives it one."""

    status = 403
    code = "paid_not_allowed"
    kind = "permission_error"


class PaidBudgetUsed(RouterError):
    """The API key's budget for paid servers is used up for this month."""

    status = 429
    code = "paid_budget_used"
    kind = "rate_limit_error"
    is_always_final = True


class LimitExceeded(RouterError):
    """A limit of the API key or of its team does not allow the request now."""

    status = 429
    code = "rate_limit_exceeded"
    kind = "rate_limit_error"

    def __init__(
        self,
        message: str | None = None,
        *,
        limit: str = "",
        retry_after_s: int | None = None,
        limit_headers: tuple[tuple[bytes, bytes], ...] = (),
        is_final: bool = False,
    ) -> None:
        """`limit` is its name; `limit_headers` show the state of the limits; `is_final` keeps
        clients from retrying by themselves."""
        super().__init__(message, retry_after_s=retry_after_s)
        self.limit = limit
        self.limit_headers = limit_headers
        self.is_always_final = is_final

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), *self.limit_headers]


class DeadlineExceeded(RouterError):
    """The response would start after the deadline in `x-fleet-deadline-s`, or has not started
    before it."""

    status = 504
    code = "deadline_exceeded"


class NoNodeReady(RouterError):
    """No node that has this model can be reached now."""

    status = 503
    code = "no_node_ready"


class NotTaken(NoNodeReady):
    """No node that has this model can serve it until an admin changes something."""

    code = "not_taken"
    is_always_final = True


class ModelBroken(NoNodeReady):
    """The files of the model are damaged on the nodes that are to have it."""

    code = "model_broken"
    is_always_final = True


class OwnerUnreachable(RouterError):
    """The node that stores this cannot be reached now."""

    status = 503
    code = "owner_unreachable"


class NodeFailed(RouterError):
    """The node failed while it served the request."""

    status = 502
    code = "node_failed"


class ShuttingDown(RouterError):
    """The router is shutting down."""

    status = 503
    code = "shutting_down"


class Conflict(RouterError):
    """That name is taken."""

    status = 409
    code = "conflict"
    kind = "invalid_request_error"


class NotFound(RouterError):
    """There is no such thing."""

    status = 404
    code = "not_found"
    kind = "invalid_request_error"


class NodeRefused(RouterError):
    """The node refused the router's request."""

    status = 502
    code = "node_refused"


class NodeUnreachable(RouterError):
    """The node does not respond."""

    status = 502
    code = "node_unreachable"

    def __init__(self, message: str | None = None, *, cause: Cause = Cause.BROKEN) -> None:
        super().__init__(message)
        self.cause = cause


class WrongNodeToken(RouterError):
    """The node refused the token; `node-agent token` shows the right one on its machine."""

    status = 502
    code = "wrong_node_token"


class NodeOutdated(NodeRefused):
    """The node runs an older mlx-fleet than the router, which does not have that."""

    code = "node_outdated"

    @classmethod
    def at(cls, node: str, path: str) -> Self:
        """The error for a path that the node does not have."""
        return cls(
            f"{node} does not have {path[:200]}: it runs an older mlx-fleet than this router. "
            "`router upgrade-plan` shows how to upgrade it."
        )


class WrongNodeProtocol(RouterError):
    """The node speaks another version of the protocol; update mlx-fleet on both machines."""

    status = 502
    code = "wrong_node_protocol"


class DiscoveryOff(RouterError):
    """This router does not look for agents in the local network; `--discovery` switches that on.
    An agent can be added by its address all the same."""

    status = 409
    code = "discovery_off"
    kind = "invalid_request_error"


class DiscoveryFailed(RouterError):
    """The local network cannot be searched for agents."""

    status = 503
    code = "discovery_failed"


class CertificateChanged(NodeUnreachable):
    """The certificate at this address is not the pinned one. If the agent there was installed anew,
    `node-agent pair` shows a code on its machine, and `router rotate-node NODE --code CODE` pairs
    it again; otherwise, somebody may be between this router and the agent."""

    code = "certificate_changed"


class PlainHttpRefused(RouterError):
    """Plain HTTP to another machine shows keys and prompts to the network; add --allow-plain-http
    if that network is yours."""

    status = 400
    code = "plain_http_refused"
    kind = "invalid_request_error"


class StartError(RouterError):
    """The router cannot start."""
