"""Control calls to one node, and its event stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from urllib.parse import urlencode

import aiohttp
import msgspec
from aiohttp.http import HttpProcessingError

from node.protocol.bounds import MAX_EVENT_BYTES
from node.protocol.lifecycle import (
    PATH_CLEAR_CACHE,
    PATH_POLICIES,
    PATH_PULL,
    PATH_PULL_CANCEL,
    PATH_REMOVE,
    PATH_SHARE,
    PATH_UNLOAD,
    ClearCommand,
    ClearedCache,
    Policies,
    PullCommand,
    Share,
    UnloadCommand,
)
from node.protocol.logs import PATH_LOGS, LogPage
from node.protocol.messages import (
    HEARTBEAT_S,
    PATH_EVENTS,
    PATH_LOAD,
    PATH_METRICS,
    PATH_STATUS,
    Event,
    ModelCommand,
    NodeStatus,
)
from node.protocol.pairing import (
    PATH_LEAVE,
    PATH_PAIR,
    PATH_ROTATE,
    NewSecret,
    PairReply,
    PairRequest,
)
from node.protocol.paths import PATH_MODELS
from router.errors import NodeRefused
from router.settings import CONNECT_TIMEOUT_S
from router.upstream.control_channel import ControlChannel, Place, in_spoken_version, why
from router.upstream.credentials import NodeCredential
from router.upstream.foreign_list import listed_names
from router.upstream.node_events import NodeEvents

CLEAR_TIMEOUT_S = 240.0
"""An engine deletes its files on disk one after another."""
PAIR_TIMEOUT_S = 20.0
"""Both sides compute the proofs meanwhile, and one agent pairs one router at a time."""


class ControlClient:
    """Sends control calls to one node and reads its events, on connections of their own."""

    def __init__(self, place: Place, credential: NodeCredential, *, is_agent: bool) -> None:
        self.url = place.url
        self._channel = ControlChannel(place, credential, is_agent=is_agent)
        self._events = NodeEvents(place.url)
        self.set_credential = self._channel.set_credential
        self.close = self._channel.close

    # --- control calls ---

    async def status(self) -> NodeStatus:
        """Reads the agent's status. Raises `NodeUnreachable`, `WrongNodeToken`,
        `WrongNodeProtocol`, `NodeRefused`."""
        return self._channel.decoded(await self._channel.control("GET", PATH_STATUS), NodeStatus)

    async def metrics(self) -> bytes:
        """Reads the agent's figures in Prometheus's format. Raises what `status` raises."""
        return await self._channel.control("GET", PATH_METRICS)

    async def logs(self, most: int, instance: str, after: int) -> LogPage:
        """Reads the newest lines of the agent's log after line `after` of `instance`. Raises what
        `status` raises."""
        query = urlencode({"lines": most, "instance": instance, "after": after})
        return self._channel.decoded(
            await self._channel.control("GET", f"{PATH_LOGS}?{query}"), LogPage
        )

    async def load(self, model: str) -> None:
        """Loads a model; returns when it is loaded. Raises what `status` raises."""
        await self._channel.control("POST", PATH_LOAD, ModelCommand(model), timeout_s=3600)

    async def unload(
        self, model: str, generation: int | None = None, min_idle_s: float = 0.0
    ) -> None:
        """Unloads an idle model: with `generation` only this load of it, with `min_idle_s` only if
        it has been idle for that long. Raises what `status` raises."""
        command = UnloadCommand(model, generation, min_idle_s)
        await self._channel.control("POST", PATH_UNLOAD, command, timeout_s=60)

    async def clear_cache(self, model: str | None) -> ClearedCache:
        """Deletes the stored KV of the model, or of all that are loaded. Raises what `status`
        raises."""
        command = ClearCommand(model)
        body = await self._channel.control(
            "POST", PATH_CLEAR_CACHE, command, timeout_s=CLEAR_TIMEOUT_S
        )
        return self._channel.decoded(body, ClearedCache)

    async def set_policies(self, policies: Policies) -> None:
        """Sends the agent this router's residency policies. Raises what `status` raises."""
        await self._channel.control("POST", PATH_POLICIES, policies)

    async def pull(self, command: PullCommand) -> NodeStatus:
        """Starts or continues a pull; returns the status after that. Raises what `status`
        raises."""
        return self._channel.decoded(
            await self._channel.control("POST", PATH_PULL, command), NodeStatus
        )

    async def pull_cancel(self, model: str) -> None:
        """Cancels a pull and deletes what has arrived. Raises what `status` raises."""
        await self._channel.control("POST", PATH_PULL_CANCEL, ModelCommand(model), timeout_s=60)

    async def remove(self, model: str) -> None:
        """Deletes a model from the node's disk. Raises what `status` raises."""
        await self._channel.control("POST", PATH_REMOVE, ModelCommand(model), timeout_s=600)

    async def share(self, model: str) -> Share:
        """Returns what a peer needs to copy the model; the first call hashes its files. Raises what
        `status` raises."""
        body = await self._channel.control("POST", PATH_SHARE, ModelCommand(model), timeout_s=3600)
        return self._channel.decoded(body, Share)

    async def pair(self, request: PairRequest) -> PairReply:
        """Pairs this router. Raises `PairingFailed`, and what `status` raises."""
        body = await self._channel.control("POST", PATH_PAIR, request, timeout_s=PAIR_TIMEOUT_S)
        return self._channel.decoded(body, PairReply)

    async def rotate(self) -> str:
        """Returns a new secret for this router; its first use makes the present one void. Raises
        what `status` raises."""
        return self._channel.decoded(
            await self._channel.control("POST", PATH_ROTATE), NewSecret
        ).secret

    async def leave(self) -> None:
        """Ends the pairing with this router. Raises what `status` raises."""
        await self._channel.control("POST", PATH_LEAVE)

    async def foreign_models(self) -> list[str]:
        """Lists the model ids of a third-party server (`listed_names`). Raises what `status`
        raises."""
        body = await self._channel.control("GET", PATH_MODELS)
        return listed_names(body, self.url + PATH_MODELS)

    async def events(self, instance_id: str, after: int) -> AsyncGenerator[Event, None]:
        """Yields the agent's events from `after` on; ends when the connection does.

        Raises what `status` raises, and `NodeUnreachable` after three missing heartbeats.
        """
        try:
            async with await self._begun(instance_id, after) as response:
                wire = self._channel.wire
                async for line in response.content:
                    event = self._events.read(line, wire)
                    if event is not None:
                        yield event
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._channel.unreachable(error) from error
        except (msgspec.MsgspecError, UnicodeDecodeError, HttpProcessingError) as error:
            raise NodeRefused(f"{self.url} sent an event that is not one{why(error)}.") from error

    async def _begun(self, instance_id: str, after: int) -> aiohttp.ClientResponse:
        """Begins an event stream. An agent that was upgraded meanwhile has ended the one before, so
        each begins in the newest version."""
        self._channel.begin_in_newest()
        query = {"instance": instance_id, "after": str(after)}
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=3 * HEARTBEAT_S
        )

        async def begin() -> aiohttp.ClientResponse:
            response = await self._channel.open_session.get(
                self.url + PATH_EVENTS,
                params=query,
                headers=self._channel.headers(),
                timeout=timeout,
                allow_redirects=False,
                read_bufsize=MAX_EVENT_BYTES // 2,  # a line may be twice as long
            )
            try:
                await self._channel.check(response)
            except BaseException:
                response.close()
                raise
            return response

        return await in_spoken_version(begin)
