"""Access control of `/admin`, its audit log, and its error responses."""

import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from registry import audit
from registry import errors as registry_errors
from registry.db import WriteSession
from router.api.whole_responses import error_response
from router.auth import SCOPE_ADMIN, key_from_headers
from router.core import Core
from router.errors import BadRequest, Conflict, NotFound, RouterError, ShuttingDown
from router.types import Caller
from serving.http.exchange import mark_authenticated

T = TypeVar("T")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True, slots=True)
class Admin:
    """A caller with the scope admin, and the core that it acts on."""

    core: Core
    caller: Caller

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
        await audit.add(session, time.time(), self.caller.name, verb, subject, detail)


def admin_of(request: Request) -> Admin:
    admin = request.state.admin
    assert isinstance(admin, Admin)
    return admin


CurrentAdmin = Annotated[Admin, Depends(admin_of)]


def gated_route(core_of: Callable[[], Core]) -> type[APIRoute]:
    """Returns a route class that checks the key before the body is read, and sends errors in
    OpenAI's envelope."""

    class GatedRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            handle = super().get_route_handler()
            known = [field.alias for field in self.dependant.query_params]

            async def gated(request: Request) -> Response:
                try:
                    core = core_of()
                    key = key_from_headers(request.scope["headers"])
                    request.state.admin = Admin(core, core.keys.check(key, SCOPE_ADMIN))
                    mark_authenticated(request.scope)
                    _refuse_unknown(request, known)
                    return await handle(request)
                except (
                    RouterError,
                    registry_errors.RegistryError,
                    RequestValidationError,
                    HTTPException,
                ) as error:
                    return error_response(as_router_error(error))

            return gated

    return GatedRoute


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
