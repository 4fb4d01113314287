"""What the verbs share: settings from options and environment, and the store they name."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node.errors import StartError
from node.settings import Settings, default_home, read_environment
from node.store import ModelStore

ENGINES = ("text", "scripted")
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", re.IGNORECASE)


def read_bytes(text: str) -> int:
    """A number of bytes written as 12GB, 12GiB or 12000000000. Raises `StartError`."""
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise StartError(f"{text!r} is not a size; write it as 12GB or 12GiB.")
    number, unit, binary = match.groups()
    power = " KMGT".index(unit.upper() or " ")
    return int(float(number) * (1024 if binary else 1000) ** power)


def read_settings(options: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
    """Settings of the options that are given, then the environment's, then the defaults. Raises
    `StartError`."""
    given = {key: value for key, value in options.items() if value not in (None, ())}
    values: dict[str, Any] = {"home": default_home(environ), **read_environment(environ), **given}
    values["home"] = Path(values["home"]).expanduser()
    settings = Settings(**values)
    if settings.engine not in ENGINES:
        raise StartError(f"engine must be one of {', '.join(ENGINES)}, not {settings.engine!r}.")
    if not 0 <= settings.port <= 65_535:
        raise StartError(f"port must be from 0 to 65535, not {settings.port}.")
    if settings.max_rows < 1:
        raise StartError("max_rows must be at least 1.")
    if settings.script is not None and settings.engine != "scripted":
        raise StartError("script is for the scripted engine only; add --engine scripted.")
    return settings


def open_store(home: Path | None) -> ModelStore:
    """The store of the agent whose folder is `home`, or the configured one."""
    return ModelStore(read_settings({"home": home}).models_folder)
