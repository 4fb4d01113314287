"""OpenAI's error envelope."""

import msgspec

from node.errors import NodeError

_encode = msgspec.json.Encoder().encode


def error_body(error: NodeError, request_id: str = "") -> bytes:
    """The JSON of a failure; `request_id`, where there is one, stands beside the error."""
    fields = {"message": error.message, "type": error.kind, "param": error.param}
    body: dict[str, object] = {"error": {**fields, "code": error.code}}
    if request_id:
        body["request_id"] = request_id
    return _encode(body)
