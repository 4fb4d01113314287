"""What crosses between the agent and an engine process, frozen and in one place.

Agent to engine: `Submit`, `Cancel`, `Shutdown`. Engine to agent: `Loading`, `Loaded` or
`LoadFailed` once, then `Accepted` or `Refused` for each `Submit`, `CancelMarked` at once for each
`Cancel`, and one `Frame` per engine step for all rows.
"""

from enum import StrEnum

import msgspec

from node.protocol.messages import FinishReason


class SamplingParams(msgspec.Struct, frozen=True):
    """How one row picks its tokens. Every value is already validated by the dialect."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit; -1 and values beyond the vocabulary are brought to 0."""
    min_p: float = 0.0
    seed: int | None = None
    """None draws from the operating system's entropy."""
    repetition_penalty: float = 1.0
    """Over prompt and output: positive logits divided, negative ones multiplied."""
    presence_penalty: float = 0.0
    """Subtracted once from each token that the output holds already."""
    frequency_penalty: float = 0.0
    """Subtracted for each time that the output holds the token."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, addend)."""


class GenerateRequest(msgspec.Struct, frozen=True):
    """One row: what to continue, how to sample, when to end."""

    uid: str
    tokens: tuple[int, ...]
    max_tokens: int | None
    """None: as many as the context has room for."""
    sampling: SamplingParams = SamplingParams()
    stops: tuple[str, ...] = ()
    """Stop strings, matched on the text and never part of it."""


class PartKind(StrEnum):
    CONTENT = "content"


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A piece of output text; never empty."""

    kind: PartKind
    text: str


class RowUsage(msgspec.Struct, frozen=True, array_like=True):
    """The accounts of a finished row, from the engine's own clock."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """What one engine step brought for one row. The last one of a row has `finish` and `usage`."""

    uid: str
    parts: tuple[Part, ...]
    token_count: int
    """Tokens of the output so far."""
    finish: FinishReason | None = None
    usage: RowUsage | None = None
    error: str | None = None
    """A sentence, where `finish` is error."""


# --- agent to engine -------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    request: GenerateRequest


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    uid: str


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    pass


Command = Submit | Cancel | Shutdown


# --- engine to agent -------------------------------------------------------------------------


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """Progress of a load, 0 to 1."""

    fraction: float


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The engine serves from now on."""

    weight_bytes: int
    context_tokens: int
    max_rows: int
    vocab_size: int


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    reason: str
    """A sentence."""


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    uid: str
    prompt_tokens: int
    cached_tokens: int


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The engine will not run the request; `param` names the field at fault if there is one."""

    uid: str
    reason: str
    param: str | None = None


class Marked(msgspec.Struct, frozen=True, tag="marked"):
    """A `Cancel` has reached the engine process; the row leaves at its next step."""

    uid: str
    monotonic_s: float


class Frame(msgspec.Struct, frozen=True, tag="frame"):
    """One engine step."""

    deltas: tuple[Delta, ...]


Report = Loading | Loaded | LoadFailed | Accepted | Refused | Marked | Frame


class EngineSpec(msgspec.Struct, frozen=True):
    """What an engine process is started with."""

    engine: str
    """`text` or `scripted`."""
    model: str
    folder: str
    """Real path of the model folder; empty for the scripted engine."""
    max_rows: int
    lease_bytes: int
    """Memory that the agent grants: weights and live KV."""
    kv_bytes_per_token: int = 0
    """0: unknown, so that only the contexts bound the KV."""
    script_json: str = ""
    """The scripted engine's script, JSON."""
