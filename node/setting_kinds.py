"""Kinds of the node agent's settings: how their values are read from options and variables."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from node.errors import StartError
from serving import units
from serving.setting import Kind
from serving.stay_awake import STAY_AWAKE, StayAwake

AUTO_BYTES = -1
"""The value of `auto`, so that it overrides a variable's size when it is given as an option."""
_OBJECT_BEGIN = re.compile(r"[\s,]*(?:([^\s={},]+)\s*=\s*)?\{")
_LIST_END = re.compile(r"[\s,]*")
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", re.IGNORECASE)


def read_bytes(text: str) -> int:
    """A number of bytes written as 12GB, 12GiB or 12000000000. Raises `StartError`."""
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise StartError(f"{text!r} is not a size; write it as 12GB or 12GiB.")
    number, unit, binary = match.groups()
    power = " KMGT".index(unit.upper() or " ")
    return int(float(number) * (1024 if binary else 1000) ** power)


def read_disk_bytes(text: str) -> int:
    """A size, `off` (0) or `auto` (`AUTO_BYTES`). Raises `StartError`."""
    words = {"off": 0, "auto": AUTO_BYTES}
    word = text.strip().lower()
    if word in words:
        return words[word]
    try:
        return read_bytes(text)
    except StartError as exc:
        raise StartError(f"{exc.message.removesuffix('.')}, or give off or auto.") from None


def read_number(key: str, text: str) -> int:
    """A whole number, at least 0. Raises `StartError`."""
    try:
        value = int(text)
    except ValueError:
        raise StartError(f"{key} must be a whole number, not {text!r}.") from None
    if value < 0:
        raise StartError(f"{key} must not be negative, but is {value}.")
    return value


def read_path(key: str, text: str) -> Path:
    """A path. Raises `StartError` for an empty one, which Python reads as the current folder."""
    if not text:
        raise StartError(f"{key} must be a path, not {text!r}.")
    return Path(text).expanduser()


def read_flag(key: str, text: str) -> bool:
    """A word for yes or no. Raises `StartError`."""
    try:
        return units.read_flag(text)
    except ValueError:
        raise StartError(f"{key} must be on or off, not {text!r}.") from None


def read_warm(text: str) -> tuple[str, Path]:
    """The model and the file of MODEL=FILE. Raises `StartError`."""
    model, _, file = text.partition("=")
    if not model.strip() or not file:
        raise StartError(f"warm must be MODEL=FILE, not {text!r}.")
    return model.strip(), Path(file).expanduser()


def read_parser(text: str) -> tuple[str, str]:
    """The model, empty for all, and the format of NAME or MODEL=NAME. Raises `StartError`."""
    model, found, name = text.rpartition("=")
    if not name.strip() or (found and not model.strip()):
        raise StartError(f"a parser must be NAME or MODEL=NAME, not {text!r}.")
    return model.strip(), name.strip()


def read_kwargs(text: str) -> tuple[str, Mapping[str, Any]]:
    """The model, empty for all, and the object of JSON or MODEL=JSON. Raises `StartError`."""
    pairs = read_all_kwargs(text)
    if len(pairs) != 1:
        raise StartError(f"template variables must be JSON or MODEL=JSON, not {text!r}.")
    return pairs[0]


