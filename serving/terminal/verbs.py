"""How the verbs of a command line are run."""

from typing import Any

import typer
from typer.core import TyperGroup

from serving.terminal.interrupt import leave, was_interrupted


class Verbs(TyperGroup):
    """Ends the process at Ctrl-C, with a line; typer's own way tells nothing."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.Abort as error:
            if was_interrupted(error):
                leave(ctx.info_name, "")
            raise
        except KeyboardInterrupt as stop:
            leave(ctx.info_name, str(stop))
