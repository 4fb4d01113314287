"""`/api/*`: the endpoints of clients that speak only Ollama's API."""

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from node.agent.agent import Agent
from node.dialects.base import DialectRequest, renamed
from node.dialects.ollama.chat import OllamaRequest, read_ollama_chat
from node.dialects.ollama.generate import read_ollama_generate
from node.dialects.ollama.models import read_named
from node.dialects.ollama.residency import ResidencyRequest
from node.errors import BadRequest, ModelBusy, NotHere, UnknownModel, UnknownPath
from node.prompt.late_chain import LateChain
from node.protocol.headers import HEADER_REQUESTED_MODEL
from node.protocol.models import ModelCard
from node.protocol.ollama.json_lines import residency_body
from node.protocol.ollama.left_out import pulled_line, why_left_out
from node.protocol.ollama.models import (
    OllamaModel,
    ps_body,
    show_body,
    tags_body,
    untagged,
    version_body,
)
from node.protocol.paths import (
    PATH_OLLAMA_CHAT,
    PATH_OLLAMA_GENERATE,
    PATH_OLLAMA_PS,
    PATH_OLLAMA_PULL,
    PATH_OLLAMA_SHOW,
    PATH_OLLAMA_TAGS,
    PATH_OLLAMA_VERSION,
)
from node.server.call import Call
from serving.version import own_version

Handler = Callable[[Call], Awaitable[None]]
Run = Callable[[Call, DialectRequest, LateChain], Awaitable[None]]
MakeChain = Callable[[Call, bytes, str], LateChain]
_READERS = {PATH_OLLAMA_CHAT: read_ollama_chat, PATH_OLLAMA_GENERATE: read_ollama_generate}


class OllamaApi:
    """The endpoints of one agent. `run` sends the response to a request for text, and `make_chain`
    makes the chain of its body, for a model."""

    def __init__(self, agent: Agent, created_s: int, run: Run, make_chain: MakeChain) -> None:
        self._agent = agent
        self._created_s = created_s
        self._run = run
        self._make_chain = make_chain
        self._handlers: dict[str, tuple[str, Handler]] = {
            PATH_OLLAMA_TAGS: ("GET", self._list),
            PATH_OLLAMA_PS: ("GET", self._list_loaded),
            PATH_OLLAMA_VERSION: ("GET", self._version),
            PATH_OLLAMA_SHOW: ("POST", self._show),
            PATH_OLLAMA_PULL: ("POST", self._pull),
            **dict.fromkeys(_READERS, ("POST", self._generate)),
        }

    async def respond(self, call: Call) -> None:
        """Serves one request. Raises `NodeError` if nothing of a response has been sent."""
        found = self._handlers.get(call.path)
        if found is None:
            why = why_left_out(call.path)
            raise UnknownPath.at(call.path) if why is None else NotHere(why)
        method, handler = found
        call.require_method(method)
        await handler(call)

    # --- text --------------------------------------------------------------------------------

    async def _generate(self, call: Call) -> None:
        names = self._names()
        parsed, body = await call.read(partial(_read, call.path, names))
        if isinstance(parsed, ResidencyRequest):
            whole = await self._agent.meant(parsed.model, call.origin)
            await self._change_residency(call, replace(parsed, model=whole))
            return
        parsed = renamed(parsed, await self._agent.meant(parsed.request.model, call.origin))
        chain = self._make_chain(call, body, parsed.request.model)
        model, keep_alive_s = parsed.request.model, parsed.keep_alive_s
        if parsed.needs:
            self._check_abilities(await self._agent.card(model), parsed)
        self._keep(call, model, keep_alive_s)
        await self._run(call, parsed, chain)
        if keep_alive_s == 0 and not call.origin:
            await self._unload(model)

    def _check_abilities(self, card: ModelCard, parsed: OllamaRequest) -> None:
        """Raises `BadRequest` if the model cannot do what the request asks for, in the words by
        which clients ask again without it."""
        for ability, (param, word) in parsed.needs.items():
            if ability not in card.capabilities:
                raise BadRequest(f"{card.name!r} does not support {word}.", param=param)

    def _names(self) -> frozenset[str]:
        """Returns the names of the models that were here when the disk was read last."""
        return frozenset(each.name for each in self._agent.status().models)

    async def _named(self, call: Call) -> str:
        """Returns the model that the body names."""
        name = await call.read(read_named)
        return await self._agent.meant(untagged(name, self._names().__contains__), call.origin)

    # --- residency ---------------------------------------------------------------------------

    async def _change_residency(self, call: Call, wanted: ResidencyRequest) -> None:
        """Loads or unloads a model."""
        if wanted.unloads:
            await self._unload(wanted.model)
        else:
            await self._agent.load(wanted.model)
            self._keep(call, wanted.model, wanted.keep_alive_s)
        shown = call.text_header(HEADER_REQUESTED_MODEL) or wanted.model
        reason = "unload" if wanted.unloads else "load"
        body = residency_body(shown, is_chat=wanted.is_chat, reason=reason)
        await call.send_json(body, call.model_headers(wanted.model))

    def _keep(self, call: Call, model: str, keep_alive_s: float | None) -> None:
        """Sets the keep-alive of a model that is here, unless a router decides it."""
        if keep_alive_s and not call.origin and model in self._names():
            self._agent.residency.keep(model, keep_alive_s)

    async def _unload(self, model: str) -> None:
        """Unloads the model unless it serves others."""
        with suppress(ModelBusy):
            await self._agent.unload(model)

    # --- models ------------------------------------------------------------------------------

    async def _list(self, call: Call) -> None:
        await call.send_json(tags_body(await self._models(), self._created_s))

    async def _list_loaded(self, call: Call) -> None:
        await call.send_json(ps_body(await self._models(), time.time()))

    async def _show(self, call: Call) -> None:
        card = await self._agent.card(await self._named(call))
        found = [each for each in await self._models() if each.card.name == card.name]
        if not found:
            raise UnknownModel
        await call.send_json(show_body(found[0], self._created_s))

    async def _version(self, call: Call) -> None:
        await call.send_json(version_body(own_version()))

    async def _pull(self, call: Call) -> None:
        name = await self._named(call)
        if name not in self._names():
            raise NotHere(f"The model {name[:200]!r} is not here. {why_left_out(call.path)}")
        await call.send_json(pulled_line())

    async def _models(self) -> Sequence[OllamaModel]:
        cards = await self._agent.cards()
        statuses = {each.name: each for each in self._agent.status().models}
        found = ((card, statuses.get(card.name)) for card in cards)
        return [OllamaModel(card, (status,)) for card, status in found if status is not None]


def _read(
    path: str, names: Collection[str], body: bytes
) -> tuple[OllamaRequest | ResidencyRequest, bytes]:
    """Returns the parsed body, and the body."""
    return _READERS[path](body, lambda name: untagged(name, names.__contains__)), body
