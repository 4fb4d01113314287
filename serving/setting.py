"""Settings of a product, each declared once: name, default, kind of value, option and help text.

A settings class is a dataclass whose fields are annotated with a `Setting`:
`port: Annotated[int, Setting(NUMBER, "Port to bind.")] = 8801`. Its environment variable is the
field's name in upper case behind the product's prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_type_hints

from serving.errors import CannotStart
from serving.variables import misspelt


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
    prefix: str
    """Prefix of the names of its variables."""
    other_prefix: str
    """Prefix of variables that another product checks."""
    for_commands: tuple[str, ...] = ()
    """Names behind the prefix that commands read and that are not settings."""

    def read(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """The settings among the variables. Raises `BadSetting`, which names variable and value."""
        settings = settings_of(self.settings)
        known = {f"{self.prefix}{name.upper()}" for name in (*settings, *self.for_commands)}
        checked = (name for name in variables if not name.startswith(self.other_prefix))
        if sentence := misspelt(checked, known):
            raise BadSetting(sentence)
        found = {}
        for key, text in variables.items():
            name = key.removeprefix(self.prefix).lower()
            if not key.startswith(self.prefix) or name in self.for_commands:
                continue
            if name not in settings:
                raise BadSetting(f"{key} is not a setting of {self.command}.")
            found[name] = read_variable(settings[name], key, text)
        return found


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
