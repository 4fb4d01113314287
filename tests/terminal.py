"""A program in a pseudo-terminal, whose keys a test presses and whose screen it reads."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
_AS_CONTROLLING = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
"""Makes standard input the terminal whose Ctrl-C reaches the program."""


class Terminal:
    """Runs Python code in a terminal of 80 columns. Tests need a time limit of their own."""

    def __init__(self, code: str, env: Mapping[str, str] | None = None, rows: int = 24) -> None:
        self._own, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
        given = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **(env or {})}
        for name in ("NO_COLOR", "COLUMNS", "LINES"):
            given.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _AS_CONTROLLING + code],
            stdin=end,
            stdout=end,
            stderr=end,
            env=given,
            start_new_session=True,
        )
        # Kept, so that the settings of the terminal can be read after the program's end.
        self._end = end
        self.output = ""

    def type(self, text: str) -> None:
        os.write(self._own, text.encode())

    def read_to(self, text: str) -> str:
        """Reads on until the text; returns what came before it."""
        while text not in self.output:
            self.output += os.read(self._own, 65536).decode(errors="replace")
        before, _, self.output = self.output.partition(text)
        return before

    def echoes(self) -> bool:
        """True if the terminal shows what is typed, line by line, as shells expect it."""
        flags = termios.tcgetattr(self._end)[3]
        return bool(flags & termios.ECHO) and bool(flags & termios.ICANON)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self._own)
        os.close(self._end)
