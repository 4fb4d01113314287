"""`node-agent run`: a conversation with a model of this machine, which is pulled if necessary."""

import sys
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

import typer

from node.app import build_store
from node.commands.agent_client import CommandFailed, ServerAddress
from node.commands.configuration import need_extra
from node.commands.hub.fit import fits
from node.commands.models import advice_on
from node.commands.pull import pull_model
from node.commands.residency.model_name import meant_name
from node.commands.residency.ps import agent_status
from node.commands.run.agent_chat import AgentChat, load, servable
from node.commands.run.own_agent import own_agent
from node.hardware import read_machine, this_kernel
from node.models.manifest import is_model_file
from node.models.model_files import SUFFIX
from node.models.pull import HubPlan, check_command, open_hub
from node.models.store import ModelStore
from node.protocol.lifecycle import PullCommand
from node.protocol.models import near_names
from node.settings import Settings
from serving.chat.loop import ChatLoop, print_response
from serving.chat.stream import Message, Piece, ResponseFailed
from serving.terminal.bars import progress
from serving.units import gib


@dataclass(frozen=True, slots=True)
class Conversation:
    """The arguments of the command."""

    model: str
    text: str = ""
    """The only prompt; empty: that on standard input, or a conversation in a terminal."""
    system: str | None = None
    yes: bool = False
    """Pull without a question."""


def run(settings: Settings, wanted: Conversation) -> None:
    """Talks to a model of this machine's agent, which is started if none runs on this home.
    Raises `CommandFailed`, `DownloadError` and `StartError`."""
    prompt = _prompt(wanted)
    if settings.engine == "text":
        need_extra()
    model = _pulled(settings, wanted)
    with own_agent(settings) as server:
        _talk(server, model, prompt, wanted.system)


def run_at(server: ServerAddress, wanted: Conversation) -> None:
    """The same with an agent at another address, which is neither started nor pulls."""
    prompt = _prompt(wanted)
    names = servable(agent_status(server))
    model = meant_name(wanted.model, names)
    if model is None:
        hint = _near(wanted.model, names) or " Pull it there first."
        raise CommandFailed(f"The agent at {server.url} has no model {wanted.model}.{hint}")
    _talk(server, model, prompt, wanted.system)


def _prompt(wanted: Conversation) -> str | None:
    """The only prompt; None for a conversation."""
    if wanted.text:
        return wanted.text
    if sys.stdin.isatty():
        return None
    prompt = sys.stdin.read().strip()
    if not prompt:
        raise CommandFailed("There is no prompt: give one as an argument or on standard input.")
    return prompt


def _talk(server: ServerAddress, model: str, prompt: str | None, system: str | None) -> None:
    load(server, model)
    chat = AgentChat(server)
    if prompt is None:
        ChatLoop(chat, model, system).run()
        return
    history: list[Message] = [{"role": "system", "content": system}] if system else []
    response = chat.stream(model, [*history, {"role": "user", "content": prompt}])
    try:
        print_response(response if sys.stdout.isatty() else _text_only(response), model)
    except ResponseFailed as error:
        raise CommandFailed(str(error)) from error


def _text_only(response: Generator[Piece, None, None]) -> Generator[Piece, None, None]:
    """The response without its summary, which is for people."""
    with closing(response):
        yield from (piece for piece in response if piece.kind != "summary")


# --- a model that is not here ---


def _pulled(settings: Settings, wanted: Conversation) -> str:
    """The name of the model on this node, pulled first if it is not here."""
    store = build_store(settings)
    here = store.contents()
    names = [entry.name for entry in here.models]
    model = _here(wanted.model, names)
    if model is not None:
        return model
    broken = [each for each in here.broken if each.name == wanted.model]
    if broken:
        reason = f"{broken[0].name} cannot be served: {broken[0].reason}"
        raise CommandFailed(f"{reason} {advice_on(broken)}")
    if "/" not in wanted.model:
        hint = _near(wanted.model, names)
        raise CommandFailed(
            f"There is no model {wanted.model} on this node.{hint} `node-agent search "
            f"{wanted.model}` finds models at the hub."
        )
    command = PullCommand(wanted.model, wanted.model)
    check_command(command, store)
    _confirm(settings, store, command, yes=wanted.yes)
    pull_model(settings.home, command, open_hub)
    return wanted.model


def _here(name: str, names: list[str]) -> str | None:
    """The model of this node that the name means. One with its owner is never short for another:
    the hub may have a model of just that name."""
    if "/" not in name:
        return meant_name(name, names)
    return next((each for each in names if each.lower() == name.lower()), None)


def _confirm(settings: Settings, store: ModelStore, command: PullCommand, *, yes: bool) -> None:
    """Asks whether to pull the model. Raises `CommandFailed` if it is too large, or if there is
    nobody to ask, and `typer.Abort` after a no."""
    with progress(f"looking for {command.repo_id} at the hub"):
        plan = open_hub().plan(command)
    size = f"{_bytes(plan, '') / 1e9:.1f} GB"
    limit_bytes = settings.memory_limit_bytes or read_machine(this_kernel()).default_limit_bytes
    if fits(_bytes(plan, SUFFIX), limit_bytes) == "no":
        raise CommandFailed(
            f"{command.repo_id} has {size}, which is too large for the {gib(limit_bytes)} that "
            "models may take on this machine; search for one with fewer bits or parameters."
        )
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(
            f"{command.repo_id} is not on this node; --yes pulls it ({size}), and so does "
            f"`node-agent pull {command.repo_id}`."
        )
    begun = (
        " The pull that was interrupted continues." if store.is_unfinished(command.model) else ""
    )
    question = f"{command.repo_id} is not on this node.{begun} Pull {size} from the hub?"
    typer.confirm(question, default=True, abort=True, err=True)


def _bytes(plan: HubPlan, suffix: str) -> int:
    """Size of the model's files with this suffix."""
    files = (each for each in plan.files if is_model_file(each.path))
    return sum(each.size_bytes for each in files if each.path.endswith(suffix))


def _near(name: str, names: list[str]) -> str:
    near = near_names(name, names)
    return f" Did you mean {' or '.join(near)}?" if near else ""
