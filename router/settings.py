"""Settings of the router, read at its start and at a reload.

Precedence: command-line option, environment variable, file, default. A bad value stops the start
and names the key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from router.errors import StartError
from serving import own_machine
from serving.logs.options import LogFile, LogFormat, LogLevel, LogOptions
from serving.setting import BadSetting, Environment, Kind, Setting
from serving.setting_kinds import DURATION, FLAG, PATH, PORT, STAY_AWAKE_MODE, TEXT, whole_number
from serving.setting_sources import Gathered, Sources
from serving.stay_awake import StayAwake
from serving.tracing.options import OtelEndpoint

ENV_KEY = "MLX_FLEET_KEY"
CONNECT_TIMEOUT_S = 5.0
CONTROL_TIMEOUT_S = 10.0
USAGE_FLUSH_S = 1.0
LOST_GRACE_S = 5.0
"""Seconds that the open requests of a lost agent wait for its event stream to reconnect."""
FIRST_CONTACTS_S = 3.0
"""Most seconds that a starting router waits for its nodes, from which it learns the models."""
UNREPORTED_AFTER_S = 10.0
"""Seconds after its end that a request waits for its node's usage record before it is written
without one."""
_TIMEOUT_END_S = 3600.0


def _timeout_s(key: str, text: str) -> Any:
    seconds = DURATION.read(key, text)
    if not 0 < seconds < _TIMEOUT_END_S:
        raise BadSetting(f"{key} must be more than 0 and less than 1h, not {text!r}.")
    return seconds


TIMEOUT = Kind(_timeout_s, "TIME", show=DURATION.show, range="more than 0, less than 1h")


@dataclass(frozen=True, slots=True)
class Settings:
    """One router's settings. Each field is an option of `router serve`, and its name in upper case
    behind `MLX_FLEET_ROUTER_` is the environment variable for it."""

    home: Annotated[
        Path, Setting(PATH, "The router's folder: registry and key files.", metavar="FOLDER")
    ]
    host: Annotated[str, Setting(TEXT, "Address to listen on.", metavar="ADDRESS")] = "127.0.0.1"
    port: Annotated[int, Setting(PORT, "Port to listen on; 0 selects a free one.")] = 8800
    registry_url: Annotated[
        str,
        Setting(
            TEXT,
            "SQLite file of the registry.",
            default="registry.db in the router's folder",
            metavar="FILE",
            example="/Volumes/Data/registry.db",
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
    tls_cert: Annotated[
        Path | None,
        Setting(
            PATH,
            "Certificate for clients of other machines, in PEM, followed by its chain.",
            "--tls-cert",
            metavar="FILE",
            example="router.pem",
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        Setting(
            PATH,
            "Its key, without a passphrase.",
            "--tls-key",
            metavar="FILE",
            example="router.key",
        ),
    ] = None
    discovery: Annotated[
        bool,
        Setting(
            FLAG,
            "Look for agents in the local network: for `router discover`, and for a paired node "
            "whose address has changed.",
            "--discovery/--no-discovery",
        ),
    ] = True
    log_requests: Annotated[
        bool,
        Setting(
            FLAG, "Log each request in one line.", "--log-requests/--no-log-requests", is_live=True
        ),
    ] = False
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    log_file: LogFile = None
    otel_endpoint: OtelEndpoint = None
    stream_keepalive_s: Annotated[
        float,
        Setting(
            TIMEOUT,
            "Longest silence of a stream, its head included.",
            "--stream-keepalive",
            is_live=True,
        ),
    ] = 10.0
    queue_limit: Annotated[
        int,
        Setting(
            whole_number(1, 100_000),
            "Most requests of one model that wait in the router.",
            is_live=True,
        ),
    ] = 256
    """The next request is refused."""
    promote_after_s: Annotated[
        float,
        Setting(
            TIMEOUT,
            "Time after which a waiting request may go before those that came later.",
            "--promote-after",
            is_live=True,
        ),
    ] = 30.0
    stall_s: Annotated[
        float,
        Setting(
            TIMEOUT,
            "Time without progress after which a request is taken from a node that is connected.",
            "--stall",
            is_live=True,
        ),
    ] = 150.0
    load_timeout_s: Annotated[
        float,
        Setting(
            TIMEOUT,
            "Time for which the load of a model may make no progress.",
            "--load-timeout",
            is_live=True,
        ),
    ] = 900.0
    first_token_timeout_s: Annotated[
        float,
        Setting(
            TIMEOUT,
            "Time until a third-party server must have begun its response.",
            "--first-token-timeout",
            is_live=True,
        ),
    ] = 900.0
    stay_awake: Annotated[
        StayAwake,
        Setting(
            STAY_AWAKE_MODE,
            "When this machine, if it is a Mac, is kept awake; busy: while requests are open, and "
            "a minute longer.",
            is_live=True,
        ),
    ] = StayAwake.BUSY
    audit_entries: Annotated[
        int,
        Setting(
            whole_number(100, 10_000_000),
            "Most entries of the audit log, besides a tenth as many about attempts that failed.",
            is_live=True,
        ),
    ] = 100_000
    """Older ones are deleted."""
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
    def logs(self) -> LogOptions:
        return LogOptions(self.log_level, self.log_format, self.log_file)

    @property
    def registry(self) -> str:
        return self.registry_url or str(self.home / "registry.db")

    @property
    def admin_key_file(self) -> Path:
        return self.home / "admin.key"

    @property
    def first_key_file(self) -> Path:
        return self.home / "first.key"


ENVIRONMENT = Environment(
    settings=Settings,
    command="router",
    prefix="MLX_FLEET_ROUTER_",
    other_prefix="MLX_FLEET_NODE_",
    for_commands=("url", "config"),
)


def default_home(environ: Mapping[str, str] | None = None) -> Path:
    """`$MLX_FLEET_HOME/router`, or `~/.mlx-fleet/router`."""
    return own_machine.default_home("router", os.environ if environ is None else environ)


def key_of_environment() -> str:
    """Returns the value of `$MLX_FLEET_KEY` for a command; empty if it is not set."""
    return os.environ.get(ENV_KEY, "").strip()


def variable(name: str) -> str:
    """Returns a variable of another program; empty if it is not set."""
    return os.environ.get(name, "")


def read_environment(environ: Mapping[str, str] | None = None) -> dict[str, object]:
    """The settings in environment variables. Raises `StartError` that names variable and value."""
    try:
        return ENVIRONMENT.read(os.environ if environ is None else environ)
    except BadSetting as error:
        raise StartError(str(error)) from None


def sources(options: Mapping[str, Any]) -> Sources:
    """Returns the sources of the settings; options that are not given are None."""
    given = {name: value for name, value in options.items() if value is not None}
    return Sources(ENVIRONMENT, given, os.environ, default_home())


def read_settings(options: Mapping[str, Any]) -> Settings:
    """Reads settings from options (None if not given), environment, file and defaults. Raises
    `StartError`."""
    return settings_from(sources(options).gather())


def settings_from(gathered: Gathered) -> Settings:
    """Raises `StartError` with the first of the problems."""
    try:
        gathered.need_valid()
    except BadSetting as error:
        raise StartError(str(error)) from None
    return Settings(**{name: each.value for name, each in gathered.values.items()})
