"""The verbs of `service` for a command line: arguments only."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving.terminal.setting_options import with_settings

if TYPE_CHECKING:
    from serving.services.program import ServedProgram
    from serving.services.verbs import ServiceVerbs

ReadProgram = Callable[[Mapping[str, Any]], "ServedProgram"]
"""The program with the options that are given."""


def service_group(settings: type[Any], read: ReadProgram) -> typer.Typer:
    """The group of a program with these settings."""
    group = typer.Typer(
        help="The program as a service that the system starts, by launchd or systemd.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    group.command()(_install(settings, read))
    group.command()(_uninstall(settings, read))
    group.command()(_status(settings, read))
    return group


def _install(settings: type[Any], read: ReadProgram) -> Callable[..., None]:
    @with_settings(settings, without=("exit_on_stdin_eof",))
    def install(
        *,
        at_boot: Annotated[
            bool,
            typer.Option(
                "--at-boot", help="Start with the machine, without a login. On a Mac with sudo."
            ),
        ] = False,
        print_only: Annotated[
            bool, typer.Option("--print", help="Show the file of the service, and change nothing.")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="JSON, for scripts.")] = False,
        **given: Any,
    ) -> None:
        """Install the program with these options as a service, or update it, and start it."""
        verbs = _verbs(read, given)
        if print_only:
            verbs.print_file(at_boot=at_boot)
        elif not verbs.install(at_boot=at_boot, as_json=as_json):
            raise typer.Exit(1)

    return install


def _uninstall(settings: type[Any], read: ReadProgram) -> Callable[..., None]:
    @with_settings(settings, only=("home",), without=("config",))
    def uninstall(
        *,
        as_json: Annotated[bool, typer.Option("--json", help="JSON, for scripts.")] = False,
        **given: Any,
    ) -> None:
        """Stop the service and remove its file; the home stays."""
        _verbs(read, given).uninstall(as_json=as_json)

    return uninstall


def _status(settings: type[Any], read: ReadProgram) -> Callable[..., None]:
    @with_settings(settings, only=("home",), without=("config",))
    def status(
        *,
        as_json: Annotated[bool, typer.Option("--json", help="JSON, for scripts.")] = False,
        **given: Any,
    ) -> None:
        """Show whether the service is installed and runs. Exit code 1 if it does not run."""
        if not _verbs(read, given).status(as_json=as_json):
            raise typer.Exit(1)

    return status


def _verbs(read: ReadProgram, given: Mapping[str, Any]) -> "ServiceVerbs":
    from serving.services.machine import this_machine
    from serving.services.verbs import ServiceVerbs

    program = read(given)
    return ServiceVerbs(program, this_machine(program.sources.variables))
