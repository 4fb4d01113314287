"""`/v1/*` and `/api/*` as a raw ASGI application, in front of everything else.

For each request, one task waits for the client's disconnect and cancels the work in whatever phase
it is.
"""

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import msgspec
from starlette.types import Receive, Scope, Send

from node.agent import status_report
from node.agent.agent import Agent
from node.dialects.anthropic.body import count_tokens_body, read_count_tokens, read_messages
from node.dialects.base import DialectRequest, ResponseHead, renamed
from node.dialects.chat.body import read_chat
from node.dialects.chat.response import ReasoningField
from node.dialects.completions.completions import read_completion
from node.errors import NodeError, UnknownModel, UnknownPath
from node.prompt.late_chain import LateChain
from node.protocol.chain.prefix import Chain, PrefixHasher, read_fields
from node.protocol.headers import HEADER_REQUEST_ID, HEADER_REQUESTED_MODEL
from node.protocol.ids import client_id, parse_id
from node.protocol.models import model_body, models_body
from node.protocol.paths import (
    OLLAMA_PREFIX,
    PATH_CHAT,
    PATH_COMPLETIONS,
    PATH_COUNT_TOKENS,
    PATH_MESSAGES,
    PATH_MODELS,
    PATH_REQUESTS,
    PATH_RESPONSES,
)
from node.server.access import Access
from node.server.body_memory import Bodies
from node.server.call import Call, ClientDisconnected
from node.server.ollama import OllamaApi
from node.server.response_store import ResponseStore
from node.server.responses import ResponsesApi
from node.server.stream import EventStream, collect
from node.settings import STREAM_KEEPALIVE_S
from serving.http.callers import Callers
from serving.logs.request_id import set_request_id
from serving.tracing.context import trace_id_of

_LISTS = (PATH_MODELS, PATH_REQUESTS)
"""Paths that also match with a slash at the end."""

