"""Settings of the node agent, read once at start.

Precedence: command-line option, then environment variable, then default. A bad value stops the
start and names the key.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from node.errors import StartError
from serving import own_machine, units
from serving.stay_awake import STAY_AWAKE, StayAwake
from serving.variables import PREFIX, misspelt

MAX_BODY_BYTES = 32 * 1024 * 1024
THREAD_BODY_BYTES = 256 * 1024
"""A larger body is parsed in a thread."""
HOLD_HEAD_S = 10.0
"""How long the head of a stream is held for its first content; also the longest silence after."""

Wired = Literal["off", "weights", "lease"]
"""`weights`: as much as they take, set once before the load; `lease`: all that an engine may take,
set again with each change of its lease."""
WIRED: tuple[Wired, ...] = ("off", "weights", "lease")


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
    memory_limit_bytes: int | None = None
    """Most that all models may take; None: what the machine has, less a reserve."""
    max_rows: int | None = None
    """Requests decoded together, per model. None, here and below: `node.engines.sizing` decides."""
    prefill_chunk_tokens: int | None = None
    """Most of one prompt in one step."""
    decode_stall_target_ms: int | None = None
    """Longest wait of decoding rows for a chunk of prefill."""
    kv_live_bytes: int | None = None
    """Most KV of running rows, per model."""
    kv_cache_bytes: int | None = None
    """Most stored KV in memory, per model."""
    kv_snapshot_bytes: int | None = None
    """Most of it that snapshots may take."""
    kv_cache_bits: int | None = None
    """4 or 8: how stored KV is quantised; None: not at all."""
    kv_live_bits: int | None = None
    """The same for the KV of running rows."""
    kv_disk_bytes: int | None = None
    """Most stored KV on disk, per model; 0: none."""
    kv_disk_bytes_per_day: int | None = None
    """Most KV that is written to disk in a day, per model; 0: no limit."""
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
    tool_parsers: tuple[tuple[str, str], ...] = ()
    """(model, or empty for all, format of its tool calls); else the template tells. In the
    environment NAME or MODEL=NAME, separated by commas; so are the next ones."""
    reasoning_parsers: tuple[tuple[str, str], ...] = ()
    """The same for reasoning."""
    default_chat_template_kwargs: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """(model, or empty for all, variables of its chat template); a request's own go before, and
    a model's before those for all, each by itself. In the environment JSON or MODEL=JSON,
    separated by commas."""
    max_thinking_tokens: tuple[tuple[str, int], ...] = ()
    """(model, or empty for all, most tokens of reasoning in an answer to a request that does not
    say). In the environment N or MODEL=N, separated by commas."""
    repeated_tool_calls: bool = False
    """Whether a call is told again that an answer makes twice."""
    tool_stream: bool = True
    """Whether the arguments of a call are told as they come, where its format lets them."""
    min_residency_s: float = 30.0
    """A model that is loaded stays so long before it gives way to another one."""
    max_swap_wait_s: float = 120.0
    """A request whose model has to wait for another one's to leave goes first after so long."""
    keep_alives: tuple[tuple[str, float | None], ...] = ()
    """(model, or empty for all, seconds that it may be idle or None for ever); default
    `KEEP_ALIVE_S`. A router's word goes before. In the environment TIME or MODEL=TIME, separated
    by commas."""
    pins: tuple[str, ...] = ()
    """Models that are loaded at the start and never unloaded; separated by commas."""
    stall_timeout_s: float = 120.0
    """An engine that has requests and makes no progress for so long is killed."""
    spare_engine: bool = True
    """Whether an engine process without a model, some 0.1 GB, is kept for the next load."""
    stay_awake: StayAwake = StayAwake.BUSY
    """When this Mac is kept from sleeping."""
    wired: Wired = "off"
    """What of an engine's memory macOS is asked to keep wired for the GPU."""
    reasoning_field: Literal["reasoning_content", "reasoning", "both"] = "reasoning_content"
    """Where a chat's answer has its reasoning: that, `reasoning`, or `both`."""
    responses_bytes: int | None = None
    """Most that stored responses may take on disk."""
    warm: tuple[tuple[str, Path], ...] = ()
    """(model, file of prompts to prefill at each load of it); in the environment MODEL=FILE,
    separated as `PATH` is."""

    @property
    def models_folder(self) -> Path:
        return self.home / "models"

    @property
    def token_file(self) -> Path:
        return self.home / "token"

    @property
    def kv_folder(self) -> Path:
        return self.home / "kv"

    @property
    def responses_folder(self) -> Path:
        return self.home / "responses"


_BY_MODEL = {
    "--tool-parser": "tool_parsers",
    "--reasoning-parser": "reasoning_parsers",
    "--default-chat-template-kwargs": "default_chat_template_kwargs",
    "--max-thinking-tokens": "max_thinking_tokens",
    "--keep-alive": "keep_alives",
}


def named_models(settings: Settings) -> dict[str, frozenset[str]]:
    """The models that settings are for, by option; without those for all models."""
    named = {
        option: frozenset(model for model, _ in getattr(settings, name) if model)
        for option, name in _BY_MODEL.items()
    }
    return {**named, "--pin": frozenset(settings.pins)}


def default_home(environ: Mapping[str, str] | None = None) -> Path:
    """`$MLX_FLEET_HOME/node`, or `~/.mlx-fleet/node`."""
    return own_machine.default_home("node", os.environ if environ is None else environ)


