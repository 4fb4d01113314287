"""Decides from an engine's error what must end: some rows or the process. Pure."""

from enum import IntEnum

_GPU = ("[METAL]", "[metal::")
"""Prefixes of MLX's messages about Metal: a failed command buffer, or its allocator."""
_ONE_BUFFER = "greater than the maximum allowed buffer size"
"""Part of MLX's message when a buffer is too large for this kind of GPU: nothing has been computed,
and nothing is broken."""
_OVERLOADS = ("Timeout", "ImpactingInteractivity", "Impacting Interactivity", "Hang", "OutOfMemory")
"""Names of Metal's errors (MTLCommandBufferError, IOGPUCommandBufferCallbackError) that a smaller
command buffer may avoid."""
MAX_IN_A_ROW = 2
"""Number of failed steps without a token in between that end the process."""


class FailureScope(IntEnum):
    """The parts of an engine process that must end after an error."""

    ROWS = 0
    """Only the engine's rows end; the engine goes on serving."""
    PROCESS = 1
    """The engine process ends: only a new one can compute again."""
    OVERLOADED_PROCESS = 2
    """The engine process ends, and the next one should compute less per step."""


class Failures:
    """Counts consecutive failures of one engine."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def note_token(self) -> None:
        """Resets the count: a row has received a token."""
        self._in_a_row = 0

    def judge(self, error: Exception) -> FailureScope:
        """Counts the error and returns what must end. After an error of the GPU macOS ignores
        all further commands of the process to it, although MLX reports each error only once."""
        text = str(error)
        if _ONE_BUFFER in text:
            return FailureScope.ROWS
        if text.startswith(_GPU):
            is_overload = any(sign in text for sign in _OVERLOADS)
            return FailureScope.OVERLOADED_PROCESS if is_overload else FailureScope.PROCESS
        self._in_a_row += 1
        return FailureScope.PROCESS if self._in_a_row >= MAX_IN_A_ROW else FailureScope.ROWS
