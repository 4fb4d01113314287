"""The faults of a scripted engine, which imitate those of real engines."""

import os
import signal
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from node.engine.base import ignore_long_step
from node.engine.scripted.script import Script


class StepFailure(Exception):
    """The script contains a step that fails."""


class CommandFailure(Exception):
    """The script contains a command that fails."""


class UnloadFailure(Exception):
    """The script contains an unload that fails."""


def die() -> None:
    """Ends the process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


class EngineHooks(NamedTuple):
    """Functions that the faults of a scripted engine call."""

    die: Callable[[], None] = die
    on_long_step: Callable[[float], None] = ignore_long_step
    """The callback of `EngineFactory`."""


DEFAULT_HOOKS = EngineHooks()


class ScriptedFaults:
    """Raises the script's faults at their time."""

    def __init__(self, script: Script, hooks: EngineHooks) -> None:
        self._script = script
        self._hooks = hooks

    def at_command(self, command: str) -> None:
        """Raises `CommandFailure` if the script has this command fail."""
        if self._script.failing_command == command:
            raise CommandFailure(self._script.step_failure_text)

    def at_wait(self, *, has_rows: bool) -> None:
        """Never returns if the script has an endless step and there is a row for it."""
        expected_s = self._script.endless_step_s
        if expected_s is not None and has_rows:
            self._hooks.on_long_step(expected_s)
            threading.Event().wait()

    def at_step(self, token_counts: Iterable[int]) -> None:
        """Ends the process, or raises `StepFailure`, if a row has the scripted number of tokens."""
        counts = set(token_counts)
        if self._script.crash_after_tokens in counts:
            self._hooks.die()
        if self._script.step_failure_after_tokens in counts:
            raise StepFailure(self._script.step_failure_text)

    def at_reset(self) -> None:
        """Raises `StepFailure` if the script has the reset fail."""
        if self._script.reset_failure:
            raise StepFailure("The script asked for a reset that fails.")

    def at_unload(self) -> None:
        """Raises `UnloadFailure` if the script has the unload fail."""
        if self._script.unload_failure is not None:
            raise UnloadFailure(self._script.unload_failure)
