"""Kinds of settings that only the node agent has: how their values are read from options and
variables."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving import units
from serving.setting import BadSetting, Kind
from serving.setting_kinds import keyed, read_duration_s, read_flag, read_path, read_text

AUTO_BYTES = -1
"""The value of `auto`, so that it overrides a variable's size when it is given as an option."""
_OBJECT_BEGIN = re.compile(r"[\s,]*(?:([^\s={},]+)\s*=\s*)?\{")
_LIST_END = re.compile(r"[\s,]*")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SizeShare:
    """A size as a share of another one, which is known once the machine is."""

    percent: float

    def of(self, size_bytes: int) -> int:
        return int(size_bytes * self.percent / 100)

    def __str__(self) -> str:
        return f"{self.percent:g}%"


def read_size_or_share(text: str) -> int | SizeShare:
    """A size, or N% of what the setting's help names. Raises `BadSetting`."""
    found = _SHARE.fullmatch(text.strip())
    if found is None:
        try:
            return read_bytes(text)
        except BadSetting:
            raise BadSetting(
                f"{text!r} is not a size; write it as 12GB or 12GiB, or as a share, such as 80%."
            ) from None
    if not 0 < float(found[1]) <= 100:
        raise BadSetting(f"A share is more than 0% and at most 100%, not {text!r}.")
    return SizeShare(float(found[1]))


def read_bytes(text: str) -> int:
    """A number of bytes written as 12GB, 12GiB or 12000000000. Raises `BadSetting`."""
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise BadSetting(f"{text!r} is not a size; write it as 12GB or 12GiB.")
    number, unit, binary = match.groups()
    power = " KMGT".index(unit.upper() or " ")
    return int(float(number) * (1024 if binary else 1000) ** power)


def read_disk_bytes(text: str) -> int | SizeShare:
    """A size, a share, `off` (0) or `auto` (`AUTO_BYTES`). Raises `BadSetting`."""
    words = {"off": 0, "auto": AUTO_BYTES}
    word = text.strip().lower()
    if word in words:
        return words[word]
    try:
        return read_size_or_share(text)
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

    return Kind(read, "SIZE", range=f"at least {least}", example="2GB")


def size_or_share_from(least: str) -> Kind:
    """The same, or shares."""
    sizes = size_from(least)

    def read(key: str, text: str) -> int | SizeShare:
        found = SIZE_OR_SHARE.read(key, text)
        return found if isinstance(found, SizeShare) else int(sizes.read(key, text))

    return Kind(read, "SIZE|N%", range=f"at least {least}", example="8GB")


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


def _shown_pair(pair: tuple[str, Any], show: Callable[[Any], str] = str) -> str:
    """A model's value as it is written; that for all models has no name before it."""
    model, value = pair
    return f"{model}={show(value)}" if model else show(value)


def _by_model(
    word: str,
    read: Callable[[str], Any],
    example: str,
    show: Callable[[Any], str] = str,
) -> Kind:
    """Values for all models, or for one."""
    read_one = keyed(read)
    return Kind(
        read_one,
        f"{word}|MODEL={word}",
        _separated(read_one),
        show=lambda pair: _shown_pair(pair, show),
        by_model=True,
        example=example,
    )


BITS = Kind(read_bits, "4|8", example="8")
SIZE = Kind(keyed(read_bytes), "SIZE", example="8GB")
SIZE_OR_SHARE = Kind(keyed(read_size_or_share), "SIZE|N%", example="80%")
DISK_SIZE = Kind(
    keyed(read_disk_bytes),
    "SIZE|N%|off|auto",
    show=lambda size: "auto" if size == AUTO_BYTES else str(size),
    example="50GiB",
)
SWITCH = Kind(read_flag, "on|off", show=lambda is_on: "on" if is_on else "off")
NAMES = Kind(read_text, "NAME", _separated(read_text), example="qwen")
PATHS = Kind(read_path, "PATH", _separated(read_path, os.pathsep), example="/Volumes/Data/qwen")
WARM_FILES = Kind(
    keyed(read_warm),
    "MODEL=FILE",
    _separated(keyed(read_warm), os.pathsep),
    show=_shown_pair,
    example="qwen=/Volumes/Data/prompts.jsonl",
)
PARSERS = _by_model("NAME", read_parser, "qwen=none")
THINKING_TOKENS = _by_model("N", read_thinking_tokens, "4096")
KEEP_ALIVES = _by_model(
    "TIME",
    read_keep_alive,
    "1h",
    lambda seconds: "forever" if seconds is None else units.duration(seconds),
)
TEMPLATE_KWARGS = Kind(
    keyed(read_kwargs),
    "JSON|MODEL=JSON",
    keyed(read_all_kwargs),
    show=lambda pair: _shown_pair(pair, lambda value: json.dumps(value, ensure_ascii=False)),
    by_model=True,
    example='{"enable_thinking": false}',
)
