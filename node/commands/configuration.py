"""What the verbs share: settings from options and environment, and the store they name."""

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node.errors import NodeError, StartError
from node.settings import Settings, default_home, read_environment
from node.store import ModelStore

EXTRA = (
    *("mlx", "mlx_lm", "transformers", "tokenizers", "safetensors", "numpy"),
    *("huggingface_hub", "psutil"),
)
"""What `mlx-fleet[node]` brings, and the base install does without."""
INSTALL_EXTRA = "pip install 'mlx-fleet[node]'"
ENGINES = ("text", "scripted")
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", re.IGNORECASE)


class ExtraMissing(NodeError):
    """The node extra is not installed; install it with pip install 'mlx-fleet[node]'."""

    code = "extra_missing"


def missing_extra() -> list[str]:
    """The modules of the node extra that are not installed."""
    return [name for name in EXTRA if importlib.util.find_spec(name) is None]


def need_extra() -> None:
    """Raises `ExtraMissing` that says what is missing and how to install it."""
    if missing := missing_extra():
        raise ExtraMissing(
            f"The node extra is not complete ({', '.join(missing)} missing); install it with "
            f"{INSTALL_EXTRA}."
        )


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


def open_store(home: Path | None, *, make_home: bool = False) -> ModelStore:
    """The store of the agent whose folder is `home`, or the configured one. With `make_home` that
    folder is made if need be, for its owner alone, since it will hold the token."""
    settings = read_settings({"home": home})
    if make_home:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    return ModelStore(settings.models_folder)
