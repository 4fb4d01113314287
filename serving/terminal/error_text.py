"""Texts of errors for people: an error's own message or ours, never the name of its class."""

_WORDS: tuple[tuple[type[BaseException], str], ...] = (
    (MemoryError, "there is not enough memory"),
    (RecursionError, "it is nested too deep"),
    (TimeoutError, "no response arrived in time"),
    (ConnectionResetError, "the connection was cut"),
    (BrokenPipeError, "the connection was cut"),
    (EOFError, "it ended in the middle"),
)


def error_text(error: BaseException) -> str:
    """The first line of the error's message, without a full stop at its end."""
    lines = str(error).strip().splitlines()
    if lines:
        return lines[0].rstrip(". ")
    found = (words for kind, words in _WORDS if isinstance(error, kind))
    return next(found, "it gave no reason")
