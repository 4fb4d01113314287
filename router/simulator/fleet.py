"""What a simulated fleet is made of, and how a TOML file says so."""

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
    """How many such nodes there are."""
    name: str = "mac"
    chip: str = ""
    """Its marketing name, from which the router guesses rates before it has seen any."""
    prefill_tokens_per_s: Rate = 600.0
    """At the beginning of a prompt."""
    prefill_half_depth_tokens: Rate = 64_000.0
    """Depth in a prompt at which prefill is half as fast."""
    decode_tokens_per_s: Rate = 40.0
    """Of one row alone."""
    decode_slowdown: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 0.15
    """How much longer a token takes for each further row."""
    max_rows: Number = 16
    """Requests that are prefilled or decoded at once."""
    cache_tokens: Count = 60_000
    """What the prefix cache of one model holds in memory."""
    cache_slots: Count = 0
    """How many different prompts it holds at most; 0: as many as fit."""
    snapshot_only: bool = False
    """Prefixes can be used again only at the ends of earlier prompts and answers."""
    disk_tokens: Count = 0
    """What it holds on disk of that which fell out of memory; 0: nothing."""
    restore_tokens_per_s: Rate = 10_000.0
    """From disk."""
    load_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 10.0
    """Of a model that is not resident."""
    resident_models: Number = 1
    """How many fit in memory at once."""
    min_residency_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 30.0
    """A model that is loaded stays so long before it gives way to another one."""
    max_swap_wait_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 120.0
    """A request whose model has to wait for another one's to leave goes first after so long."""
    disk_models: Annotated[int, msgspec.Meta(ge=0, le=10**6)] = 0
    """How many it has on its disk at the start; 0: all."""
    model_bytes: Bytes = 4_000_000_000
    """Weights of each."""
    lan_bytes_per_s: Annotated[float, msgspec.Meta(ge=1, le=1e12)] = 110e6
    """Of the copy of a model that another node has on its disk, before its first load here."""

    def prefill_s(self, from_tokens: int, to_tokens: int) -> float:
        """The time for the tokens of a prompt between two depths."""
        flat = to_tokens - from_tokens
        deep = (to_tokens * to_tokens - from_tokens * from_tokens) / 2
        return (flat + deep / self.prefill_half_depth_tokens) / self.prefill_tokens_per_s

    def row_tokens_per_s(self, rows: int) -> float:
        return self.decode_tokens_per_s / (1 + self.decode_slowdown * (rows - 1))


def models_on_disk(number: int, spec: NodeSpec, models: Sequence[str]) -> tuple[str, ...]:
    """What the node of that number has at the start, the one that it loads first before others."""
    turned = [models[(number + place) % len(models)] for place in range(len(models))]
    return tuple(turned[: spec.disk_models or len(turned)])


def check_models(specs: Sequence[NodeSpec], models: Sequence[str]) -> None:
    """Raises `FleetError` where a model is on no disk: there is nothing to copy it from."""
    held = {each for place in enumerate(specs) for each in models_on_disk(*place, models)}
    if missing := [each for each in models if each not in held]:
        raise FleetError(
            f"With so few `disk_models` no node has the {len(missing)} last of the trace's "
            f"{len(models)} models."
        )


class _FleetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: Annotated[list[NodeSpec], msgspec.Meta(min_length=1)]


def read_fleet(text: str) -> tuple[NodeSpec, ...]:
    """One spec for each node. Raises `FleetError`."""
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
    """A spec of its own for each node, with a name of its own."""
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
