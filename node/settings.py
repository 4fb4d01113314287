"""Settings of the node agent, read once at start.

Precedence: command-line option, then environment variable, then default. A bad value stops the
start and names the key.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from node.errors import StartError

MAX_BODY_BYTES = 32 * 1024 * 1024
HOLD_HEAD_S = 10.0
"""How long the head of a stream is held for its first content; also the longest silence after."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One node agent's settings; each field's name in upper case behind `MLX_FLEET_NODE_` is its
    environment variable."""

    home: Path
    """Folder of the agent: token, node id, models."""
    host: str = "127.0.0.1"
    port: int = 8801
    engine: str = "text"
    """`text` (mlx-lm) or `scripted`."""
    memory_budget_bytes: int | None = None
    """None: three quarters of the machine's memory."""
    max_rows: int = 16
    """Requests decoded together, per model."""
    allow_plain_http: bool = False
    """Whether a bind other than loopback may go without TLS."""
    script: Path | None = None
    """The scripted engine's script."""
    exit_on_stdin_eof: bool = False
    """Whether the agent ends when its standard input closes, so that it never outlives a parent."""
    models: tuple[Path, ...] = ()
    """Model folders outside `models_folder` that are served too; in the environment, separated as
    `PATH` is."""
    served_model_names: tuple[str, ...] = ()
    """A name for each of `models`, or none for all; in the environment, separated by commas."""

    @property
    def models_folder(self) -> Path:
        return self.home / "models"

    @property
    def token_file(self) -> Path:
        return self.home / "token"


def default_home(environ: Mapping[str, str] | None = None) -> Path:
    """`$MLX_FLEET_HOME/node`, or `~/.mlx-fleet/node`."""
    values = os.environ if environ is None else environ
    return Path(values.get("MLX_FLEET_HOME") or Path.home() / ".mlx-fleet") / "node"


def _number(key: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise StartError(f"{key} must be a whole number, not {text!r}.") from None
    if value < 0:
        raise StartError(f"{key} must not be negative, but is {value}.")
    return value


def _path(key: str, text: str) -> Path:
    # An empty path is the current folder to Python, which nobody means by it.
    if not text:
        raise StartError(f"{key} must be a path, not {text!r}.")
    return Path(text).expanduser()


def _flag(key: str, text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off", ""):
        return False
    raise StartError(f"{key} must be true or false, not {text!r}.")


def read_environment(environ: Mapping[str, str] | None = None) -> dict[str, object]:
    """The settings that environment variables give. Raises `StartError` naming key and value."""
    values = os.environ if environ is None else environ
    prefix = "MLX_FLEET_NODE_"
    readers: dict[str, Callable[[str, str], object]] = {
        "home": _path,
        "host": lambda _key, text: text,
        "port": _number,
        "engine": lambda _key, text: text,
        "memory_budget_bytes": _number,
        "max_rows": _number,
        "allow_plain_http": _flag,
        "script": _path,
        "exit_on_stdin_eof": _flag,
        "models": lambda _key, text: tuple(
            Path(path).expanduser() for path in text.split(os.pathsep) if path
        ),
        "served_model_names": lambda _key, text: tuple(
            name.strip() for name in text.split(",") if name.strip()
        ),
    }
    found: dict[str, object] = {}
    for key, text in values.items():
        if not key.startswith(prefix):
            continue
        name = key[len(prefix) :].lower()
        if name == "token":
            continue  # what `router add-node` sends, not a setting of the agent
        if name not in readers:
            raise StartError(f"{key} is not a setting of node-agent.")
        found[name] = readers[name](key, text)
    return found
