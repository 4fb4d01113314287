"""Runs the subcommands of a command line."""

from typing import Any

import typer
from typer.core import TyperGroup

from serving.terminal.interrupt import exit_interrupted, was_interrupted


class Verbs(TyperGroup):
    """Ends the process at Ctrl-C with a line; typer's own handling prints none."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.Abort as error:
            if was_interrupted(error):
                exit_interrupted(ctx.info_name, "")
            raise
        except KeyboardInterrupt as stop:
            exit_interrupted(ctx.info_name, str(stop))
