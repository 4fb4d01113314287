"""`node-agent ps`: the models that the running agent has in memory."""

import msgspec
from rich.table import Column, Table

from node.commands.agent_client import ServerAddress, ask
from node.protocol.messages import IN_MEMORY, PATH_STATUS, ModelState, ModelStatus, NodeStatus
from serving.terminal.output import put, put_json
from serving.terminal.screen import Screen
from serving.units import size, span


class ModelInMemory(msgspec.Struct, frozen=True):
    """A model in memory, as `--json` prints it."""

    name: str
    state: str
    progress: float | None
    """Fraction of a load that is done; None in other states."""
    memory_bytes: int
    """Weights, live KV and the process; 0 if unknown."""
    stored_kv_bytes: int
    """Its prefix cache in memory."""
    requests: int
    """Requests that it serves, or that wait for it."""
    idle_s: float | None
    """None while it has requests."""
    unload_in_s: float | None
    """Seconds until it is unloaded if no request comes; None: never, or not while it has
    requests."""
    keep_alive_s: float | None
    """Idle seconds until it is unloaded; None: never."""
    pinned: bool


def show_loaded(server: ServerAddress, *, as_json: bool) -> None:
    """Prints the models in memory. Raises `CommandFailed`."""
    status = agent_status(server)
    loaded = [loaded_model(each) for each in status.models if each.state in IN_MEMORY]
    if as_json:
        put_json(msgspec.json.encode(loaded).decode())
        return
    if loaded:
        Screen().print(_table(loaded))
        used, whole = size(status.memory_leased_bytes), size(status.memory_budget_bytes)
        put(f"{used} of {whole} for models are in use, without stored KV.")
    else:
        put(
            "No model is loaded; the first request to one loads it, as `node-agent run MODEL` does."
        )
    for model in status.models:
        if model.state is ModelState.FAILED:
            put(f"{model.name} could not be loaded: {model.reason}")
    if status.pressure is not None:
        put(f"Memory is short on this machine: {status.pressure.effect}.")


def agent_status(server: ServerAddress) -> NodeStatus:
    """The state of the running agent. Raises `CommandFailed`."""
    return ask(server, PATH_STATUS, NodeStatus, method="GET")


def loaded_model(model: ModelStatus) -> ModelInMemory:
    """The part of a model's status that people want to know."""
    keep_alive_s = None if model.pinned else model.keep_alive_s
    unload_in_s = None
    if model.idle_s is not None and keep_alive_s is not None:
        unload_in_s = max(0.0, keep_alive_s - model.idle_s)
    return ModelInMemory(
        name=model.name,
        state=str(model.state),
        progress=model.progress,
        memory_bytes=model.memory_bytes or model.weight_bytes,
        stored_kv_bytes=0 if model.cache is None else model.cache.memory_used_bytes,
        requests=max(model.leases, model.active_requests),
        idle_s=model.idle_s,
        unload_in_s=unload_in_s,
        keep_alive_s=keep_alive_s,
        pinned=model.pinned,
    )


def _table(loaded: list[ModelInMemory]) -> Table:
    table = Table(
        Column("model", overflow="fold"),
        "state",
        Column("memory", justify="right", no_wrap=True),
        Column("stored KV", justify="right", no_wrap=True),
        Column("requests", justify="right"),
        "unloaded",
        box=None,
        pad_edge=False,
    )
    for each in loaded:
        done = "" if each.progress is None else f" {each.progress:.0%}"
        table.add_row(
            each.name,
            each.state + done,
            size(each.memory_bytes),
            size(each.stored_kv_bytes),
            str(each.requests),
            _unload_text(each),
        )
    return table


def _unload_text(model: ModelInMemory) -> str:
    if model.pinned:
        return "never (pinned)"
    if model.keep_alive_s is None:
        return "never"
    if model.unload_in_s is None:
        return f"{span(model.keep_alive_s)} after use"
    return f"in {span(model.unload_in_s)}"
