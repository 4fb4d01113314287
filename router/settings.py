"""Settings of the router, read once at start.

Precedence: command-line option, then environment variable, then default. A bad value stops the
start and names the key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from router.errors import StartError
from serving import own_machine, units
from serving.setting import Kind, Setting, read_variable, settings_of
from serving.stay_awake import STAY_AWAKE, StayAwake
from serving.variables import misspelt

ENV_KEY = "MLX_FLEET_KEY"
MAX_BODY_BYTES = 32 * 1024 * 1024
CONNECT_TIMEOUT_S = 5.0
CONTROL_TIMEOUT_S = 10.0
USAGE_FLUSH_S = 1.0
LOST_GRACE_S = 5.0
"""Seconds that the open requests of a lost agent wait for its event stream to reconnect."""
UNREPORTED_AFTER_S = 10.0
"""Seconds after its end that a request waits for its node's usage record before it is written
without one."""


def _text(_key: str, text: str) -> Any:
    return text


def _path(key: str, text: str) -> Any:
    if not text:
        raise StartError(f"{key} must be a folder, not {text!r}.")
    return Path(text).expanduser()


def _port(key: str, text: str) -> Any:
    if not text.isdecimal() or int(text) > 65535:
        raise StartError(f"{key} must be a port number from 0 to 65535, not {text!r}.")
    return int(text)


def _seconds(key: str, text: str) -> Any:
    try:
        value = float(text)
    except ValueError:
        raise StartError(f"{key} must be a number of seconds, not {text!r}.") from None
    if not 0 < value < 3600:
        raise StartError(f"{key} must be more than 0 and less than 3600 seconds, not {text!r}.")
    return value


def _count(key: str, text: str) -> Any:
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise StartError(f"{key} must be a whole number from 1 to 100000, not {text!r}.")
    return int(text)


def _flag(key: str, text: str) -> Any:
    try:
        return units.read_flag(text)
    except ValueError:
        raise StartError(f"{key} must be true or false, not {text!r}.") from None


def _stay_awake(key: str, text: str) -> Any:
    try:
        return StayAwake(text)
    except ValueError:
        raise StartError(f"{key} must be one of {STAY_AWAKE}, not {text!r}.") from None


TEXT = Kind(_text, "TEXT")
PATH = Kind(_path, "FOLDER")
PORT = Kind(_port, "PORT", range="0 to 65535")
COUNT = Kind(_count, "N", range="1 to 100000")
SECONDS = Kind(
    _seconds, "SECONDS", show=lambda seconds: f"{seconds:g}", range="more than 0, less than 3600"
)
FLAG = Kind(_flag, "", is_flag=True)
STAY_AWAKE_MODE = Kind(_stay_awake, STAY_AWAKE)


@dataclass(frozen=True, slots=True)
class Settings:
    """One router's settings. Each field is an option of `router serve`, and its name in upper case
    behind `MLX_FLEET_ROUTER_` is the environment variable for it."""

    home: Annotated[Path, Setting(PATH, "The router's folder: registry and key files.")]
    host: Annotated[str, Setting(TEXT, "Address to listen on.", metavar="ADDRESS")] = "127.0.0.1"
    port: Annotated[int, Setting(PORT, "Port to listen on; 0 selects a free one.")] = 8800
    registry_url: Annotated[
        str,
        Setting(
            TEXT,
            "SQLite file of the registry.",
            default="registry.db in the router's folder",
            metavar="FILE",
        ),
    ] = ""
    allow_plain_http: Annotated[
        bool,
        Setting(
            FLAG,
            "Listen beyond loopback without TLS, where other machines can read along.",
            "--allow-plain-http/--no-allow-plain-http",
        ),
    ] = False
    log_requests: Annotated[
        bool,
        Setting(FLAG, "Log each request in one line.", "--log-requests/--no-log-requests"),
    ] = False
    hold_head_s: Annotated[
        float, Setting(SECONDS, "Longest silence of a stream, its head included.", "--hold-head")
    ] = 10.0
    queue_limit: Annotated[
        int, Setting(COUNT, "Most requests of one model that wait in the router.")
    ] = 256
    """The next request is refused."""
    promote_after_s: Annotated[
        float,
        Setting(
            SECONDS,
            "Time after which a waiting request may go before those that came later.",
            "--promote-after",
        ),
    ] = 30.0
    stall_s: Annotated[
        float,
        Setting(
            SECONDS,
            "Time without progress after which a request is taken from a node that is connected.",
            "--stall",
        ),
    ] = 150.0
    load_timeout_s: Annotated[
        float,
        Setting(
            SECONDS, "Time for which the load of a model may make no progress.", "--load-timeout"
        ),
    ] = 900.0
    first_token_timeout_s: Annotated[
        float,
        Setting(
            SECONDS,
            "Time until a third-party server must have begun its response.",
            "--first-token-timeout",
        ),
    ] = 900.0
    stay_awake: Annotated[
        StayAwake,
        Setting(
            STAY_AWAKE_MODE,
            "When this machine, if it is a Mac, is kept awake; busy: while requests are open, and "
            "a minute longer.",
        ),
    ] = StayAwake.BUSY
    exit_on_stdin_eof: Annotated[
        bool,
        Setting(
            FLAG,
            "End when standard input closes.",
            "--exit-on-stdin-eof/--no-exit-on-stdin-eof",
        ),
    ] = False
    """A router with it never outlives its parent process."""

    @property
    def registry(self) -> str:
        return self.registry_url or str(self.home / "registry.db")

    @property
    def admin_key_file(self) -> Path:
        return self.home / "admin.key"

    @property
    def first_key_file(self) -> Path:
        return self.home / "first.key"


def default_home(environ: Mapping[str, str] | None = None) -> Path:
    """`$MLX_FLEET_HOME/router`, or `~/.mlx-fleet/router`."""
    return own_machine.default_home("router", os.environ if environ is None else environ)


def home_of_environment() -> Path:
    """`$MLX_FLEET_ROUTER_HOME`, or the default."""
    home = os.environ.get("MLX_FLEET_ROUTER_HOME")
    return Path(home).expanduser() if home else default_home()


def key_of_environment() -> str:
    """Returns the value of `$MLX_FLEET_KEY` for a command; empty if it is not set."""
    return os.environ.get(ENV_KEY, "").strip()


def read_environment(environ: Mapping[str, str] | None = None) -> dict[str, object]:
    """The settings in environment variables. Raises `StartError` that names variable and value."""
    values = os.environ if environ is None else environ
    prefix = "MLX_FLEET_ROUTER_"
    settings = settings_of(Settings)
    known = {f"{prefix}{name.upper()}" for name in (*settings, "url")}
    # The node agent checks its own variables.
    ours = (name for name in values if not name.startswith("MLX_FLEET_NODE_"))
    if sentence := misspelt(ours, known):
        raise StartError(sentence)
    found: dict[str, object] = {}
    for key, text in values.items():
        if not key.startswith(prefix):
            continue
        name = key[len(prefix) :].lower()
        if name == "url":
            continue  # for the commands, not a setting of the router
        if name not in settings:
            raise StartError(f"{key} is not a setting of router.")
        found[name] = read_variable(settings[name], key, text)
    return found
