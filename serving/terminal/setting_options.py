"""Command-line options made from a settings class."""

import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from serving.setting import CONFIG, CONFIG_FILE, Kind, Setting, help_of, option_of, settings_of

Command = TypeVar("Command", bound=Callable[..., Any])


def with_settings(
    settings: type[Any], *, without: Collection[str] = (), only: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Gives a command an option for each setting of the class, except for those in `without`, and,
    if `only` names some, for no others; and `--config` for the file of settings,
    unless `without` has it.

    The command has keyword-only parameters of its own and `**given`, which gets the settings by
    name: None, or an empty list, for an option that is not given.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        options = [
            _parameter(settings, name, setting)
            for name, setting in settings_of(settings).items()
            if name not in without and (not only or name in only)
        ]
        if CONFIG not in without:
            options.append(_config_parameter())
        # typer reads a command's parameters from its signature.
        vars(command)["__signature__"] = signature.replace(parameters=[*options, *own])
        return command

    return decorate


def kind_option(
    kind: Kind, option: str, text: str, metavar: str = "", envvar: str | None = None
) -> Any:
    """An option whose value is of that kind; its errors name the option."""
    return typer.Option(
        option,
        help=text,
        metavar=metavar or kind.metavar,
        envvar=envvar,
        parser=lambda given: kind.read(option, given),
    )


def _config_parameter() -> inspect.Parameter:
    text = f"File of settings. Default: {CONFIG_FILE} in the home, if there is one."
    annotation = Annotated[Path | None, typer.Option("--config", metavar="FILE", help=text)]
    return inspect.Parameter(
        CONFIG, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _parameter(settings: type[Any], name: str, setting: Setting) -> inspect.Parameter:
    kind, option = setting.kind, option_of(name, setting)
    text = help_of(settings, name)
    annotation: Any
    if kind.is_flag:
        annotation = Annotated[bool | None, typer.Option(option, help=text)]
    else:
        made = kind_option(kind, option, text, setting.metavar)
        annotation = Annotated[list[Any] | None if kind.read_all else Any, made]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )
