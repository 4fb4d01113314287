"""Settings in a TOML file: one `name = value` for each, where the name is that of the option."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.setting import BadSetting, Setting, option_of, settings_of

NOT_IN_FILE = ("home",)
"""Settings that have to be known before the file is found."""
MOST_BYTES = 1024**2
_SIMILARITY = 0.6
_LINE_OF_ERROR = re.compile(r" \(at line (\d+), column \d+\)")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The settings in a file, and all that is wrong with it."""

    path: Path
    values: Mapping[str, Any]
    """By the setting's name in its class."""
    lines: Mapping[str, int]
    """Line of each of these."""
    problems: tuple[str, ...]
    """A sentence about each mistake, with file and line."""


def key_of(name: str, setting: Setting) -> str:
    """The setting's name in a file: that of its option, with underscores."""
    option = option_of(name, setting).partition("/")[0]
    return option.removeprefix("--").replace("-", "_")


def read_file(path: Path, settings: type[Any]) -> ConfigFile:
    """Reads the settings of a class. Mistakes are in `problems`; nothing is raised."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return _broken(path, f"{path} is too large for a file of settings.")
        text = path.read_text(encoding="utf-8")
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return _broken(path, _syntax_problem(path, error))
    except UnicodeDecodeError:
        return _broken(path, f"{path} is not text in UTF-8.")
    except OSError as error:
        return _broken(path, f"{path} cannot be read ({error.strerror or error}).")
    except RecursionError:
        return _broken(path, f"{path} is nested too deep.")
    return _read_values(path, text, given, settings)


def _read_values(
    path: Path, text: str, given: Mapping[str, Any], settings: type[Any]
) -> ConfigFile:
    by_key = {key_of(name, each): (name, each) for name, each in settings_of(settings).items()}
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    problems = []
    for key, value in given.items():
        line = line_of(text, key)
        try:
            name, setting = _setting(key, by_key)
            values[name] = _value(key, value, setting)
            lines[name] = line
        except BadSetting as error:
            problems.append((line, str(error)))
    problems.sort()
    told = tuple(f"{path}:{line}: {sentence}" for line, sentence in problems)
    return ConfigFile(path, values, lines, told)


def _setting(key: str, by_key: Mapping[str, tuple[str, Setting]]) -> tuple[str, Setting]:
    if key in NOT_IN_FILE:
        raise BadSetting(
            f"{key} is not set in a file, but by its option or variable: the file is found by it."
        )
    if key in by_key:
        return by_key[key]
    names = {each: each for each in by_key} | {name: each for each, (name, _) in by_key.items()}
    near = difflib.get_close_matches(key.replace("-", "_"), names, n=1, cutoff=_SIMILARITY)
    hint = f"; did you mean {names[near[0]]}?" if near else "."
    raise BadSetting(f"{key} is not a setting{hint}")


def _value(key: str, value: Any, setting: Setting) -> Any:
    """Reads one value, or a list of values where the option is repeatable."""
    kind = setting.kind
    if kind.read_all is None:
        return kind.read(key, _text(key, value))
    given = value if isinstance(value, list) else [value]
    return tuple(kind.read(key, _text(key, each)) for each in given)


def _text(key: str, value: Any) -> str:
    """A value as the option would get it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    nouns: Mapping[type[Any], str] = {list: "a list", dict: "a table"}
    noun = nouns.get(type(value), "a date or a time")
    raise BadSetting(f"{key} has one value, not {noun}.")


def _broken(path: Path, problem: str) -> ConfigFile:
    return ConfigFile(path, {}, {}, (problem,))


def _syntax_problem(path: Path, error: tomllib.TOMLDecodeError) -> str:
    text = str(error)
    found = _LINE_OF_ERROR.search(text)
    where = f"{path}:{found[1]}" if found else str(path)
    return f"{where}: it is no TOML: {_LINE_OF_ERROR.sub('', text).rstrip('.')}."


def line_of(text: str, key: str) -> int:
    """The line in which a name of the top level gets its value, or its table begins; 1 if that is
    not found, as for a name with escapes."""
    plain = re.escape(key)
    begins = re.compile(rf"\s*(?:\[+\s*)?(?:{plain}|\"{plain}\"|'{plain}')\s*[=.\]]")
    return next((number for number, line in _lines(text) if begins.match(line)), 1)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields the numbered lines that do not begin within a text of several lines."""
    quote = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not quote:
            yield number, line
        for each in re.findall(r'"""|\'\'\'', line):
            quote = "" if quote == each else quote or each
