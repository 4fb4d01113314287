"""Settings of a product, each declared once: name, default, kind of value, option and help text.

A settings class is a dataclass whose fields are annotated with a `Setting`:
`port: Annotated[int, Setting(NUMBER, "Port to bind.")] = 8801`. Its environment variable is the
field's name in upper case behind the product's prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_type_hints

from serving.errors import CannotStart
from serving.variables import misspelt

HIDDEN = "(hidden)"
"""Shown in place of a secret."""
CONFIG = "config"
"""Name of the option with the path of a file of settings, and of its variable behind a prefix."""
CONFIG_FILE = "config.toml"
"""Name of that file in a product's home."""
Sections = Sequence[tuple[str, Sequence[str]]]
"""Names of settings under titles, in the order in which people read them."""


class BadSetting(CannotStart):
    """A setting's name or value is not valid."""


Read = Callable[[str, str], Any]
"""Reads a value from a text. Its first argument names the option or variable in errors."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of values: how they are read, and how help texts show them."""

    read: Read
    metavar: str
    read_all: Read | None = None
    """Reads all values from a variable, for settings with a tuple of values, whose option is
    repeatable; None for settings with one value."""
    show: Callable[[Any], str] = str
    """Spells a default as a user would write it."""
    range: str = ""
    """Allowed values, for the help text."""
    is_flag: bool = False
    """The option has no value: it sets True, and its negation, if it has one, False."""
    example: str = ""
    """A value as a user would write it."""
    by_model: bool = False
    """Values are pairs of a model, or empty for all models, and a value for it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of one setting, apart from its name and default."""

    kind: Kind
    help: str
    option: str = ""
    """Name of the option; by default that of the field with hyphens."""
    default: str = ""
    """The default in words, where the field's own is None or empty."""
    metavar: str = ""
    """Overrides the kind's."""
    example: str = ""
    """A value, where the default is none that could be written; overrides the kind's."""
    is_live: bool = False
    """A running product can change to another value."""
    is_secret: bool = False
    """The value is shown to nobody."""


_declared: dict[type[Any], Mapping[str, Setting]] = {}
"""By class. Evaluating the annotations of a class takes too long to repeat for each setting."""


def settings_of(settings: type[Any]) -> Mapping[str, Setting]:
    """The settings of a class by name, in order."""
    if settings not in _declared:
        _declared[settings] = _read_annotations(settings)
    return _declared[settings]


def _read_annotations(settings: type[Any]) -> Mapping[str, Setting]:
    hints = get_type_hints(settings, include_extras=True)
    return {
        field.name: each
        for field in fields(settings)
        for each in getattr(hints[field.name], "__metadata__", ())
        if isinstance(each, Setting)
    }


def option_of(name: str, setting: Setting) -> str:
    """The names of the setting's option as typer accepts them: `--x`, or `--x/--no-x`."""
    return setting.option or f"--{name.replace('_', '-')}"


def read_variable(setting: Setting, key: str, text: str) -> Any:
    """The setting's value in a variable. Raises `BadSetting`, which names the key."""
    return (setting.kind.read_all or setting.kind.read)(key, text)


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment variables of a product."""

    settings: type[Any]
    command: str
    """The program that has the settings."""
    prefix: str
    """Prefix of the names of its variables."""
    other_prefix: str
    """Prefix of variables that another product checks."""
    for_commands: tuple[str, ...] = ()
    """Names behind the prefix that commands read and that are not settings."""

    def read(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """The settings among the variables. Raises `BadSetting`, which names variable and value."""
        found, problems = self.read_all(variables)
        if problems:
            raise BadSetting(problems[0])
        return found

    def read_all(self, variables: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
        """The settings among the variables, and a sentence about each variable that is none."""
        settings = settings_of(self.settings)
        known = {self.variable(name) for name in (*settings, *self.for_commands)}
        checked = (name for name in variables if not name.startswith(self.other_prefix))
        problems = list(misspelt(checked, known))
        near = {sentence.partition(" ")[0] for sentence in problems}
        found = {}
        for key, text in variables.items():
            name = key.removeprefix(self.prefix).lower()
            if not key.startswith(self.prefix) or name in self.for_commands or key in near:
                continue
            if name not in settings:
                problems.append(f"{key} is not a setting of {self.command}.")
                continue
            try:
                found[name] = read_variable(settings[name], key, text)
            except BadSetting as error:
                problems.append(str(error))
        return found, problems

    def variable(self, name: str) -> str:
        """The name of a setting's variable."""
        return f"{self.prefix}{name.upper()}"


def help_of(settings: type[Any], name: str) -> str:
    """The help text of the setting's option: meaning, range, default."""
    setting = settings_of(settings)[name]
    kind = setting.kind
    default = setting.default or _shown_default(settings, name, kind)
    return " ".join(
        (
            setting.help,
            *([f"Allowed: {kind.range}."] if kind.range else []),
            *([f"Default: {default}."] if default else []),
            *(["Repeatable."] if kind.read_all else []),
        )
    )


def _shown_default(settings: type[Any], name: str, kind: Kind) -> str:
    default = next(field.default for field in fields(settings) if field.name == name)
    return "" if default in (MISSING, None, False, "", ()) else kind.show(default)
