"""`/v1/responses` and the paths below it: responses that clients may refer to later."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from functools import partial

import msgspec

from node.agent.agent import Agent
from node.agent.batch import Batch
from node.agent.open_request import Job
from node.agent.requests import distinct_id
from node.dialects.base import ResponseHead, renamed
from node.dialects.responses.body import ResponsesRequest, read_responses
from node.dialects.responses.events import ResponseWriter
from node.dialects.responses.input import History
from node.dialects.responses.stored import (
    cancel_ended,
    check_retrieve,
    deleted_body,
    input_items_body,
    read_items_page,
    retrieved_body,
    unknown_response,
)
from node.errors import RequestCancelled, UnknownPath
from node.ipc.messages import Delta
from node.prompt.late_chain import LateChain
from node.protocol.chain.prefix import Chain, Fields, Head, PrefixHasher, read_fields
from node.protocol.headers import HEADER_REQUEST_ID, HEADER_REQUESTED_MODEL
from node.protocol.ids import RESPONSE_PREFIX, client_id, parse_id
from node.protocol.messages import FinishReason
from node.protocol.paths import PATH_RESPONSES
from node.server.call import Call
from node.server.response_store import ResponseStore
from node.server.stream import EventStream, collect
from serving.logs.request_id import set_request_id
from serving.tracing.context import trace_id_of


class ResponsesApi:
    """The responses of one agent: those in progress, and those in its store."""

    def __init__(
        self,
        agent: Agent,
        store: ResponseStore,
        prefix_hasher: PrefixHasher,
        stream_keepalive_s: float,
    ) -> None:
        self._agent = agent
        self._store = store
        self._prefix_hasher = prefix_hasher
        self._stream_keepalive_s = stream_keepalive_s
        self._open: dict[str, tuple[Job, ResponseWriter]] = {}
        """Responses in progress that will be stored, by id."""

    async def create(self, call: Call) -> None:
        """Handles POST of a new response."""
        parsed, fields = await call.read(lambda body: (read_responses(body), read_fields(body)))
        parsed = renamed(parsed, await self._agent.meant(parsed.request.model, call.origin))
        history, head, goes_on = History(), None, parsed.needs_history
        if goes_on:
            previous_id = parsed.facts.previous_id
            history = await self._store.history(previous_id, parsed.references, call.origin)
            if previous_id:
                head = await self._store.head(previous_id, call.origin)
                call.reserve(head.size_bytes if head else 0)
            # A long session would take too long on the event loop.
            parsed = await asyncio.to_thread(parsed.with_history, history)
        make = partial(self._chain_of, parsed, fields, call.salt, history, head)
        chain = LateChain(make, is_long=goes_on or call.is_long)
        requested_id = await self._free_id(call.text_header(HEADER_REQUEST_ID))
        job = self._agent.requests.job(parsed.request, call.path, requested_id, call.sender, chain)
        call.request_id = job.request_id
        set_request_id(job.request_id, trace_id_of(job.sender.trace))
        await self._run(call, parsed, job)

    def _chain(
        self, parsed: ResponsesRequest, fields: Fields, salt: str, head: Head | None = None
    ) -> Chain | None:
        return self._prefix_hasher.chain(
            fields, PATH_RESPONSES, parsed.request.model, salt=salt, head=head
        )

    def _chain_of(
        self,
        parsed: ResponsesRequest,
        fields: Fields,
        salt: str,
        history: History,
        head: Head | None,
    ) -> Chain | None:
        """Returns the prefix hash chain of a body, with the stored responses that it continues."""
        if parsed.facts.previous_id is None:
            return self._chain(parsed, fields, salt)
        chain = self._chain(parsed, fields, salt, head) if head else None
        if chain is not None:
            return chain
        # The prompt begins otherwise than the previous response's, or that one's chain head is
        # unknown: the chain is made as if the client had sent the whole history.
        whole = msgspec.Raw(msgspec.json.encode([*history.items, *parsed.items]))
        return self._chain(parsed, {**fields, "input": whole}, salt)

    async def _free_id(self, requested_id: str) -> str:
        """Returns the id that the router requested, or another one if a response already has it.
        The caller must open the request without awaiting anything in between."""
        response_id = client_id(RESPONSE_PREFIX, self._agent.identity.node_id, requested_id)
        if not requested_id:
            return ""
        is_stored = await self._store.has(response_id)
        return distinct_id(requested_id) if is_stored or response_id in self._open else requested_id

    async def _run(self, call: Call, parsed: ResponsesRequest, job: Job) -> None:
        model = parsed.request.model
        shown = call.text_header(HEADER_REQUESTED_MODEL) or model
        node_id = self._agent.identity.node_id
        head = ResponseHead(f"{node_id}-{job.request_id}", shown, int(job.arrived_unix_s))
        writer = parsed.writer(head)
        response_id = client_id(RESPONSE_PREFIX, node_id, job.request_id)

        async def keep() -> None:
            if not parsed.facts.store:
                return
            record, chain = await asyncio.to_thread(
                lambda: (writer.record(), job.chain_with_output())
            )
            # A response that was deleted meanwhile is not open any more.
            if record is not None and response_id in self._open:
                end = chain.end if chain else None
                is_kept = await self._store.put(record, job.origin, end)
                if is_kept and end is not None:
                    self._agent.publish_stored(response_id, job.origin, end)

        batches = _until_cancelled(self._agent.requests.run(job, self._stream_keepalive_s), job)
        if parsed.facts.store:
            self._open[response_id] = job, writer
        try:
            async with call.until_disconnect(), contextlib.aclosing(batches):
                headers = call.response_headers(parsed.request)
                if parsed.request.stream:
                    stream = EventStream(writer, call.send, headers, keep)
                    await stream.run(batches, self._stream_keepalive_s)
                else:
                    body, more = await collect(batches, writer, keep)
                    await call.send_json(body, [*headers, *more])
        finally:
            self._open.pop(response_id, None)

    async def follow_up(self, call: Call) -> None:
        """Handles GET, DELETE and the subpaths of one response. Raises a `NodeError`."""
        response_id, slash, rest = call.path.removeprefix(PATH_RESPONSES + "/").partition("/")
        is_id = parse_id(response_id) is not None
        if not slash:
            call.require_method("GET", "DELETE", exists=is_id)
            if call.method == "GET":
                await self._retrieve(call, response_id)
            else:
                await self._delete(call, response_id)
        elif rest == "cancel":
            call.require_method("POST", exists=is_id)
            await self._cancel(call, response_id)
        elif rest == "input_items":
            call.require_method("GET", exists=is_id)
            page = read_items_page(call.query())
            stored = await self._store.get(response_id, call.origin)
            if stored is None:
                raise unknown_response(response_id)
            await call.send_json(input_items_body(stored, page))
        else:
            raise UnknownPath.at(call.path)

    async def _retrieve(self, call: Call, response_id: str) -> None:
        seals = check_retrieve(call.query())
        found = self._in_work(response_id, call.origin)
        if found is not None:
            body = found[1].snapshot()
        else:
            stored = await self._store.get(response_id, call.origin)
            if stored is None:
                raise unknown_response(response_id)
            body = stored.body
        await call.send_json(retrieved_body(body, seals_reasoning=seals))

    async def _delete(self, call: Call, response_id: str) -> None:
        found = self._in_work(response_id, call.origin)
        if found is not None:
            # It must neither be stored nor be found any more.
            found[1].forget()
            self._open.pop(response_id, None)
        # A response in progress may be about to be stored; the store works in the order of calls.
        if not await self._store.delete(response_id, call.origin) and found is None:
            raise unknown_response(response_id)
        await call.send_json(deleted_body(response_id))

    async def _cancel(self, call: Call, response_id: str) -> None:
        found = self._in_work(response_id, call.origin)
        if found is None:
            stored = await self._store.get(response_id, call.origin)
            if stored is None:
                raise unknown_response(response_id)
            await call.send_json(cancel_ended(stored))
            return
        job, writer = found
        self._agent.requests.cancel(job.request_id, call.origin)
        await call.send_json(writer.cancelled())

    def _in_work(self, response_id: str, origin: str) -> tuple[Job, ResponseWriter] | None:
        """Returns the open response with this id if `origin` owns it."""
        found = self._open.get(response_id)
        return found if found is not None and origin == found[0].origin else None


async def _until_cancelled(
    batches: AsyncGenerator[Batch, None], job: Job
) -> AsyncGenerator[Batch, None]:
    """Yields the batches; a cancel ends them as a response of its own kind, not as a failure."""
    try:
        async with contextlib.aclosing(batches):
            async for batch in batches:
                yield batch
    except RequestCancelled:
        yield [Delta(job.request_id, (), 0, FinishReason.CANCELLED)]
