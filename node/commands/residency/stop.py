"""`node-agent stop`: unloads a model of the running agent."""

from collections.abc import Sequence
from time import sleep

from node.commands.agent_client import CommandFailed, CommandRefused, ServerAddress, ask
from node.commands.residency.model_name import meant_name
from node.commands.residency.ps import agent_status
from node.errors import ModelBusy
from node.protocol.lifecycle import PATH_UNLOAD, UnloadCommand
from node.protocol.messages import IN_MEMORY, ModelStatus, NodeStatus
from node.protocol.models import near_names
from serving.terminal.bars import progress
from serving.terminal.output import put
from serving.units import size

POLL_S = 0.25


def stop_model(server: ServerAddress, name: str, *, wait: bool) -> None:
    """Unloads the model; with `wait` once its requests have ended, those that come meanwhile
    included. Raises `CommandFailed` if it is not loaded, and without `wait` if it is in use."""
    model = loaded_named(name, agent_status(server).models)
    with progress(f"unloading {model.name}") as show:
        while True:
            try:
                ask(server, PATH_UNLOAD, NodeStatus, UnloadCommand(model.name))
                break
            except CommandRefused as error:
                if error.reason != ModelBusy.code:
                    raise
                if not wait:
                    raise CommandFailed(
                        f"{error.message} Try again later, or wait until it is unused with --wait."
                    ) from None
            show(f"waiting for the requests of {model.name}")
            sleep(POLL_S)
    put(f"{model.name} is unloaded; {size(model.memory_bytes or model.weight_bytes)} are free.")
    if model.pinned:
        put(
            "It is pinned and will be loaded again: drop --pin, or run `router unpin`, to end that."
        )


def loaded_named(name: str, models: Sequence[ModelStatus]) -> ModelStatus:
    """The loaded model that the name means. Raises `CommandFailed`."""
    loaded = [each for each in models if each.state in IN_MEMORY]
    found = meant_name(name, [each.name for each in loaded])
    if found is not None:
        return next(each for each in loaded if each.name == found)
    if meant_name(name, [each.name for each in models]) is not None:
        raise CommandFailed(f"{name} is not loaded; `node-agent ps` shows the models that are.")
    near = near_names(name, [each.name for each in loaded])
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise CommandFailed(f"There is no model {name} on this node.{hint}")
