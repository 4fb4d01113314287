"""How a command ends at Ctrl-C: one line, and the exit code that shells know it by."""

import os
import signal
import sys
from typing import NoReturn

from serving.terminal.output import put, shown

EXIT_CODE = 128 + signal.SIGINT


class Stopped(KeyboardInterrupt):
    """Ctrl-C, with a sentence on what is left of the work that it ended."""


def was_interrupted(error: BaseException) -> bool:
    """Whether it is Ctrl-C at a question, which has errors of its own for that."""
    return isinstance(error.__context__, KeyboardInterrupt)


def leave(command: str, sentence: str) -> NoReturn:
    """Ends the process at once: threads that wait for a network would hold it for as long as they
    wait, and one more Ctrl-C would make each of them a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    put(f"{command}: {shown(sentence or 'Stopped.')}", err=True)
    sys.stdout.flush()
    os._exit(EXIT_CODE)
