"""The meaning of an error's HTTP status to clients, beyond the number."""

BROKEN_CALL = "The model broke off its call of "
"""The start of the error, in every dialect, for a tool call that was streamed in part and turned
out to be invalid. Its node is not at fault."""

_ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def is_final(status: int, *, has_retry_after: bool) -> bool:
    """True if the same request would be refused however often it is sent. Clients that refresh a
    key, or wait for a model, retry even a 401 or 404 ten times and more."""
    if status == 429:
        return not has_retry_after
    return 400 <= status < 500 and status not in (408, 409)


def anthropic_kind(status: int) -> str:
    """The `type` of an error in Anthropic's dialect."""
    return _ANTHROPIC_KINDS.get(status, "api_error")
