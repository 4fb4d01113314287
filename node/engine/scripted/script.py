"""The script of a scripted engine: a JSON file."""

from pathlib import Path
from typing import Literal

import msgspec

from node.engine.base import LoadError
from node.engine.scripted.cache import ScriptedCache


class ScriptedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model that the scripted node claims to have on disk."""

    name: str = "scripted"
    weight_bytes: int = 1024**3
    context_tokens: int = 32_768
    kv_bytes_per_token: int = 0
    """Assumed size of a token's KV; the lease limits the cache by it."""


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Behavior of a scripted engine. All waits are in seconds; `None` switches a fault off."""

    models: tuple[ScriptedModel, ...] = (ScriptedModel(),)
    text: str | None = None
    """Output for every request, word by word. None means short words, one per token, which depend
    on the prompt and the position, so that the outputs of two requests differ."""
    outputs: tuple[str, ...] = ()
    """Outputs as models write them, with their markup, a few characters per token: one for each
    choice of a request, in order, and again from the first. Replaces `text`."""
    tokens: int | None = None
    """Length of an output without max_tokens; default: the text, or 32."""
    max_rows: int | None = None
    """Replaces the agent's setting."""
    accept_delay_s: float = 0.0
    """Time that a request waits in the queue even if there is room."""
    first_token_delay_s: float = 0.0
    prefill_s_per_token: float = 0.0
    """For each prompt token that is not cached."""
    progress_interval_s: float = 0.0
    """Interval of prefill progress reports; 0 means none."""
    token_interval_s: float = 0.0
    """0 means as fast as the engine steps."""
    load_delay_s: float = 0.0
    load_failure: str | None = None
    """Message of a load that fails."""
    load_out_of_memory: bool = False
    """The load raises MemoryError."""
    unload_delay_s: float = 0.0
    """Time that the engine takes to free its memory; the agent kills one that takes too long."""
    unload_failure: str | None = None
    """Message of an unload that raises; the process ends with status 1."""
    wedge: bool = False
    """Requests are accepted and never get a token; the process stays healthy."""
    endless_step_s: float | None = None
    """The first step with a request is announced with this expected time, and never ends."""
    stall_after_tokens: int | None = None
    """A row stalls for good after this many tokens and can only be cancelled."""
    crash_after_tokens: int | None = None
    """The engine process dies as from kill -9 when a row has this many tokens."""
    step_failure_after_tokens: int | None = None
    """`step` raises when a row has this many tokens."""
    step_failure_text: str = "The script asked for a step that fails."
    """Message of that error, and of `failing_command`."""
    reset_failure: bool = False
    """The reset after a failed step raises as well."""
    failing_command: Literal["submit", "cancel", "set_lease", "clear_cache"] | None = None
    """Name of a command that raises."""
    cache: ScriptedCache = ScriptedCache()


def read_script(path: Path | None) -> Script:
    """Returns the script of a JSON file, the default script for None. Raises `LoadError`."""
    if path is None:
        return Script()
    try:
        return parse_script(path.read_bytes())
    except OSError as error:
        raise LoadError(f"The script {path} cannot be read: {error.strerror}.") from None


def parse_script(text: str | bytes) -> Script:
    """Returns the script of a JSON text, the default script for an empty one. Raises `LoadError`
    that names the field at fault."""
    if not text:
        return Script()
    try:
        script = msgspec.json.decode(text, type=Script)
    except msgspec.MsgspecError as error:
        raise LoadError(f"The script is not valid: {error}.") from None
    names = [model.name for model in script.models]
    if len(set(names)) != len(names) or not names:
        raise LoadError("The script must name at least one model, and each name only once.")
    return script


def encode_script(script: Script) -> str:
    """Returns the script as `EngineSpec.script_json`."""
    return msgspec.json.encode(script).decode()
