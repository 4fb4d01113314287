"""Effective settings: each value with the source that it is from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.setting import CONFIG, CONFIG_FILE, BadSetting, Environment, option_of, settings_of
from serving.setting_kinds import read_path

if TYPE_CHECKING:
    from serving.config_file import ConfigFile

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class SourcedValue:
    """A value, and where it was set: an option, a variable, a line of the file, or nowhere."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Gathered:
    """The settings of a product from all sources, and all that is wrong with them."""

    values: Mapping[str, SourcedValue]
    """By name, in the order of the class."""
    file: Path | None
    """The file that was read; None if there is none."""
    problems: tuple[str, ...]
    command: str
    """The program that has the settings."""

    def need_valid(self) -> None:
        """Raises `BadSetting` with the first problem, and the number of the others."""
        if self.problems:
            others = len(self.problems) - 1
            more = f" ({others} more: `{self.command} config check` lists all.)" if others else ""
            raise BadSetting(f"{self.problems[0]}{more}")


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the settings of a product come from. Precedence: option, variable, file, default."""

    product: Environment
    options: Mapping[str, Any]
    """By name, those that were given, among them `config`."""
    variables: Mapping[str, str]
    home: Path
    """The home if neither an option nor a variable sets it."""

    def gather(self) -> Gathered:
        """Reads the file and the variables anew."""
        given = {name: value for name, value in self.options.items() if name != CONFIG}
        variables, problems = self.product.read_all(self.variables)
        home = given.get("home") or variables.get("home") or self.home
        file = self._file(home)
        if file is not None:
            problems = [*problems, *file.problems]
        found = dict(self._sourced(given, variables, file))
        found["home"] = found.get("home") or SourcedValue(home, DEFAULT)
        order = [field.name for field in fields(self.product.settings)]
        values = {name: found[name] for name in order if name in found}
        path = file.path if file else None
        return Gathered(values, path, tuple(problems), self.product.command)

    def _sourced(
        self, given: Mapping[str, Any], variables: Mapping[str, Any], file: ConfigFile | None
    ) -> Mapping[str, SourcedValue]:
        """Each setting from the source that wins."""
        declared = settings_of(self.product.settings)
        found = {
            field.name: SourcedValue(field.default, DEFAULT)
            for field in fields(self.product.settings)
            if field.name != "home"
        }
        if file is not None:
            for name, value in file.values.items():
                found[name] = SourcedValue(value, f"{file.path}:{file.lines[name]}")
        for name, value in variables.items():
            found[name] = SourcedValue(value, self.product.variable(name))
        for name, value in given.items():
            found[name] = SourcedValue(value, option_of(name, declared[name]).partition("/")[0])
        return found

    def _file(self, home: Path) -> ConfigFile | None:
        """The file that an option or a variable names, which has to exist, or the one in the
        home."""
        named = self.options.get(CONFIG)
        variable = self.product.variable(CONFIG)
        if named is None and self.variables.get(variable):
            named = read_path(variable, self.variables[variable])
        own = home.expanduser() / CONFIG_FILE
        if named is None and not own.exists():
            return None
        from serving.config_file import read_file

        path = own if named is None else read_path("--config", str(named))
        return read_file(path, self.product.settings)
