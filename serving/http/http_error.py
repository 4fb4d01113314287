"""The shape of all errors that a server responds with."""

from inspect import getdoc

HEADER_RETRY_AFTER = b"retry-after"
HEADER_SHOULD_RETRY = b"x-should-retry"
"""`false` stops clients that would retry the same request because of its status."""


class HttpError(Exception):
    """The server failed on this request."""

    # A class's docstring is its default message.
    status = 500
    code = "internal_error"
    kind = "server_error"
    """Type of error, in OpenAI's terms."""
    retry_after_s: int | None = None

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or " ".join((getdoc(type(self)) or "").split()))

    @property
    def message(self) -> str:
        return str(self.args[0])

    @property
    def is_final(self) -> bool:
        """True if the same request would be refused again."""
        return False

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The response's headers that follow from the error."""
        headers = []
        if self.retry_after_s is not None:
            headers.append((HEADER_RETRY_AFTER, b"%d" % self.retry_after_s))
        if self.is_final:
            headers.append((HEADER_SHOULD_RETRY, b"false"))
        return headers
