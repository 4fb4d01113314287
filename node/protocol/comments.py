"""Comments that fill the silence of streams, in the same words wherever they come from."""


def loading(name: str, progress: float | None) -> bytes:
    """That a model is being loaded; `progress` from 0 to 1, where it is known."""
    done = "" if progress is None else f" {progress * 100:.0f} %"
    return f": loading {_in_line(name)}{done}\n\n".encode()


def waiting_for(name: str, held_by: str) -> bytes:
    """That a model is waited for, and why it is not being loaded."""
    return f": waiting for {_in_line(name)}, {held_by}\n\n".encode()


def _in_line(name: str) -> str:
    """A folder's name may have line breaks, which would end the comment."""
    return name if name.isprintable() else ascii(name)
