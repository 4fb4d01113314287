"""Settings of the node agent, read at its start and at a reload.

Precedence: command-line option, environment variable, file, default. A bad value stops the start
and names the key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from node.errors import StartError
from node.protocol.paths import DEFAULT_PORT
from node.setting_kinds import (
    BITS,
    DISK_SIZE,
    KEEP_ALIVES,
    NAMES,
    PARSERS,
    PATHS,
    SIZE,
    SIZE_OR_SHARE,
    SWITCH,
    TEMPLATE_KWARGS,
    THINKING_TOKENS,
    WARM_FILES,
    size_from,
    size_or_share_from,
)
from serving import own_machine
from serving.logs.options import LogFile, LogFormat, LogLevel, LogOptions
from serving.setting import BadSetting, Environment, Setting, option_of, settings_of
from serving.setting_kinds import (
    DURATION,
    FLAG,
    PATH,
    PORT,
    STAY_AWAKE_MODE,
    TEXT,
    one_of,
    whole_number,
)
from serving.setting_sources import Sources
from serving.stay_awake import StayAwake
from serving.tracing.options import OtelEndpoint
from serving.variables import PREFIX

THREAD_BODY_BYTES = 256 * 1024
"""A larger body is parsed in a thread."""
STREAM_KEEPALIVE_S = 10.0
"""Seconds for which a stream's head is delayed until its first content, and the longest silence
after that."""
KEEP_ALIVE_S = 3600.0
"""Idle seconds until a model is unloaded for which `keep_alives` has no value."""

Wired = Literal["off", "weights", "lease"]
"""`weights`: the size of the weights, set once before the load; `lease`: the engine's memory lease,
set again with each change of it."""
ReasoningField = Literal["reasoning_content", "reasoning", "both"]


@dataclass(frozen=True, slots=True)
class Settings:
    """One node agent's settings. Each field is an option of `node-agent serve`, and its name in
    upper case behind `MLX_FLEET_NODE_` is the environment variable for it."""

    home: Annotated[
        Path, Setting(PATH, "Folder of the agent: token, node id, models.", metavar="FOLDER")
    ]
    host: Annotated[str, Setting(TEXT, "Address to bind.", metavar="ADDRESS")] = "127.0.0.1"
    port: Annotated[int, Setting(PORT, "Port to bind; 0 selects a free one.")] = DEFAULT_PORT
    engine: Annotated[str, Setting(one_of("text", "scripted"), "Engine.")] = "text"
    """`text` (mlx-lm) or `scripted`."""
    memory_limit_bytes: Annotated[
        int | None,
        Setting(
            SIZE_OR_SHARE,
            "Most memory for all models, such as 12GB, or 80% of the machine's.",
            "--memory-limit",
            "auto, the machine's memory less a reserve",
        ),
    ] = None
    max_rows: Annotated[
        int | None,
        Setting(
            whole_number(1, 256),
            "Requests decoded together, per model.",
            default="auto, up to 16",
            example="16",
        ),
    ] = None
    """None, here and below: `node.engines.sizing` decides."""
    prefill_chunk_tokens: Annotated[
        int | None,
        Setting(
            whole_number(16, 65_536),
            "Most tokens of one prompt in one step.",
            "--prefill-chunk",
            "auto, up to 2048",
            "TOKENS",
            example="2048",
        ),
    ] = None
    decode_stall_target_ms: Annotated[
        int | None,
        Setting(
            whole_number(10, 60_000),
            "Longest wait of running responses for a chunk of a new prompt.",
            default="auto, 200",
            metavar="MS",
            example="200",
        ),
    ] = None
    kv_live_bytes: Annotated[
        int | None,
        Setting(
            size_or_share_from("1MiB"),
            "Most KV of running responses, per model; a share is that of the memory limit.",
            "--kv-live-size",
            "auto",
        ),
    ] = None
    kv_cache_bytes: Annotated[
        int | None,
        Setting(
            SIZE_OR_SHARE,
            "Most stored KV in memory, per model; a share is that of the memory limit.",
            "--kv-cache-size",
            "auto, the remaining memory",
        ),
    ] = None
    kv_snapshot_bytes: Annotated[
        int | None,
        Setting(
            size_from("1B"), "Most stored KV in snapshots.", "--kv-snapshot-size", "auto, half"
        ),
    ] = None
    kv_cache_bits: Annotated[
        int | None,
        Setting(BITS, "Quantize stored KV to 4 or 8 bits.", default="off"),
    ] = None
    kv_live_bits: Annotated[
        int | None,
        Setting(BITS, "Quantize the KV of running responses.", default="off"),
    ] = None
    kv_disk_bytes: Annotated[
        int | None,
        Setting(
            DISK_SIZE,
            "Most stored KV on disk, per model; a share is that of the whole disk.",
            "--kv-disk-size",
            "auto, up to 50 GiB",
        ),
    ] = None
    """0: none."""
    kv_disk_bytes_per_day: Annotated[
        int | None,
        Setting(
            SIZE,
            "Most KV written to disk in a day, per model; 0: no limit.",
            "--kv-disk-writes-per-day",
            "auto, 50 GiB",
        ),
    ] = None
    announce: Annotated[
        bool,
        Setting(
            FLAG,
            "Announce the agent in the local network while it listens beyond loopback.",
            "--announce/--no-announce",
        ),
    ] = True
    script: Annotated[
        Path | None, Setting(PATH, "The scripted engine's script.", example="script.json")
    ] = None
    exit_on_stdin_eof: Annotated[bool, Setting(FLAG, "End when standard input closes.")] = False
    """An agent with it never outlives its parent process."""
    models: Annotated[
        tuple[Path, ...], Setting(PATHS, "A model folder to serve as well.", "--model")
    ] = ()
    """Model folders outside `models_folder`; in the environment, separated as in `PATH`."""
    served_model_names: Annotated[
        tuple[str, ...],
        Setting(NAMES, "A name for each --model.", "--served-model-name", "its folder's"),
    ] = ()
    """One for each of `models`, or none; in the environment, separated by commas, as all values
    below are unless they are paths."""
    tool_parsers: Annotated[
        tuple[tuple[str, str], ...],
        Setting(
            PARSERS, "Format of tool calls, or none.", "--tool-parser", "detected from the template"
        ),
    ] = ()
    reasoning_parsers: Annotated[
        tuple[tuple[str, str], ...],
        Setting(
            PARSERS,
            "Format of reasoning, or none.",
            "--reasoning-parser",
            "detected from the template",
        ),
    ] = ()
    default_chat_template_kwargs: Annotated[
        tuple[tuple[str, Mapping[str, Any]], ...],
        Setting(TEMPLATE_KWARGS, "Variables of the chat template for requests without them."),
    ] = ()
    """A request's own variables override these, and a model's override those for all, name by
    name."""
    max_thinking_tokens: Annotated[
        tuple[tuple[str, int], ...],
        Setting(
            THINKING_TOKENS,
            "Most reasoning tokens for requests without a limit.",
            default="no limit",
        ),
    ] = ()
    repeated_tool_calls: Annotated[
        bool, Setting(FLAG, "Also report a tool call that repeats one of the same response.")
    ] = False
    tool_stream: Annotated[
        bool,
        Setting(
            SWITCH, "Stream a tool call's arguments as they are generated, if its format allows it."
        ),
    ] = True
    min_residency_s: Annotated[
        float,
        Setting(
            DURATION,
            "Minimum residency: time that a loaded model stays before it is unloaded for another.",
            "--min-residency",
        ),
    ] = 30.0
    max_swap_wait_s: Annotated[
        float,
        Setting(
            DURATION,
            "Time after which a request that waits for a swap goes first.",
            "--max-swap-wait",
        ),
    ] = 120.0
    keep_alives: Annotated[
        tuple[tuple[str, float | None], ...],
        Setting(
            KEEP_ALIVES,
            "Idle time until a model is unloaded, or forever.",
            "--keep-alive",
            "1h",
            is_live=True,
        ),
    ] = ()
    """Seconds, or None for ever, by model; default `KEEP_ALIVE_S`. A router's policy overrides
    them."""
    pins: Annotated[
        tuple[str, ...],
        Setting(
            NAMES,
            "A model to load at the start and never unload.",
            "--pin",
            metavar="MODEL",
            is_live=True,
        ),
    ] = ()
    stall_timeout_s: Annotated[
        float,
        Setting(
            DURATION,
            "Time without progress after which an engine with requests is killed.",
            "--stall-timeout",
            is_live=True,
        ),
    ] = 120.0
    spare_engine: Annotated[
        bool,
        Setting(
            FLAG,
            "Keep an engine process ready, which saves seconds at the next load.",
            "--spare-engine/--no-spare-engine",
        ),
    ] = True
    """A process without a model, of some 0.1 GB."""
    stay_awake: Annotated[
        StayAwake,
        Setting(
            STAY_AWAKE_MODE,
            "When this Mac is kept awake; busy: while requests, loads or pulls are open, and a "
            "minute longer.",
            is_live=True,
        ),
    ] = StayAwake.BUSY
    wired: Annotated[
        Wired,
        Setting(
            one_of(*get_args(Wired)),
            "Part of an engine's memory that macOS is to keep wired for the GPU; Macs have been "
            "reported to panic with it.",
        ),
    ] = "off"
    reasoning_field: Annotated[
        ReasoningField,
        Setting(one_of(*get_args(ReasoningField)), "Field with the reasoning in chat responses."),
    ] = "reasoning_content"
    responses_bytes: Annotated[
        int | None,
        Setting(
            size_from("1MiB"),
            "Most disk space for stored responses.",
            "--responses-size",
            "512 MiB",
            example="512MiB",
        ),
    ] = None
    warm: Annotated[
        tuple[tuple[str, Path], ...],
        Setting(WARM_FILES, "A file of prompts to prefill at each load of the model."),
    ] = ()
    """Pairs of a model and a file; in the environment, separated as in `PATH`."""
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    log_file: LogFile = None
    otel_endpoint: OtelEndpoint = None

    @property
    def logs(self) -> LogOptions:
        return LogOptions(self.log_level, self.log_format, self.log_file)

    @property
    def models_folder(self) -> Path:
        return self.home / "models"

    @property
    def token_file(self) -> Path:
        return self.home / "token"

    @property
    def tls_file(self) -> Path:
        """The agent's own key and certificate."""
        return self.home / "tls.pem"

    @property
    def pairings_file(self) -> Path:
        return self.home / "pairings.json"

    @property
    def kv_folder(self) -> Path:
        return self.home / "kv"

    @property
    def responses_folder(self) -> Path:
        return self.home / "responses"


