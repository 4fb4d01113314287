"""What an error of an engine says about the engine. Pure: errors in, a verdict out."""

from enum import IntEnum

_GPU = ("[METAL]", "[metal::")
"""How MLX begins what it tells of Metal: a command buffer that failed, or its allocator."""
_ONE_BUFFER = "greater than the maximum allowed buffer size"
"""A buffer that no GPU of this kind has room for: nothing has been computed, nothing is broken."""
_OVERLOADS = ("Timeout", "ImpactingInteractivity", "Impacting Interactivity", "Hang", "OutOfMemory")
"""What of Metal's errors (MTLCommandBufferError, IOGPUCommandBufferCallbackError) a smaller
command buffer may not run into."""
MOST_IN_A_ROW = 2


class Verdict(IntEnum):
    """What is to end after an error."""

    ROWS = 0
    """The rows that were inside; the engine serves on."""
    PROCESS = 1
    """The engine: only a new process can compute again."""
    OVERLOADED_PROCESS = 2
    """The same, and the next one is to do less at a time."""


class Failures:
    """Counts failures without anything good between them."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def note_good(self) -> None:
        """A row has got a token."""
        self._in_a_row = 0

    def judge(self, error: Exception) -> Verdict:
        """What is to end after this one. After an error of the GPU macOS ignores whatever the
        process sends it, though MLX reports each error only once."""
        text = str(error)
        if _ONE_BUFFER in text:
            return Verdict.ROWS
        if text.startswith(_GPU):
            is_overload = any(sign in text for sign in _OVERLOADS)
            return Verdict.OVERLOADED_PROCESS if is_overload else Verdict.PROCESS
        self._in_a_row += 1
        return Verdict.PROCESS if self._in_a_row >= MOST_IN_A_ROW else Verdict.ROWS
