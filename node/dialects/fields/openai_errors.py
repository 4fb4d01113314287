"""OpenAI's error envelope."""

import msgspec

from node.errors import NodeError

_encode = msgspec.json.Encoder().encode


def error_body(error: NodeError, request_id: str = "") -> bytes:
    """Returns the JSON of an error. `request_id`, unless empty, is a sibling of `error`."""
    fields = {"message": error.message, "type": error.kind, "param": error.param}
    body: dict[str, object] = {"error": {**fields, "code": error.code}}
    if request_id:
        body["request_id"] = request_id
    return _encode(body)
