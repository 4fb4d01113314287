"""Responses of `/v1/*` that the router makes itself."""

import msgspec
from starlette.responses import Response

from node.protocol.paths import ApiDialect
from router.client.error_dialects import error_body, id_headers
from router.errors import RouterError
from serving.http.exchange import Send

JSON_HEADERS = [(b"content-type", b"application/json")]


async def send_json(send: Send, value: object) -> None:
    """Sends a value as a JSON response."""
    await send_bytes(send, 200, msgspec.json.encode(value), JSON_HEADERS)


async def send_error(
    send: Send, error: RouterError, dialect: ApiDialect = ApiDialect.OPENAI
) -> None:
    """Sends an error as an HTTP status with the dialect's envelope."""
    headers = JSON_HEADERS + error.headers()
    if error.request_id is not None:
        headers += id_headers(error.request_id, dialect)
    await send_bytes(send, error.status, error_body(error, dialect), headers)


def error_response(error: RouterError) -> Response:
    """Returns the response for an error of FastAPI's routes, in OpenAI's envelope."""
    headers = {name.decode(): value.decode() for name, value in error.headers()}
    return Response(error.body(), error.status, headers, "application/json")


async def send_bytes(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    """Sends a whole response; its length is added to the headers."""
    head = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
