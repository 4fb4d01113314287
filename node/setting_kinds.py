"""Kinds of settings that only the node agent has: how their values are read from options and
variables."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from serving.setting import BadSetting, Kind
from serving.setting_kinds import keyed, read_duration_s, read_flag, read_path, read_text

AUTO_BYTES = -1
"""The value of `auto`, so that it overrides a variable's size when it is given as an option."""
_OBJECT_BEGIN = re.compile(r"[\s,]*(?:([^\s={},]+)\s*=\s*)?\{")
_LIST_END = re.compile(r"[\s,]*")
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", re.IGNORECASE)


def read_bytes(text: str) -> int:
    """A number of bytes written as 12GB, 12GiB or 12000000000. Raises `BadSetting`."""
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise BadSetting(f"{text!r} is not a size; write it as 12GB or 12GiB.")
    number, unit, binary = match.groups()
    power = " KMGT".index(unit.upper() or " ")
    return int(float(number) * (1024 if binary else 1000) ** power)


def read_disk_bytes(text: str) -> int:
    """A size, `off` (0) or `auto` (`AUTO_BYTES`). Raises `BadSetting`."""
    words = {"off": 0, "auto": AUTO_BYTES}
    word = text.strip().lower()
    if word in words:
        return words[word]
    try:
        return read_bytes(text)
    except BadSetting as exc:
        raise BadSetting(f"{str(exc).removesuffix('.')}, or give off or auto.") from None


def read_bits(key: str, text: str) -> int:
    """Bits of a quantized value. Raises `BadSetting`."""
    if text not in ("4", "8"):
        raise BadSetting(f"{key} must be 4 or 8, not {text!r}.")
    return int(text)


def size_from(least: str) -> Kind:
    """Sizes of at least `least`, which is written as users write one."""

    def read(key: str, text: str) -> int:
        size_bytes = SIZE.read(key, text)
        if size_bytes < read_bytes(least):
            raise BadSetting(f"{key} must be at least {least}, not {text!r}.")
        return int(size_bytes)

    return Kind(read, "SIZE", range=f"at least {least}")


def read_warm(text: str) -> tuple[str, Path]:
    """The model and the file of MODEL=FILE. Raises `BadSetting`."""
    model, _, file = text.partition("=")
    if not model.strip() or not file:
        raise BadSetting(f"warm must be MODEL=FILE, not {text!r}.")
    return model.strip(), Path(file).expanduser()


def read_parser(text: str) -> tuple[str, str]:
    """The model, empty for all, and the format of NAME or MODEL=NAME. Raises `BadSetting`."""
    model, found, name = text.rpartition("=")
    if not name.strip() or (found and not model.strip()):
        raise BadSetting(f"a parser must be NAME or MODEL=NAME, not {text!r}.")
    return model.strip(), name.strip()


def read_kwargs(text: str) -> tuple[str, Mapping[str, Any]]:
    """The model, empty for all, and the object of JSON or MODEL=JSON. Raises `BadSetting`."""
    pairs = read_all_kwargs(text)
    if len(pairs) != 1:
        raise BadSetting(f"template variables must be JSON or MODEL=JSON, not {text!r}.")
    return pairs[0]


def read_all_kwargs(text: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Several such pairs, separated by commas. Raises `BadSetting`."""
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
        raise BadSetting(f"template variables must be JSON or MODEL=JSON, not {text!r}.")
    return tuple(pairs)


def _refuse_constant(name: str) -> float:
    # NaN and the like are no JSON, though Python reads them.
    raise ValueError(name)


def read_thinking_tokens(text: str) -> tuple[str, int]:
    """The model, empty for all, and the number of N or MODEL=N. Raises `BadSetting`."""
    model, found, number = (piece.strip() for piece in text.rpartition("="))
    if not (number.isascii() and number.isdigit()) or (found and not model):
        raise BadSetting(f"thinking tokens must be N or MODEL=N, N at least 0, not {text!r}.")
    return model, int(number)


def read_keep_alive(text: str) -> tuple[str, float | None]:
    """The model, empty for all, and the idle seconds until it is unloaded: None for `forever` or
    0. Raises `BadSetting`."""
    model, found, time = (piece.strip() for piece in text.rpartition("="))
    if found and not model:
        raise BadSetting(f"keep-alive must be TIME or MODEL=TIME, not {text!r}.")
    seconds = 0.0 if time == "forever" else read_duration_s(time)
    return model, seconds or None


def _separated(
    read: Callable[[str, str], Any], separator: str = ","
) -> Callable[[str, str], tuple[Any, ...]]:
    """Reads all values of a variable. Blanks around a comma do not count; paths may have them."""
    return lambda key, text: tuple(
        read(key, each.strip() if separator == "," else each)
        for each in text.split(separator)
        if each.strip()
    )


def _by_model(word: str, read: Callable[[str], Any]) -> Kind:
    """Values for all models, or for one."""
    read_one = keyed(read)
    return Kind(read_one, f"{word}|MODEL={word}", _separated(read_one), by_model=True)


BITS = Kind(read_bits, "4|8")
SIZE = Kind(keyed(read_bytes), "SIZE")
DISK_SIZE = Kind(keyed(read_disk_bytes), "SIZE|off|auto")
SWITCH = Kind(read_flag, "on|off", show=lambda is_on: "on" if is_on else "off")
NAMES = Kind(read_text, "NAME", _separated(read_text))
PATHS = Kind(read_path, "PATH", _separated(read_path, os.pathsep))
WARM_FILES = Kind(keyed(read_warm), "MODEL=FILE", _separated(keyed(read_warm), os.pathsep))
PARSERS = _by_model("NAME", read_parser)
THINKING_TOKENS = _by_model("N", read_thinking_tokens)
KEEP_ALIVES = _by_model("TIME", read_keep_alive)
TEMPLATE_KWARGS = Kind(keyed(read_kwargs), "JSON|MODEL=JSON", keyed(read_all_kwargs), by_model=True)