REASONING_FIELDS = ("reasoning_content", "reasoning", "both")
_NUMBERS = (
    *("port", "max_rows", "prefill_chunk_tokens", "decode_stall_target_ms"),
    *("kv_cache_bits", "kv_live_bits"),
)
_SIZES = (
    *("memory_limit_bytes", "kv_live_bytes", "kv_cache_bytes", "kv_snapshot_bytes"),
    *("kv_disk_bytes", "kv_disk_bytes_per_day", "responses_bytes"),
)
_FLAGS = (
    *("allow_plain_http", "exit_on_stdin_eof", "repeated_tool_calls", "spare_engine"),
    "tool_stream",
)
_DURATIONS = ("min_residency_s", "max_swap_wait_s", "stall_timeout_s")
KEEP_ALIVE_S = 3600.0
"""How long a model may be idle where nothing else is said."""
AUTO_BYTES = -1
"""`auto` where it is given, so that an option's wins over a variable's size."""
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
    """The same for a part of the disk; `off` is 0, and `auto` `AUTO_BYTES`. Raises `StartError`."""
    words = {"off": 0, "auto": AUTO_BYTES}
    word = text.strip().lower()
    if word in words:
        return words[word]
    try:
        return read_bytes(text)
    except StartError as exc:
        raise StartError(f"{exc.message.removesuffix('.')}, or give off or auto.") from None


def _size(key: str, text: str) -> int:
    try:
        return read_disk_bytes(text) if key.endswith("_KV_DISK_BYTES") else read_bytes(text)
    except StartError as exc:
        raise StartError(f"{key}: {exc.message}") from None


def _number(key: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise StartError(f"{key} must be a whole number, not {text!r}.") from None
    if value < 0:
        raise StartError(f"{key} must not be negative, but is {value}.")
    return value


def _names(_key: str, text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _path(key: str, text: str) -> Path:
    # An empty path is the current folder to Python, which nobody means by it.
    if not text:
        raise StartError(f"{key} must be a path, not {text!r}.")
    return Path(text).expanduser()


def read_flag(key: str, text: str) -> bool:
    """Raises `StartError`."""
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
    """The same for several with commas between. Raises `StartError`."""
    pairs = []
    at, decoder = 0, json.JSONDecoder(parse_constant=_refuse_constant)
    while match := _OBJECT_BEGIN.match(text, at):
        try:
            value, at = decoder.raw_decode(text, match.end() - 1)
            # Half of a surrogate pair is in no prompt, and no number is infinite.
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
    """The model, empty for all, and how long it may be idle: None for `forever` or 0. Raises
    `StartError`."""
    model, found, told = (piece.strip() for piece in text.rpartition("="))
    if found and not model:
        raise StartError(f"keep-alive must be TIME or MODEL=TIME, not {text!r}.")
    seconds = 0.0 if told == "forever" else read_duration_s(told)
    return model, seconds or None


def read_stay_awake(text: str) -> StayAwake:
    """Raises `StartError`."""
    try:
        return StayAwake(text)
    except ValueError:
        raise StartError(f"it must be one of {STAY_AWAKE}, not {text!r}.") from None


def _duration(key: str, text: str) -> float:
    seconds: float = _keyed(key, read_duration_s, text)
    return seconds


def _parsers(key: str, text: str) -> tuple[tuple[str, str], ...]:
    return tuple(read_parser(each) for each in text.split(",") if each.strip())


def _keyed(key: str, read: Callable[[str], Any], text: str) -> Any:
    """What `read` makes of the text; its `StartError` names the key."""
    try:
        return read(text)
    except StartError as exc:
        raise StartError(f"{key}: {exc.message}") from None


_READERS: dict[str, Callable[[str, str], object]] = {
    "home": _path,
    "host": lambda _key, text: text,
    "engine": lambda _key, text: text,
    **dict.fromkeys(_NUMBERS, _number),
    **dict.fromkeys(_SIZES, _size),
    "tool_parsers": _parsers,
    "reasoning_parsers": _parsers,
    "default_chat_template_kwargs": lambda key, text: _keyed(key, read_all_kwargs, text),
    "max_thinking_tokens": lambda key, text: tuple(
        _keyed(key, read_thinking_tokens, each) for each in text.split(",") if each.strip()
    ),
    **dict.fromkeys(_DURATIONS, _duration),
    "keep_alives": lambda key, text: tuple(
        _keyed(key, read_keep_alive, each) for each in text.split(",") if each.strip()
    ),
    "pins": _names,
    "stay_awake": lambda key, text: _keyed(key, read_stay_awake, text),
    "wired": lambda _key, text: text,
    "reasoning_field": lambda _key, text: text,
    **dict.fromkeys(_FLAGS, read_flag),
    "script": _path,
    "models": lambda _key, text: tuple(
        Path(path).expanduser() for path in text.split(os.pathsep) if path
    ),
    "warm": lambda _key, text: tuple(
        read_warm(pair) for pair in text.split(os.pathsep) if pair.strip()
    ),
    "served_model_names": _names,
}


def environment_of_others() -> dict[str, str]:
    """This process's environment without the variables that are ours."""
    return {name: text for name, text in os.environ.items() if not name.startswith(PREFIX)}


def read_environment(environ: Mapping[str, str] | None = None) -> dict[str, object]:
    """The settings that environment variables give. Raises `StartError` naming key and value."""
    values = os.environ if environ is None else environ
    prefix = "MLX_FLEET_NODE_"
    known = {f"{prefix}{name.upper()}" for name in (*_READERS, "token")}
    # What the router takes, it checks itself.
    ours = (name for name in values if not name.startswith("MLX_FLEET_ROUTER_"))
    if sentence := misspelt(ours, known):
        raise StartError(sentence)
    found: dict[str, object] = {}
    for key, text in values.items():
        if not key.startswith(prefix):
            continue
        name = key[len(prefix) :].lower()
        if name == "token":
            continue  # what `router add-node` sends, not a setting of the agent
        if name not in _READERS:
            raise StartError(f"{key} is not a setting of node-agent.")
        found[name] = _READERS[name](key, text)
    return found
