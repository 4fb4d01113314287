"""Errors that router and agent share. A class's docstring is its default message; the class of both
sides' trees that derives from it has its name without "Error"."""

from collections.abc import Sequence
from typing import Self

from node.protocol.errors import is_final
from node.protocol.paths import hint
from serving.http.http_error import HttpError


class ApiError(HttpError):
    """The request failed."""

    param: str | None = None
    is_always_final: bool = False
    """True if the error is final, although its status alone does not say so."""

    def __init__(
        self,
        message: str | None = None,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        if param is not None:
            self.param = param
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s

    def set_status(self, status: int, code: str | None = None, kind: str | None = None) -> None:
        """Replaces the HTTP status of the class, and its code and kind unless they are None."""
        self.status = status
        self.code = self.code if code is None else code
        self.kind = self.kind if kind is None else kind

    @property
    def is_final(self) -> bool:
        has_retry_after = self.retry_after_s is not None
        return self.is_always_final or is_final(self.status, has_retry_after=has_retry_after)


class BadRequestError(ApiError):
    """The request is not valid."""

    status = 400
    code = "invalid_value"
    kind = "invalid_request_error"


class UnknownPathError(ApiError):
    """There is nothing at this path."""

    status = 404
    code = "not_found"
    kind = "invalid_request_error"

    @classmethod
    def at(cls, path: str) -> Self:
        """The error for a requested path."""
        return cls(f"There is nothing at {path[:200]}.{hint(path)}")


class NotHereError(ApiError):
    """This server has no such thing."""

    status = 501
    code = "not_implemented"
    kind = "server_error"
    is_always_final = True


class MethodNotAllowedError(ApiError):
    """This path accepts another method."""

    status = 405
    code = "method_not_allowed"
    kind = "invalid_request_error"
    methods: Sequence[str] = ()
    """Methods that the path accepts."""

    @classmethod
    def at(cls, path: str, methods: Sequence[str]) -> Self:
        """The error for a path that accepts these methods."""
        error = cls(f"{path[:200]} accepts {' and '.join(methods)}.")
        error.methods = methods
        return error

    @property
    def allow(self) -> str:
        """Value of the header `Allow`. Where GET is accepted, so is HEAD."""
        has_implied_head = "GET" in self.methods and "HEAD" not in self.methods
        return ", ".join([*self.methods, *["HEAD"] * has_implied_head])

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), (b"allow", self.allow.encode())]


class UnknownRequestError(ApiError):
    """No request with this id is open."""

    status = 404
    code = "request_not_found"
    kind = "invalid_request_error"


class RequestCancelledError(ApiError):
    """The request was cancelled by `DELETE /v1/requests/{id}`."""

    status = 409
    code = "request_cancelled"
    kind = "invalid_request_error"
    is_always_final = True


class BodyTooLargeError(ApiError):
    """The request body is larger than 32 MiB."""

    status = 413
    code = "body_too_large"
    kind = "invalid_request_error"


class TooManyWaitingError(ApiError):
    """Too many of your requests wait here to be read; try again later."""

    status = 429
    code = "too_much_waiting"
    kind = "rate_limit_error"
    retry_after_s = 5
