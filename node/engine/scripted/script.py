"""What a scripted engine is told to do: a file of JSON."""

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
    """What the KV of a token is said to take; the lease bounds the cache by it."""


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a scripted engine does. All waits are in seconds; `None` switches a fault off."""

    models: tuple[ScriptedModel, ...] = (ScriptedModel(),)
    text: str | None = None
    """Said word by word to every request, which then ends. None: short words, one a token, which
    depend on the prompt and the position, so that two requests can be told apart."""
    outputs: tuple[str, ...] = ()
    """Outputs as models write them, with their markup: the first request's, the second's and so
    on, and again from the first; some characters a token. Each choice of a request takes one. In
    place of `text`."""
    tokens: int | None = None
    """Length of an answer to a request without max_tokens; default: the text, or 32."""
    max_rows: int | None = None
    """In place of the agent's setting."""
    accept_delay_s: float = 0.0
    """How long a request waits in the queue even when there is room."""
    first_token_delay_s: float = 0.0
    prefill_s_per_token: float = 0.0
    """For each prompt token that the cache does not hold."""
    progress_interval_s: float = 0.0
    """How often the progress of a prefill is told; 0: never."""
    token_interval_s: float = 0.0
    """0: as fast as the engine steps."""
    load_delay_s: float = 0.0
    load_failure: str | None = None
    """The sentence of a load that fails."""
    load_out_of_memory: bool = False
    """The load raises MemoryError."""
    unload_delay_s: float = 0.0
    """How long the engine takes to free its memory; the agent kills one that takes too long."""
    unload_failure: str | None = None
    """The sentence of an unload that raises; the process ends with status 1."""
    wedge: bool = False
    """Requests are accepted and never get a token; the process stays healthy."""
    endless_step_s: float | None = None
    """The first step with a request is told of as one that should take so long, and never ends."""
    stall_after_tokens: int | None = None
    """A row stops for good after so many tokens and can only be cancelled."""
    crash_after_tokens: int | None = None
    """The engine process dies as from kill -9 when a row has so many tokens."""
    step_failure_after_tokens: int | None = None
    """`step` raises when a row has so many tokens."""
    step_failure_text: str = "The script asked for a step that fails."
    """What it raises with, and `failing_command` too."""
    reset_failure: bool = False
    """What the engine does after a step that failed raises, too."""
    failing_command: Literal["submit", "cancel", "set_lease", "clear_cache"] | None = None
    """That command raises."""
    cache: ScriptedCache = ScriptedCache()


def read_script(path: Path | None) -> Script:
    """The script in a JSON file, the default script for None. Raises `LoadError`."""
    if path is None:
        return Script()
    try:
        return parse_script(path.read_bytes())
    except OSError as error:
        raise LoadError(f"The script {path} cannot be read: {error.strerror}.") from None


def parse_script(text: str | bytes) -> Script:
    """The script of a JSON text, the default script for an empty one. Raises `LoadError` naming
    the field at fault."""
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
    """The script as `EngineSpec.script_json` carries it."""
    return msgspec.json.encode(script).decode()
