"""The command of a service: `serve` with the settings of this shell, but independent of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.errors import CannotStart
from serving.services.description import Service, refuse_unwritable
from serving.services.machine import ServiceMachine
from serving.setting import CONFIG, CONFIG_FILE, Setting, option_of, settings_of
from serving.setting_sources import DEFAULT, Gathered, Sources

_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_MAC_PATH = f"/opt/homebrew/bin:{_SYSTEM_PATH}"
_ENDS_WITH_STDIN = "exit_on_stdin_eof"
_FILES = ("FILE", "FOLDER")


@dataclass(frozen=True, slots=True)
class ServedProgram:
    """A program of ours that can become a service."""

    name: str
    sources: Sources
    check: Callable[[], int]
    """Raises an error for people if `serve` would not start with these settings; returns the
    seconds that it takes to end at most."""
    next_step: str
    """A sentence about the next step once it runs."""

    @property
    def path(self) -> Path:
        """The installed command. Raises `CannotStart`."""
        path = Path(sys.executable).with_name(self.name)
        if not path.exists():
            raise CannotStart(
                f"There is no command {self.name} beside {sys.executable}: install mlx-fleet "
                "there with pip."
            )
        return path


def home_of(program: ServedProgram, gathered: Gathered, machine: ServiceMachine) -> Path:
    """The program's home, whole. Raises `CannotStart` for a default that is another user's."""
    found = gathered.values["home"]
    home = Path(found.value).expanduser().absolute()
    under_sudo = machine.is_root and machine.user.number != 0
    if under_sudo and found.source == DEFAULT and not home.is_relative_to(machine.user.home):
        raise CannotStart(
            f"With sudo, {program.name} would use {home}, which is not {machine.user.name}'s: give "
            "--home."
        )
    return home


def service_of(program: ServedProgram, machine: ServiceMachine) -> Service:
    """Raises an error for people if there can be no such service."""
    gathered = program.sources.gather()
    gathered.need_valid()
    stop_s = program.check()
    if gathered.values[_ENDS_WITH_STDIN].value:
        source = gathered.values[_ENDS_WITH_STDIN].source
        raise CannotStart(
            f"{_ENDS_WITH_STDIN} is set ({source}), and a service has no standard input: it would "
            "end at once. Leave it out."
        )
    home = home_of(program, gathered, machine)
    log = gathered.values["log_file"]
    log_file = Path(log.value or home / "logs" / f"{program.name}.log").expanduser().absolute()
    options = list(_options(program.sources, gathered, home))
    if log.value is None:
        options += ["--log-file", str(log_file)]
    service = Service(
        program.name,
        (str(program.path), "serve", "--home", str(home), *options),
        home,
        log_file,
        f"{program.path.parent}:{_MAC_PATH if machine.is_mac else _SYSTEM_PATH}",
        machine.user,
        stop_s,
    )
    refuse_unwritable(service)
    return service


def _options(sources: Sources, gathered: Gathered, home: Path) -> Iterator[str]:
    """The options and variables that are set here, as options. What is in the file of settings
    stays there."""
    if gathered.file is not None and gathered.file.absolute() != home / CONFIG_FILE:
        yield from (f"--{CONFIG}", str(gathered.file.absolute()))
    variables, _ = sources.product.read_all(sources.variables)
    given = {**variables, **sources.options}
    for name, setting in settings_of(sources.product.settings).items():
        if name == "home":
            continue
        if name in given:
            yield from _option(name, setting, given[name])
        elif gathered.values[name].source != DEFAULT:
            _need_whole(setting, gathered.values[name].value, gathered.values[name].source)


def _option(name: str, setting: Setting, value: Any) -> Iterator[str]:
    option, _, negation = option_of(name, setting).partition("/")
    if setting.kind.is_flag:
        yield from [option] if value else [negation] if negation else []
        return
    for each in value if setting.kind.read_all else [value]:
        yield from (option, setting.kind.show(_whole(setting, each)))


def _whole(setting: Setting, value: Any) -> Any:
    """The value with whole paths."""
    if isinstance(value, Path):
        return value.expanduser().absolute()
    if isinstance(value, tuple):
        return tuple(_whole(setting, each) for each in value)
    if isinstance(value, str) and value and _is_file(setting):
        return str(Path(value).expanduser().absolute())
    return value


def _is_file(setting: Setting) -> bool:
    """True for a text that is a path."""
    return setting.metavar in _FILES


def _need_whole(setting: Setting, value: Any, source: str) -> None:
    """Raises `CannotStart` for a path in the file of settings that depends on the folder in which
    the program is started."""
    for each in value if setting.kind.read_all else [value]:
        if each != _whole(setting, each):
            raise CannotStart(
                f"{source} has the path {each}, which depends on the current folder; a service "
                "needs a whole one."
            )
