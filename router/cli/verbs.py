"""Shared parts of `router`'s verbs: error handling, groups, and the admin client."""

from typing import TYPE_CHECKING, Any

import typer

from router.errors import RouterError, StartError
from serving.errors import CannotStart
from serving.terminal.output import put, shown
from serving.terminal.verbs import Verbs

if TYPE_CHECKING:
    from router.commands.client import AdminClient

EXIT_FAILED = 1
EXIT_CANNOT_START = 2


class RouterVerbs(Verbs):
    """Prints every RouterError and CannotStart as one sentence and sets the exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except RouterError as error:
            put(f"{ctx.info_name or 'router'}: {shown(error.message)}", err=True)
            code = EXIT_CANNOT_START if isinstance(error, StartError) else EXIT_FAILED
            raise typer.Exit(code) from error
        except CannotStart as error:
            put(f"{ctx.info_name or 'router'}: {shown(str(error))}", err=True)
            raise typer.Exit(EXIT_CANNOT_START) from error


def group(text: str, *, no_args_is_help: bool = True, **options: Any) -> typer.Typer:
    return typer.Typer(
        help=text,
        no_args_is_help=no_args_is_help,
        pretty_exceptions_enable=False,
        **options,
    )


def is_given(context: typer.Context, name: str) -> bool:
    """Returns True if the option is on the command line, and not only in the environment."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def admin(url: str | None) -> "AdminClient":
    from router.commands.client import AdminClient, find_router

    return AdminClient(find_router(url))
