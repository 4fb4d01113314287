"""The specification of a simulated fleet, and its TOML file."""

import tomllib
from collections.abc import Sequence
from typing import Annotated

import msgspec

MAX_NODES = 256
Rate = Annotated[float, msgspec.Meta(ge=0.01, le=1e9)]
Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
Number = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
Bytes = Annotated[int, msgspec.Meta(ge=1, le=10**15)]


class FleetError(ValueError):
    """A fleet file cannot be read. The message names the key."""


class NodeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of node. The figures are those of a Mac and the model that it serves."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_NODES)] = 1
    """Number of such nodes."""
    name: str = "mac"
    chip: str = ""
    """Marketing name of the chip, from which the router guesses rates before it has seen any."""
    prefill_tokens_per_s: Rate = 600.0
    """Speed of prefill at the beginning of a prompt."""
    prefill_half_depth_tokens: Rate = 64_000.0
    """Depth in a prompt at which prefill is half as fast."""
    decode_tokens_per_s: Rate = 40.0
    """Speed of one row alone."""
    decode_slowdown: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 0.15
    """Share of a token's time that each further row adds."""
    max_rows: Number = 16
    """Most requests that are prefilled or decoded at once."""
    cache_tokens: Count = 60_000
    """Tokens that the prefix cache of one model keeps in memory."""
    cache_slots: Count = 0
    """Most different prompts that it keeps; 0 for as many as fit."""
    snapshot_only: bool = False
    """True if prefixes can be reused only at the ends of earlier prompts and responses."""
    disk_tokens: Count = 0
    """Evicted tokens that it keeps on disk; 0 without a disk tier."""
    restore_tokens_per_s: Rate = 10_000.0
    """Speed of reading from disk."""
    load_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 10.0
    """Seconds to load a model."""
    resident_models: Number = 1
    """Number of models that fit in memory at once."""
    min_residency_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 30.0
    """Minimum residency of a loaded model before another one may take its memory."""
    max_swap_wait_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 120.0
    """Seconds after which a request whose model waits for memory goes before others."""
    disk_models: Annotated[int, msgspec.Meta(ge=0, le=10**6)] = 0
    """Number of models on its disk at the start; 0 for all."""
    model_bytes: Bytes = 4_000_000_000
    """Weights of each model."""
    lan_bytes_per_s: Annotated[float, msgspec.Meta(ge=1, le=1e12)] = 110e6
    """Speed of copying a model from another node's disk, before its first load here."""

    def prefill_s(self, from_tokens: int, to_tokens: int) -> float:
        """Seconds to prefill a prompt's tokens between two depths."""
        flat = to_tokens - from_tokens
        deep = (to_tokens * to_tokens - from_tokens * from_tokens) / 2
        return (flat + deep / self.prefill_half_depth_tokens) / self.prefill_tokens_per_s

    def row_tokens_per_s(self, rows: int) -> float:
        return self.decode_tokens_per_s / (1 + self.decode_slowdown * (rows - 1))


def models_on_disk(number: int, spec: NodeSpec, models: Sequence[str]) -> tuple[str, ...]:
    """The models on the disk of node `number` at the start, in the order in which it loads them."""
    turned = [models[(number + place) % len(models)] for place in range(len(models))]
    return tuple(turned[: spec.disk_models or len(turned)])


def check_models(specs: Sequence[NodeSpec], models: Sequence[str]) -> None:
    """Raises `FleetError` if a model is on no disk, since there is nothing to copy it from."""
    on_disk = {each for place in enumerate(specs) for each in models_on_disk(*place, models)}
    if missing := [each for each in models if each not in on_disk]:
        raise FleetError(
            f"With so few `disk_models` no node has the {len(missing)} last of the trace's "
            f"{len(models)} models."
        )


class _FleetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: Annotated[list[NodeSpec], msgspec.Meta(min_length=1)]


def read_fleet(text: str) -> tuple[NodeSpec, ...]:
    """The specs of a file, one for each node. Raises `FleetError`."""
    try:
        found = msgspec.convert(tomllib.loads(text), _FleetFile)
    except tomllib.TOMLDecodeError as error:
        raise FleetError(f"It is not TOML: {error}.") from error
    except msgspec.ValidationError as error:
        raise FleetError(f"{str(error).replace('$.', '')}.") from error
    nodes = sum(kind.count for kind in found.node)
    if nodes > MAX_NODES:
        raise FleetError(f"It has {nodes} nodes; a simulated fleet has {MAX_NODES} at most.")
    return spread(found.node)


def spread(kinds: list[NodeSpec]) -> tuple[NodeSpec, ...]:
    """One spec for each node, with a name of its own."""
    specs = [kind for kind in kinds for _ in range(kind.count)]
    names = [spec.name for spec in specs]
    return tuple(
        msgspec.structs.replace(
            spec,
            count=1,
            name=f"{spec.name}-{names[: index + 1].count(spec.name)}"
            if names.count(spec.name) > 1
            else spec.name,
        )
        for index, spec in enumerate(specs)
    )


def equal_fleet(nodes: int) -> tuple[NodeSpec, ...]:
    return spread([NodeSpec(count=nodes, chip="Apple M4 Pro")])
