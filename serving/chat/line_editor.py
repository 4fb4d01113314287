"""Line editing for `input`: keys, recall of earlier lines, and Tab."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

_readline: ModuleType | None
try:
    # From here on, `input` in a terminal has line editing.
    import readline as _readline
except ImportError:  # Some builds of Python lack it; lines are then read without editing.
    _readline = None


@contextmanager
def editing(words: Callable[[], Sequence[str]]) -> Iterator[None]:
    """Completes the first word of a line by Tab from `words`. Lines are recalled within the
    process; they are not written to a file, since they are prompts."""
    if _readline is None:
        yield
        return
    before, delims = _readline.get_completer(), _readline.get_completer_delims()
    _readline.set_completer(lambda begun, at: _match(words(), begun, at))
    _readline.set_completer_delims(" \t\n")
    # The editor of macOS has its own words for keys.
    is_libedit = "libedit" in (_readline.__doc__ or "")
    _readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    try:
        yield
    finally:
        _readline.set_completer(before)
        _readline.set_completer_delims(delims)


def _match(words: Sequence[str], begun: str, at: int) -> str | None:
    """The match of that number, as readline queries them one by one; None after the last."""
    found = [word for word in words if begun and word.startswith(begun)]
    return found[at] if at < len(found) else None