Handler = Callable[[Call], Awaitable[None]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """Options of the agent's API."""

    access: Access
    stream_keepalive_s: float = STREAM_KEEPALIVE_S
    reasoning_field: ReasoningField = "reasoning_content"


class Api:
    """The endpoints of one agent."""

    def __init__(
        self, agent: Agent, options: ApiOptions, store: ResponseStore, callers: Callers
    ) -> None:
        self._agent = agent
        self._callers = callers
        self._access = options.access
        self._stream_keepalive_s = options.stream_keepalive_s
        self._created_s = int(time.time())
        self._prefix_hasher = PrefixHasher()
        self._bodies = Bodies()
        self._responses = ResponsesApi(
            agent, store, self._prefix_hasher, options.stream_keepalive_s
        )
        self._ollama = OllamaApi(agent, self._created_s, self._generate, self._chain)
        self._reads: dict[str, Callable[[bytes], DialectRequest]] = {
            PATH_CHAT: lambda body: read_chat(body, options.reasoning_field),
            PATH_COMPLETIONS: read_completion,
            PATH_MESSAGES: read_messages,
        }
        self._handlers: dict[str, tuple[str, Handler]] = {
            PATH_RESPONSES: ("POST", self._responses.create),
            PATH_COUNT_TOKENS: ("POST", self._count_tokens),
            PATH_MODELS: ("GET", self._list_models),
            PATH_REQUESTS: ("GET", self._list_requests),
            status_report.PATH: ("GET", self._report),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive, send, self._agent.identity.node_id, self._bodies)
        try:
            call.authorize(self._access)
            await self._respond(call)
        except ClientDisconnected:
            return
        except NodeError as exc:
            await call.send_error(exc)
        except Exception:
            logger.exception("Request %s failed.", call.request_id)
            if call.started:
                raise
            await call.send_error(NodeError("The node agent failed on this request."))
        finally:
            call.close()

    async def _respond(self, call: Call) -> None:
        path = call.path
        if path.removesuffix("/") in _LISTS:
            path = path.removesuffix("/")
        if read := self._reads.get(path):
            call.require_method("POST")
            parsed, body = await call.read(lambda body: (read(body), body))
            parsed = renamed(parsed, await self._agent.meant(parsed.request.model, call.origin))
            await self._generate(call, parsed, self._chain(call, body, parsed.request.model))
        elif found := self._handlers.get(path):
            method, handler = found
            call.require_method(method)
            await handler(call)
        elif path.startswith(OLLAMA_PREFIX):
            await self._ollama.respond(call)
        elif path.startswith(PATH_RESPONSES + "/"):
            await self._responses.follow_up(call)
        elif path.startswith(PATH_MODELS + "/"):
            await self._show_model(call, path.removeprefix(PATH_MODELS + "/"))
        elif path.startswith(PATH_REQUESTS + "/"):
            call.require_method("DELETE")
            await self._cancel(call, path.removeprefix(PATH_REQUESTS + "/"))
        else:
            raise UnknownPath.at(call.path)

    def _chain(self, call: Call, body: bytes, model: str) -> LateChain:
        """Returns the prefix hash chain of a body."""
        path, salt = call.path, call.salt

        def make() -> Chain | None:
            return self._prefix_hasher.chain(read_fields(body), path, model, salt=salt)

        return LateChain(make, is_long=call.is_long)

    async def _generate(self, call: Call, parsed: DialectRequest, chain: LateChain) -> None:
        request = parsed.request
        requested_id = call.text_header(HEADER_REQUEST_ID)
        job = self._agent.requests.job(request, call.path, requested_id, call.sender, chain)
        call.request_id = job.request_id
        set_request_id(job.request_id, trace_id_of(job.sender.trace))
        shown = call.text_header(HEADER_REQUESTED_MODEL) or request.model
        node_id = self._agent.identity.node_id
        head = ResponseHead(f"{node_id}-{job.request_id}", shown, int(job.arrived_unix_s))
        writer = parsed.writer(head)
        batches = self._agent.requests.run(job, self._stream_keepalive_s)
        async with call.until_disconnect(), contextlib.aclosing(batches):
            if not request.stream:
                body, headers = await collect(batches, writer)
                await call.send_json(body, [*call.response_headers(request), *headers])
                return
            stream = EventStream(writer, call.send, call.response_headers(request))
            await stream.run(batches, self._stream_keepalive_s)

    async def _count_tokens(self, call: Call) -> None:
        request = await call.read(read_count_tokens)
        request = replace(request, model=await self._agent.meant(request.model, call.origin))
        body = count_tokens_body(await self._agent.count_tokens(request, call.origin))
        await call.send_json(body, call.response_headers(request))

    async def _list_models(self, call: Call) -> None:
        await call.send_json(models_body(await self._agent.cards(), self._created_s))

    async def _show_model(self, call: Call, name: str) -> None:
        try:
            card = await self._agent.card(await self._agent.meant(name, call.origin))
        except UnknownModel:
            call.require_method("GET", exists=False)
            raise
        call.require_method("GET")
        await call.send_json(model_body(card, self._created_s))

    async def _list_requests(self, call: Call) -> None:
        node_id = self._agent.identity.node_id
        data = [
            {"id": client_id("req_", node_id, view["request_id"]), **view}
            for view in self._agent.requests.open(call.origin)
        ]
        await call.send_json(msgspec.json.encode({"object": "list", "data": data}))

    async def _cancel(self, call: Call, shown_id: str) -> None:
        parsed = parse_id(shown_id)
        request_id = shown_id if parsed is None else parsed.request_id
        self._agent.requests.cancel(request_id, call.origin)
        cancelled = {"id": shown_id, "object": "request", "cancelled": True}
        await call.send_json(msgspec.json.encode(cancelled))

    async def _report(self, call: Call) -> None:
        connections = {
            "refused_connections": self._callers.refused,
            "cut_off_connections": self._callers.cut_off,
        }
        await call.send_json(msgspec.json.encode({**self._agent.report(), **connections}))
