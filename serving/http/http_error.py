"""The shape of all errors that a server responds with."""

from inspect import getdoc


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
