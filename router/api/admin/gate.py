"""Access control of `/admin`, its audit log, and its error responses."""

import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from node.protocol.bounds import NAME_CHARS
from registry import audit
from registry import errors as registry_errors
from registry.db import WriteSession
from registry.records import AuditRecord
from router.api.bodies import client_of
from router.api.whole_responses import error_response
from router.auth import SCOPE_ADMIN, key_from_headers
from router.core import Core
from router.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    NotFound,
    RouterError,
    ShuttingDown,
    Unauthorized,
)
from router.types import Caller
from serving.http.exchange import mark_authenticated

T = TypeVar("T")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True, slots=True)
class Admin:
    """A caller with the scope admin, and the core that it acts on."""

    core: Core
    caller: Caller
    client: str
    """Address that the request came from."""

    async def note(self, verb: str, subject: str, detail: str) -> None:
        """Writes an audit entry for an action outside the registry."""
        await self.core.registry.write(lambda session: self._audit(session, verb, subject, detail))

    async def change(
        self,
        verb: str,
        subject: str,
        detail: str,
        work: Callable[[WriteSession], Awaitable[T]],
    ) -> T:
        """Runs `work` and writes its audit entry in one transaction, so that both happen or
        neither."""

        async def audited(session: WriteSession) -> T:
            result = await work(session)
            await self._audit(session, verb, subject, detail)
            return result

        return await self.core.registry.write(audited)

    async def _audit(self, session: WriteSession, verb: str, subject: str, detail: str) -> None:
        entry = AuditRecord(time.time(), self.caller.name, verb, subject, detail, self.client)
        await audit.add(session, entry)


def admin_of(request: Request) -> Admin:
    admin = request.state.admin
    assert isinstance(admin, Admin)
    return admin


CurrentAdmin = Annotated[Admin, Depends(admin_of)]


def gated_route(core_of: Callable[[], Core], other_scope: str = "") -> type[APIRoute]:
    """Returns a route class that checks the key before the body is read, and sends errors in
    OpenAI's envelope. Keys need the scope admin, or the other one."""

    class GatedRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            handle = super().get_route_handler()
            known = [field.alias for field in self.dependant.query_params]

            async def gated(request: Request) -> Response:
                core, client = core_of(), client_of(request.scope)
                key = key_from_headers(request.scope["headers"])
                try:
                    caller = core.keys.check(key, SCOPE_ADMIN, other_scope)
                    request.state.admin = Admin(core, caller, client)
                    mark_authenticated(request.scope)
                    _refuse_unknown(request, known)
                    return await handle(request)
                except (
                    RouterError,
                    registry_errors.RegistryError,
                    RequestValidationError,
                    HTTPException,
                ) as error:
                    failure = as_router_error(error)
                    await _note_failure(core, request, core.keys.name_of(key), failure)
                    return error_response(failure)

            return gated

    return GatedRoute


async def _note_failure(core: Core, request: Request, actor: str, error: RouterError) -> None:
    """Notes a request that was refused its access, or that failed to change something."""
    client, path = client_of(request.scope), request.scope["path"]
    if error.status == Unauthorized.status:
        core.refusals.wrong_key(client, path)
    elif error.status != Forbidden.status and request.method == "GET":
        return
    await core.refusals.admin_failed(
        AuditRecord(
            at_s=time.time(),
            actor=actor,
            verb=request.method,
            subject=path[:NAME_CHARS],
            detail=error.message,
            client=client,
            outcome=error.code,
        )
    )


def _refuse_unknown(request: Request, known: Sequence[str]) -> None:
    """Raises `BadRequest` for an unknown parameter; ignoring it would serve a different
    request."""
    for name in request.query_params:
        if name not in known:
            takes = f"it accepts {' and '.join(known)}" if known else "it accepts none"
            path = request.scope["path"]
            raise BadRequest(f"{path} has no parameter {name[:100]!r}; {takes}.", param=name[:100])


def as_router_error(error: Exception) -> RouterError:
    """Converts the error to the one that the router sends."""
    if isinstance(error, RouterError):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        return BadRequest(str(error.detail))
    if isinstance(error, registry_errors.Conflict):
        return Conflict(str(error))
    if isinstance(error, registry_errors.NotFound):
        return NotFound(str(error))
    if isinstance(error, registry_errors.RegistryClosed):
        return ShuttingDown()
    return RouterError(str(error))


def _invalid(error: RequestValidationError) -> BadRequest:
    first = error.errors()[0]
    param = ".".join(str(part) for part in first["loc"][1:])
    message = str(first["msg"]).removeprefix("Value error, ")
    return BadRequest(f"{param}: {message}." if param else f"{message}.", param=param or None)
