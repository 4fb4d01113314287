"""Responses to requests that never reach an application. A class's docstring is its default
message; its fields are HTTP status, error code and type of error."""

from serving.http.http_error import HttpError


class Refusal(HttpError):
    """The server failed on this request."""

    is_final: bool = False


class NotARequest(Refusal):
    """This is not an HTTP request."""

    status = 400
    code = "invalid_value"
    kind = "invalid_request_error"
    is_final = True


class RequestTimeout(Refusal):
    """The request did not come in time."""

    status = 408
    code = "request_timeout"
    kind = "invalid_request_error"


class HeadTooLong(Refusal):
    """The headers of the request are longer than 64 KiB."""

    status = 431
    code = "head_too_long"
    kind = "invalid_request_error"
    is_final = True


class NotImplementedHere(Refusal):
    """This server does not implement that."""

    status = 501
    code = "not_implemented"
    is_final = True


class TooManyConnections(Refusal):
    """More connections are open than this process may have files; close those that are not
    needed, or try again later."""

    status = 503
    code = "too_many_connections"
    retry_after_s = 5


class WrongHttpVersion(Refusal):
    """This server accepts HTTP/1.1 only."""

    status = 505
    code = "http_version_not_supported"
    is_final = True
