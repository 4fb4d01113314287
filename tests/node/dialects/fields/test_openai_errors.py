"""Failures are told in OpenAI's envelope."""

import json

from node.dialects.fields.openai_errors import error_body
from node.errors import BadRequest, NodeError


def test_the_envelope_tells_message_type_field_and_code() -> None:
    assert json.loads(error_body(BadRequest("No.", param="n"))) == {
        "error": {
            "message": "No.",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_value",
        }
    }
    assert json.loads(error_body(NodeError()))["error"]["type"] == "server_error"


def test_the_requests_id_stands_beside_the_error() -> None:
    body = json.loads(error_body(NodeError(), "req_1"))
    assert body["request_id"] == "req_1"
    assert set(body) == {"error", "request_id"}
