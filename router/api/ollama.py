"""Routes `/api/*` of the router, for clients that speak only Ollama's API. Raw ASGI."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import msgspec

from node.protocol.messages import ModelState
from node.protocol.ollama.json_lines import residency_body
from node.protocol.ollama.keep_alive import WRONG, keep_alive_s
from node.protocol.ollama.left_out import pulled_line, why_left_out
from node.protocol.ollama.models import ps_body, show_body, tags_body, version_body
from node.protocol.paths import (
    PATH_OLLAMA_CHAT,
    PATH_OLLAMA_PS,
    PATH_OLLAMA_PULL,
    PATH_OLLAMA_SHOW,
    PATH_OLLAMA_TAGS,
    PATH_OLLAMA_VERSION,
    ApiDialect,
)
from router.api.admin.bodies import ModelOrder
from router.api.admin.gate import Admin
from router.api.admin.models import client_of as node_client_of
from router.api.admin.models import holders_of, node_for_load, unload_model
from router.api.bodies import (
    PROMPT_FIELDS,
    ClientDisconnected,
    Routing,
    Scope,
    body_bytes,
    client_of,
    read_body,
)
from router.api.early_ends import EarlyEnds
from router.api.inference import Inference
from router.api.methods import check_method
from router.api.models import Models
from router.api.tickets import NoPrompt
from router.api.whole_responses import JSON_HEADERS, send_bytes, send_error
from router.auth import SCOPE_ADMIN, SCOPE_INFERENCE, key_from_headers
from router.core import Core
from router.errors import (
    BadRequest,
    BodyTooLarge,
    Forbidden,
    NotHere,
    RouterError,
    UnknownPath,
)
from router.routing.model_names import first_known
from router.types import Caller
from serving.http.exchange import Receive, Send, mark_authenticated
from serving.version import own_version

log = logging.getLogger("mlx_fleet.router")

_MOST_BYTES = 64 * 1024
"""Longest body that only names a model."""
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Named(msgspec.Struct):
    model: str | None = None
    name: str | None = None
    """The older name of the field."""


_decode_named = msgspec.json.Decoder(_Named).decode
_decode_any = msgspec.json.Decoder().decode
Handler = Callable[[Caller, Receive], Awaitable[bytes]]


class Ollama:
    """The ASGI app for every path under /api."""

    def __init__(self, core: Core, inference: Inference) -> None:
        self._core = core
        self._ends = EarlyEnds(core)
        self._inference = inference
        self._started_s = time.time()
        self._models = Models(core.fleet, core.names, int(self._started_s))
        self._handlers: dict[str, tuple[str, Handler]] = {
            PATH_OLLAMA_TAGS: ("GET", self._list),
            PATH_OLLAMA_PS: ("GET", self._list_loaded),
            PATH_OLLAMA_VERSION: ("GET", self._version),
            PATH_OLLAMA_SHOW: ("POST", self._show),
            PATH_OLLAMA_PULL: ("POST", self._pull),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin_s = time.monotonic()
        try:
            try:
                await self._route(scope, receive, send)
            except NoPrompt as request:
                await self._change_residency(request, scope, send)
        except RouterError as error:
            self._ends.refused(scope, error, begin_s)
            await send_error(send, error, ApiDialect.OLLAMA)
        except ClientDisconnected:
            self._ends.left(scope, begin_s)
        except asyncio.CancelledError:
            return  # the client is gone; nobody reads the error
        except Exception:
            log.exception("a fault of the router, at %r", scope["path"])
            fault = RouterError()
            self._ends.refused(scope, fault, begin_s)
            await send_error(send, fault, ApiDialect.OLLAMA)

    def _route(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Returns the coroutine that serves the path, which may raise `NoPrompt`. Raises
        `RouterError` if the request is not allowed."""
        path: str = scope["path"]
        key = key_from_headers(scope["headers"])
        caller = self._core.keys.check(key, SCOPE_INFERENCE)
        mark_authenticated(scope)
        if path in PROMPT_FIELDS:
            check_method(scope, "POST")
            return self._inference.serve(caller, scope, receive)
        found = self._handlers.get(path)
        if found is None:
            why = why_left_out(path)
            raise UnknownPath.at(path) if why is None else NotHere(why)
        method, handler = found
        check_method(scope, method)
        if body_bytes(scope) > _MOST_BYTES:
            raise BodyTooLarge(f"A body of {path} may have {_MOST_BYTES:,} bytes.")
        return _send_body(send, handler(caller, receive))

    # --- residency ---------------------------------------------------------------------------

    async def _change_residency(self, request: NoPrompt, scope: Scope, send: Send) -> None:
        """Loads a model, or unloads it if the key has the scope admin."""
        core, caller, routing = self._core, request.caller, request.routing
        if caller.quotas:
            core.limiter.check(caller, ApiDialect.OLLAMA)
        name = core.names.untagged(routing.model)
        model = first_known(core.names.route(name, caller.models)).model
        unloads = _unloads(routing)
        if not unloads:
            await self._load(model)
        elif SCOPE_ADMIN not in caller.scopes:
            raise Forbidden(
                "The fleet decides how long a model stays loaded; only a key with the scope admin "
                "may unload one.",
                param="keep_alive",
            )
        elif holders_of(core, model):
            by = Admin(core, caller, client_of(scope))
            await unload_model(by, ModelOrder(model=model))
        reason, is_chat = "unload" if unloads else "load", scope["path"] == PATH_OLLAMA_CHAT
        body = residency_body(routing.model, is_chat=is_chat, reason=reason)
        await send_bytes(send, 200, body, JSON_HEADERS)

    async def _load(self, model: str) -> None:
        """Loads a model, unless it is ready somewhere, as it always is on third-party servers."""
        found = [view.model(model) for view in self._core.fleet.snapshot if view.reachable]
        if not any(status is not None and status.state is ModelState.READY for status in found):
            view = node_for_load(self._core, model)
            await node_client_of(self._core, view).control.load(model)

    # --- models ------------------------------------------------------------------------------

    async def _list(self, caller: Caller, _receive: Receive) -> bytes:
        return tags_body(self._models.ollama(caller.models), self._started_s)

    async def _list_loaded(self, caller: Caller, _receive: Receive) -> bytes:
        return ps_body(self._models.ollama(caller.models), time.time())

    async def _show(self, caller: Caller, receive: Receive) -> bytes:
        model = self._models.ollama_one(await _read_named(receive), caller.models)
        return show_body(model, self._started_s)

    async def _version(self, _caller: Caller, _receive: Receive) -> bytes:
        return version_body(own_version())

    async def _pull(self, caller: Caller, receive: Receive) -> bytes:
        name, allowed = await _read_named(receive), caller.models
        names = self._core.names
        if names.untagged(name) not in names.listed(allowed):
            unknown = names.unknown(name, allowed)
            raise NotHere(f"{unknown.message} {why_left_out(PATH_OLLAMA_PULL)}")
        return pulled_line()


async def _send_body(send: Send, body: Awaitable[bytes]) -> None:
    await send_bytes(send, 200, await body, JSON_HEADERS)


async def _read_named(receive: Receive) -> str:
    """Returns the name of the model in the body. Raises `BadRequest`."""
    try:
        named = _decode_named(await read_body(receive))
    except _BROKEN as error:
        raise BadRequest(f"The body is not valid: {error}.") from None
    name = named.model or named.name
    if not name:
        raise BadRequest("model is missing.", param="model")
    return name


def _unloads(routing: Routing) -> bool:
    """Returns True if the request unloads its model: a keep-alive of 0."""
    raw = routing.fields.get("keep_alive")
    try:
        return raw is not None and keep_alive_s(_decode_any(raw)) == 0
    except (*_BROKEN, ValueError):
        raise BadRequest(WRONG, param="keep_alive") from None