def read_all_kwargs(text: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Several such pairs, separated by commas. Raises `StartError`."""
    pairs = []
    at, decoder = 0, json.JSONDecoder(parse_constant=_refuse_constant)
    while match := _OBJECT_BEGIN.match(text, at):
        try:
            value, at = decoder.raw_decode(text, match.end() - 1)
            # A prompt cannot contain half of a surrogate pair, and no number is infinite.
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            break
        pairs.append((match[1] or "", value))
    if not _LIST_END.fullmatch(text, at):
        raise StartError(f"template variables must be JSON or MODEL=JSON, not {text!r}.")
    return tuple(pairs)


def _refuse_constant(name: str) -> float:
    # NaN and the like are no JSON, though Python reads them.
    raise ValueError(name)


def read_thinking_tokens(text: str) -> tuple[str, int]:
    """The model, empty for all, and the number of N or MODEL=N. Raises `StartError`."""
    model, found, number = (piece.strip() for piece in text.rpartition("="))
    if not (number.isascii() and number.isdigit()) or (found and not model):
        raise StartError(f"thinking tokens must be N or MODEL=N, N at least 0, not {text!r}.")
    return model, int(number)


def read_duration_s(text: str) -> float:
    """Seconds of `30s`, `10m`, `2h`, `1d`, `2w` or a plain number. Raises `StartError`."""
    try:
        return units.read_duration_s(text)
    except ValueError:
        raise StartError(
            f"a time must be as 30s, 10m, 2h, 1d or 2w, and at most a year, not {text!r}."
        ) from None


def read_keep_alive(text: str) -> tuple[str, float | None]:
    """The model, empty for all, and the idle seconds until it is unloaded: None for `forever` or
    0. Raises `StartError`."""
    model, found, time = (piece.strip() for piece in text.rpartition("="))
    if found and not model:
        raise StartError(f"keep-alive must be TIME or MODEL=TIME, not {text!r}.")
    seconds = 0.0 if time == "forever" else read_duration_s(time)
    return model, seconds or None


def _read_stay_awake(text: str) -> StayAwake:
    try:
        return StayAwake(text)
    except ValueError:
        raise StartError(f"it must be one of {STAY_AWAKE}, not {text!r}.") from None


def _keyed(read: Callable[[str], Any]) -> Callable[[str, str], Any]:
    """The reader with a key, which its `StartError` names."""

    def keyed(key: str, text: str) -> Any:
        try:
            return read(text)
        except StartError as exc:
            raise StartError(f"{key}: {exc.message}") from None

    return keyed


def _separated(
    read: Callable[[str, str], Any], separator: str = ","
) -> Callable[[str, str], tuple[Any, ...]]:
    """Reads all values of a variable. Blanks around a comma do not count; paths may have them."""
    return lambda key, text: tuple(
        read(key, each.strip() if separator == "," else each)
        for each in text.split(separator)
        if each.strip()
    )


def _text(_key: str, text: str) -> str:
    return text


def _by_model(word: str, read: Callable[[str], Any]) -> Kind:
    """Values for all models, or for one."""
    keyed = _keyed(read)
    return Kind(keyed, f"{word}|MODEL={word}", _separated(keyed), by_model=True)


TEXT = Kind(_text, "TEXT")
NUMBER = Kind(read_number, "N")
PATH = Kind(read_path, "PATH")
SIZE = Kind(_keyed(read_bytes), "SIZE")
DISK_SIZE = Kind(_keyed(read_disk_bytes), "SIZE|off|auto")
DURATION = Kind(_keyed(read_duration_s), "TIME", show=units.duration)
FLAG = Kind(read_flag, "", show=lambda is_on: "yes" if is_on else "no", is_flag=True)
SWITCH = Kind(read_flag, "on|off", show=lambda is_on: "on" if is_on else "off")
STAY_AWAKE_MODE = Kind(_keyed(_read_stay_awake), STAY_AWAKE)
NAMES = Kind(_text, "NAME", _separated(_text))
PATHS = Kind(read_path, "PATH", _separated(read_path, os.pathsep))
WARM_FILES = Kind(_keyed(read_warm), "MODEL=FILE", _separated(_keyed(read_warm), os.pathsep))
PARSERS = _by_model("NAME", read_parser)
THINKING_TOKENS = _by_model("N", read_thinking_tokens)
KEEP_ALIVES = _by_model("TIME", read_keep_alive)
TEMPLATE_KWARGS = Kind(
    _keyed(read_kwargs), "JSON|MODEL=JSON", _keyed(read_all_kwargs), by_model=True
)
