"""What an error's HTTP status is called where clients read more than the status."""

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


def anthropic_kind(status: int) -> str:
    """The `type` of an error in Anthropic's dialect."""
    return _ANTHROPIC_KINDS.get(status, "api_error")
