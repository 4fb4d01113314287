"""Router and agent put their errors into the same envelopes."""

import json
from typing import Any

import pytest

from node.errors import BadRequest, NodeError
from node.protocol.error_envelopes import (
    Failure,
    anthropic_envelope,
    ollama_envelope,
    openai_envelope,
    response_error,
)
from router.errors import BadRequest as RouterBadRequest
from router.errors import RouterError

ERRORS: list[Failure] = [BadRequest("No.", param="n"), RouterBadRequest("No.", param="n")]


@pytest.mark.parametrize("error", ERRORS)
def test_ollama_s_clients_read_a_text(error: Failure) -> None:
    assert json.loads(ollama_envelope(error, {"position": 1})) == {
        "error": "No.",
        "type": "invalid_request_error",
        "code": "invalid_value",
        "param": "n",
        "position": 1,
    }


@pytest.mark.parametrize("error", ERRORS)
def test_openai_s_envelope_has_message_type_field_and_code(error: Failure) -> None:
    assert json.loads(openai_envelope(error)) == {
        "error": {
            "message": "No.",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_value",
        }
    }


@pytest.mark.parametrize("error", ERRORS)
def test_anthropic_s_envelope_has_a_type_and_a_message_that_names_the_field(error: Failure) -> None:
    fields = {"type": "invalid_request_error", "message": "n: No."}
    assert json.loads(anthropic_envelope(error)) == {"type": "error", "error": fields}
    named = json.loads(anthropic_envelope(BadRequest("n is wrong.", param="n")))
    assert named["error"]["message"] == "n is wrong."
    own_words = json.loads(anthropic_envelope(error, message="Other words."))
    assert own_words["error"]["message"] == "Other words."


@pytest.mark.parametrize("envelope", [openai_envelope, anthropic_envelope])
@pytest.mark.parametrize("error", [NodeError(), RouterError()])
def test_the_request_s_id_and_more_members_are_optional(envelope: Any, error: Failure) -> None:
    body = json.loads(envelope(error, "req_1", more={"position": 3}))
    assert body["request_id"] == "req_1"
    assert body["error"]["position"] == 3
    assert "request_id" not in json.loads(envelope(error))


def test_the_error_event_of_a_response_has_its_fields_twice() -> None:
    fields = {"code": "c", "message": "No.", "param": None}
    assert json.loads(response_error("server_error", fields, 7)) == {
        "type": "error",
        **fields,
        "sequence_number": 7,
        "error": {"type": "server_error", **fields},
    }
