"""The settings of a running product, and how it changes to others without a restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from serving.errors import CannotStart
from serving.setting import HIDDEN, Setting, option_of, settings_of

Settings = TypeVar("Settings")


@dataclass(frozen=True, slots=True)
class Change:
    """A setting, with its values as a user would write them."""

    option: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Reload:
    """The result of a reload."""

    applied: tuple[Change, ...]
    needs_restart: tuple[Change, ...]
    """Settings that stay as they are until the product is started again."""

    def sentences(self) -> list[str]:
        """Describes it for a log."""
        if not self.applied and not self.needs_restart:
            return ["Reloaded the settings; none has changed."]
        return [
            *(f"{each.option} is {each.after} now, not {each.before}." for each in self.applied),
            *(
                f"{each.option} stays {each.before} until a restart; then it is {each.after}."
                for each in self.needs_restart
            ),
        ]


class LiveSettings(Generic[Settings]):
    """Owner of the settings that apply now."""

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Settings] | None = None,
        errors: tuple[type[Exception], ...] = (CannotStart,),
    ) -> None:
        """`read` returns the settings as they are configured at present, or raises what a start
        with them would, one of `errors`; by default they never change."""
        self.current = settings
        self.errors = errors
        self._read = read or (lambda: settings)
        self._listeners: list[Callable[[Settings], None]] = []

    def on_change(self, apply: Callable[[Settings], None]) -> None:
        """`apply` is called with the settings after each change."""
        self._listeners.append(apply)

    def read(self) -> Settings:
        """Reads all sources anew, and checks them. Changes nothing; may be called in a thread."""
        return self._read()

    def change_to(self, wanted: Settings) -> Reload:
        """Applies all settings that a running product can change, at once. Requests that are open
        go on."""
        declared = settings_of(type(wanted))
        names = [name for name in declared if getattr(wanted, name) != getattr(self.current, name)]
        live = [name for name in names if declared[name].is_live]
        result = Reload(
            tuple(self._change(name, wanted) for name in live),
            tuple(self._change(name, wanted) for name in names if name not in live),
        )
        if live:
            changed: Any = replace(
                self.current,  # type: ignore[type-var]
                **{name: getattr(wanted, name) for name in live},
            )
            self.current = changed
            for apply in self._listeners:
                apply(self.current)
        return result

    def _change(self, name: str, wanted: Settings) -> Change:
        setting = settings_of(type(wanted))[name]
        option = option_of(name, setting).partition("/")[0]
        before, after = (shown(setting, getattr(each, name)) for each in (self.current, wanted))
        return Change(option, before, after)


def shown(setting: Setting, value: Any) -> str:
    """A value as a user would write it, or the default in words."""
    if value in (None, "", ()):
        return setting.default or "none"
    if setting.is_secret:
        return HIDDEN
    if setting.kind.read_all is not None:
        return ", ".join(setting.kind.show(each) for each in value)
    return setting.kind.show(value)
