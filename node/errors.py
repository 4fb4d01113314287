"""Errors of the node agent. A class's docstring is its default message."""

from node.protocol import api_errors
from node.protocol.headers import HEADER_PROTOCOL
from node.protocol.overflow import Overflow


class NodeError(api_errors.ApiError):
    """The node agent cannot do that."""


class BadRequest(api_errors.BadRequestError, NodeError): ...


class Unsupported(BadRequest):
    """This version of mlx-fleet does not support the field yet."""

    code = "unsupported_value"


class ContextTooLong(BadRequest):
    """The prompt is longer than the model's context."""

    code = "context_length_exceeded"

    def __init__(
        self, overflow: Overflow, message: str | None = None, *, param: str | None = None
    ) -> None:
        super().__init__(message or overflow.openai, param=param)
        self.overflow = overflow


class RowRefused(BadRequest):
    """The engine refuses the request."""

    def __init__(self, message: str, param: str | None, overflow: Overflow | None) -> None:
        super().__init__(message, param=param)
        self.overflow = overflow


class Unauthorized(NodeError):
    """The token is missing or wrong; `node-agent token` shows it on the agent's machine."""

    status = 401
    code = "invalid_api_key"
    kind = "authentication_error"

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), (b"www-authenticate", b"Bearer")]


class LocalOnly(NodeError):
    """This is for programs of the agent's own machine, with its own token."""

    status = 403
    code = "local_only"
    kind = "permission_error"


class NotARouter(NodeError):
    """This is for paired routers, each with its own secret."""

    status = 403
    code = "not_a_router"
    kind = "permission_error"


class TooManyRouters(NodeError):
    """Too many routers are paired with this agent; `node-agent unpair` removes some."""

    status = 409
    code = "too_many_routers"
    kind = "invalid_request_error"


class NotPaired(NodeError):
    """This router is not paired with the agent."""

    status = 404
    code = "not_paired"
    kind = "invalid_request_error"


class TlsRequired(NodeError):
    """A router is paired over https only."""

    status = 400
    code = "tls_required"
    kind = "invalid_request_error"


class _PairingRefused(NodeError):
    """The agent cannot be paired with this code."""

    status = 403
    kind = "permission_error"


class NoPairingCode(_PairingRefused):
    """The agent has no code now; `node-agent pair` on its machine shows one."""

    code = "no_pairing_code"


class PairingCodeExpired(_PairingRefused):
    """The code was valid for ten minutes, which are over; `node-agent pair` on the agent's machine
    shows a new one."""

    code = "pairing_code_expired"


class PairingCodeUsed(_PairingRefused):
    """The code has been used; `node-agent pair` on the agent's machine shows a new one."""

    code = "pairing_code_used"


class WrongPairingCode(_PairingRefused):
    """The code is wrong."""

    code = "wrong_pairing_code"


class PairingCodeVoid(_PairingRefused):
    """The code is void after five wrong tries; `node-agent pair` on the agent's machine shows a new
    one."""

    code = "pairing_code_void"


class UnknownPath(api_errors.UnknownPathError, NodeError): ...


class NotHere(api_errors.NotHereError, NodeError): ...


class MethodNotAllowed(api_errors.MethodNotAllowedError, NodeError): ...


class ForeignHost(NodeError):
    """This agent listens on loopback and responds to localhost only; bind it to another address to
    reach it by another name."""

    status = 421
    code = "foreign_host"
    kind = "invalid_request_error"


class UnknownModel(NodeError):
    """The model is not on this node."""

    status = 404
    code = "model_not_found"
    kind = "invalid_request_error"
    param = "model"


class ModelBroken(NodeError):
    """The model's files are damaged."""

    status = 503
    code = "model_broken"
    param = "model"
    is_always_final = True


class UnknownRequest(api_errors.UnknownRequestError, NodeError): ...


class RequestCancelled(api_errors.RequestCancelledError, NodeError): ...


class BodyTooLarge(api_errors.BodyTooLargeError, NodeError): ...


class TooManyWaiting(api_errors.TooManyWaitingError, NodeError): ...


class WrongProtocol(NodeError):
    """The router speaks another version of the node protocol."""

    status = 426
    code = "wrong_protocol"
    kind = "invalid_request_error"

    def __init__(self, message: str, newest: int) -> None:
        """`newest` is the newest version that this agent speaks."""
        super().__init__(message)
        self.newest = newest

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), (HEADER_PROTOCOL.encode(), b"%d" % self.newest)]


class ModelBusy(NodeError):
    """The model still serves requests."""

    status = 409
    code = "model_busy"
    kind = "invalid_request_error"


class DoesNotFit(NodeError):
    """The model does not fit in the free memory."""

    status = 503
    code = "insufficient_memory"
    retry_after_s = 30


class EngineUnresponsive(NodeError):
    """The engine did not respond in time."""

    status = 503
    code = "engine_unresponsive"
    retry_after_s = 10


class MemoryShort(NodeError):
    """The machine is short of memory: no model is loaded until some is free again."""

    status = 503
    code = "memory_pressure"
    retry_after_s = 10


class LoadFailure(NodeError):
    """The model could not be loaded."""

    status = 503
    code = "load_failed"
    retry_after_s = 30


class EngineDied(NodeError):
    """The engine process ended while it served the request; the next request starts it again."""

    status = 503
    code = "engine_died"
    retry_after_s = 1


class RendererDied(NodeError):
    """The process that renders prompts ended while it rendered this one; the next request starts it
    again."""

    status = 503
    code = "renderer_died"
    retry_after_s = 1


class EngineFault(NodeError):
    """The engine failed on this step; the request was ended."""

    status = 500
    code = "engine_error"


class BrokenCall(NodeError):
    """The model broke off its tool call after the arguments had begun; send the request again."""

    status = 500
    code = "broken_tool_call"


class DownloadError(NodeError):
    """The model cannot be pulled."""

    code = "download_failed"


class PullRefused(DownloadError):
    """The model cannot be pulled, however often that is tried."""

    is_always_final = True


class PullRunning(NodeError):
    """The model is being pulled."""

    status = 409
    code = "model_pulling"
    kind = "invalid_request_error"


class WrongTicket(NodeError):
    """The ticket for these files is unknown or has expired."""

    status = 403
    code = "wrong_ticket"
    kind = "authentication_error"


class ShuttingDown(NodeError):
    """The node agent is shutting down."""

    status = 503
    code = "shutting_down"
    retry_after_s = 5


class StartError(NodeError):
    """The node agent cannot start."""


class UnknownResponse(NodeError):
    """There is no such response here: it was not stored, was deleted, or was evicted in favor of
    newer ones."""

    status = 404
    code = "response_not_found"
    kind = "invalid_request_error"


class UnknownPreviousResponse(UnknownResponse):
    """The previous response, or one before it, is not here."""

    code = "previous_response_not_found"
    param = "previous_response_id"


class UnknownItem(UnknownResponse):
    """The item that the request refers to is not here."""

    code = "item_not_found"


class ResponseStoreFault(NodeError):
    """The node could not read its stored responses."""

    code = "response_store_error"
