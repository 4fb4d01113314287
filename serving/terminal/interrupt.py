"""Ends a command at Ctrl-C with one line, and with the exit code that shells expect."""

import os
import signal
import sys
from typing import NoReturn

from serving.terminal.output import put, shown

EXIT_CODE = 128 + signal.SIGINT


class Stopped(KeyboardInterrupt):
    """Ctrl-C, with a sentence on the state of the interrupted work."""


def was_interrupted(error: BaseException) -> bool:
    """True if the error came from Ctrl-C at a prompt, which raises errors of its own."""
    return isinstance(error.__context__, KeyboardInterrupt)


def exit_interrupted(command: str, sentence: str) -> NoReturn:
    """Ends the process at once: threads that wait for a network would delay the exit, and another
    Ctrl-C would print a traceback for each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    put(f"{command}: {shown(sentence or 'Stopped.')}", err=True)
    sys.stdout.flush()
    os._exit(EXIT_CODE)
