"""`config init`, `check` and `show` of a product."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.config_file import key_of
from serving.config_template import template
from serving.errors import CannotStart
from serving.setting import CONFIG, CONFIG_FILE, HIDDEN, Environment, Sections, Setting, settings_of
from serving.setting_sources import DEFAULT, Gathered, SourcedValue, Sources
from serving.terminal.output import put, put_json
from serving.whole_file import written_whole

_WIDEST = 44


@dataclass(frozen=True, slots=True)
class ConfigCommands:
    """The verbs for one product."""

    product: Environment
    sections: Sections
    sources: Sources

    def init(self, *, force: bool) -> Path:
        """Writes the template, and returns its path. Raises `CannotStart`."""
        gathered = self.sources.gather()
        named = self.sources.options.get(CONFIG)
        home = Path(gathered.values["home"].value).expanduser()
        path = Path(named).expanduser() if named else home / CONFIG_FILE
        if path.exists() and not force:
            raise CannotStart(f"{path} exists; --force replaces it.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with written_whole(path, replace=force) as partial:
                partial.write_text(template(self.product, self.sections), encoding="utf-8")
        except OSError as error:
            raise CannotStart(f"{path} cannot be written ({error.strerror or error}).") from error
        put(f"{path} has every setting of `{self.product.command} serve`, all commented out.")
        return path

    def check(self, gathered: Gathered, more: Sequence[str]) -> bool:
        """Prints all that is wrong, `more` included; True if that is nothing."""
        problems = [*gathered.problems, *more]
        for each in problems:
            put(each, err=True)
        if not problems:
            count = sum(each.source != DEFAULT for each in gathered.values.values())
            file = f"in {gathered.file} and elsewhere" if gathered.file else "(there is no file)"
            put(f"No mistakes; {count} of {len(gathered.values)} settings are set {file}.")
        return not problems

    def show(self, gathered: Gathered, *, as_json: bool) -> bool:
        """Prints each setting and its source; False, with all that is wrong, if they cannot be
        read."""
        if gathered.problems:
            return self.check(gathered, ())
        if as_json:
            put_json(json.dumps(self._rows(gathered), indent=2, ensure_ascii=False))
            return True
        for title, names in self.sections:
            put(f"\n# --- {title} ---")
            for name in names:
                put(self._line(name, gathered.values[name]))
        return True

    def _rows(self, gathered: Gathered) -> list[dict[str, Any]]:
        declared = settings_of(self.product.settings)
        return [
            {
                "name": key_of(name, declared[name]),
                "value": _written(declared[name], each.value),
                "source": each.source,
            }
            for name, each in gathered.values.items()
        ]

    def _line(self, name: str, each: SourcedValue) -> str:
        """A line of TOML with its source; commented out if it is the default."""
        setting = settings_of(self.product.settings)[name]
        written = _written(setting, each.value)
        key = key_of(name, setting)
        if written is None:
            return f"# {key}: {setting.default or 'none'}"
        text = f"{key} = {_toml(written)}"
        if each.source == DEFAULT:
            return f"# {text}"
        return f"{text:<{_WIDEST}}  # {each.source}"


def _written(setting: Setting, value: Any) -> Any:
    """The value as a file could have it; None if there is none."""
    if value in (None, "", ()):
        return None
    if setting.is_secret:
        return HIDDEN
    if setting.kind.read_all is not None:
        return [setting.kind.show(each) for each in value]
    if isinstance(value, bool):
        return value
    text = setting.kind.show(value)
    return int(text) if text.isdecimal() else text


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
