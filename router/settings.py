"""Settings of the router, read once at start.

Precedence: command-line option, then environment variable, then default. A bad value stops the
start and names the key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from router.errors import StartError
from serving import own_machine, units
from serving.stay_awake import STAY_AWAKE, StayAwake
from serving.variables import misspelt

ENV_KEY = "MLX_FLEET_KEY"
MAX_BODY_BYTES = 32 * 1024 * 1024
CONNECT_TIMEOUT_S = 5.0
CONTROL_TIMEOUT_S = 10.0
USAGE_FLUSH_S = 1.0
LOST_GRACE_S = 5.0
"""How long the open requests of a lost agent wait for its event stream to come back."""
UNREPORTED_AFTER_S = 10.0
"""How long after its end a request waits for its node's accounts before it is written without."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One router's settings; each field's name in upper case behind `MLX_FLEET_ROUTER_` is its
    environment variable."""

    home: Path
    """Folder of the router: registry, key files."""
    host: str = "127.0.0.1"
    port: int = 8800
    registry_url: str = ""
    """Empty: `registry.db` in the home folder."""
    allow_plain_http: bool = False
    """Whether a bind other than loopback may go without TLS."""
    log_requests: bool = False
    """Whether each request is logged as one line when it ends."""
    hold_head_s: float = 10.0
    """How long a stream's head waits for its node; also the longest silence after."""
    queue_limit: int = 256
    """Requests of one model that may wait in the router; the next one is refused."""
    promote_after_s: float = 30.0
    """How long a request waits in its class before it goes on in the next better one."""
    stall_s: float = 150.0
    """How long a node that can be reached may make no progress with a request."""
    load_timeout_s: float = 900.0
    """How long the load of a model may make no progress."""
    first_token_timeout_s: float = 900.0
    """How long a server that is no node agent may take until its answer begins."""
    stay_awake: StayAwake = StayAwake.BUSY
    """When the machine, where it is a Mac, is kept from sleeping."""
    exit_on_stdin_eof: bool = False
    """Whether the router ends when its standard input closes: it never outlives its parent."""

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
    """What `$MLX_FLEET_KEY` holds for a command; empty where it holds nothing."""
    return os.environ.get(ENV_KEY, "").strip()


def _text(_key: str, text: str) -> object:
    return text


def _path(key: str, text: str) -> object:
    if not text:
        raise StartError(f"{key} must be a folder, not {text!r}.")
    return Path(text).expanduser()


def _port(key: str, text: str) -> object:
    if not text.isdecimal() or int(text) > 65535:
        raise StartError(f"{key} must be a port number from 0 to 65535, not {text!r}.")
    return int(text)


def _seconds(key: str, text: str) -> object:
    try:
        value = float(text)
    except ValueError:
        raise StartError(f"{key} must be a number of seconds, not {text!r}.") from None
    if not 0 < value < 3600:
        raise StartError(f"{key} must be more than 0 and less than 3600 seconds, not {text!r}.")
    return value


def _count(key: str, text: str) -> object:
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise StartError(f"{key} must be a whole number from 1 to 100000, not {text!r}.")
    return int(text)


def _flag(key: str, text: str) -> object:
    try:
        return units.read_flag(text)
    except ValueError:
        raise StartError(f"{key} must be true or false, not {text!r}.") from None


def _stay_awake(key: str, text: str) -> object:
    try:
        return StayAwake(text)
    except ValueError:
        raise StartError(f"{key} must be one of {STAY_AWAKE}, not {text!r}.") from None


READERS = {
    "home": _path,
    "host": _text,
    "port": _port,
    "registry_url": _text,
    "allow_plain_http": _flag,
    "log_requests": _flag,
    "hold_head_s": _seconds,
    "queue_limit": _count,
    "promote_after_s": _seconds,
    "stall_s": _seconds,
    "load_timeout_s": _seconds,
    "first_token_timeout_s": _seconds,
    "stay_awake": _stay_awake,
    "exit_on_stdin_eof": _flag,
}


def read_environment(environ: Mapping[str, str] | None = None) -> dict[str, object]:
    """The settings that environment variables give. Raises `StartError` naming key and value."""
    values = os.environ if environ is None else environ
    prefix = "MLX_FLEET_ROUTER_"
    known = {f"{prefix}{name.upper()}" for name in (*READERS, "url")}
    # What the node agent takes, it checks itself.
    ours = (name for name in values if not name.startswith("MLX_FLEET_NODE_"))
    if sentence := misspelt(ours, known):
        raise StartError(sentence)
    found: dict[str, object] = {}
    for key, text in values.items():
        if not key.startswith(prefix):
            continue
        name = key[len(prefix) :].lower()
        if name == "url":
            continue  # where the command line finds a router, not a setting of one
        if name not in READERS:
            raise StartError(f"{key} is not a setting of router.")
        found[name] = READERS[name](key, text)
    return found