ENVIRONMENT = Environment(
    settings=Settings,
    command="node-agent",
    prefix="MLX_FLEET_NODE_",
    other_prefix="MLX_FLEET_ROUTER_",
    for_commands=("token", "config"),
)


def named_models(settings: Settings) -> dict[str, frozenset[str]]:
    """The models named in settings, by option; values for all models are left out."""
    named = {
        option_of(name, each): frozenset(model for model, _ in getattr(settings, name) if model)
        for name, each in settings_of(Settings).items()
        if each.kind.by_model
    }
    return {**named, "--pin": frozenset(settings.pins)}


def default_home(environ: Mapping[str, str] | None = None) -> Path:
    """`$MLX_FLEET_HOME/node`, or `~/.mlx-fleet/node`."""
    return own_machine.default_home("node", os.environ if environ is None else environ)


def environment_without_own() -> dict[str, str]:
    """This process's environment without variables of ours."""
    return {name: text for name, text in os.environ.items() if not name.startswith(PREFIX)}


def sources(options: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Sources:
    """The sources of the settings; an option that is not given is None, or an empty tuple."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    return Sources(
        ENVIRONMENT, given, os.environ if environ is None else environ, default_home(environ)
    )


def read_environment(environ: Mapping[str, str] | None = None) -> dict[str, object]:
    """The settings in environment variables. Raises `StartError` that names variable and value."""
    try:
        return ENVIRONMENT.read(os.environ if environ is None else environ)
    except BadSetting as error:
        raise StartError(str(error)) from None
