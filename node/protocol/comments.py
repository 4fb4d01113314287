"""Comment lines that fill idle intervals of streams, the same from router and agent."""


def loading(name: str, progress: float | None) -> bytes:
    """A comment that reports the load of a model; `progress` is from 0 to 1, or None if
    unknown."""
    done = "" if progress is None else f" {progress * 100:.0f} %"
    return f": loading {_in_line(name)}{done}\n\n".encode()


def waiting_for(name: str, blocked_by: str) -> bytes:
    """A comment that reports a wait for a model, and the reason why it is not loading yet."""
    return f": waiting for {_in_line(name)}, {blocked_by}\n\n".encode()


def _in_line(name: str) -> str:
    """The name without line breaks, which would end the comment."""
    return name if name.isprintable() else ascii(name)
