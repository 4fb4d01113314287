from __future__ import annotations

import json

import pytest

from node.protocol import api_errors
from router import errors, pairing_errors
from router.errors import RouterError

ALL = [
    value
    for value in {**vars(errors), **vars(pairing_errors)}.values()
    if isinstance(value, type) and issubclass(value, RouterError)
]


@pytest.mark.parametrize("kind", ALL)
def test_each_error_has_a_sentence_a_status_and_a_code(kind: type[RouterError]) -> None:
    own = kind if kind.__doc__ else kind.__bases__[0]
    assert own.__doc__ and (own is kind or own.__module__ == api_errors.__name__)
    error = kind()
    assert error.message.endswith(".") and "\n" not in error.message and "  " not in error.message
    assert 400 <= kind.status < 600
    assert kind.code == kind.code.lower() and " " not in kind.code
    assert kind.kind.endswith("_error")
    assert (kind.kind == "server_error") == (kind.status >= 500)


def test_the_tree_is_not_empty() -> None:
    assert len(ALL) > 15


def test_the_body_is_openai_s_envelope() -> None:
    error = errors.BadRequest("temperature: too hot.", param="temperature")
    assert json.loads(error.body()) == {
        "error": {
            "message": "temperature: too hot.",
            "type": "invalid_request_error",
            "param": "temperature",
            "code": "invalid_value",
        }
    }


def test_the_request_s_id_stands_beside_the_error() -> None:
    error = errors.NodeFailed()
    assert set(json.loads(error.body())) == {"error"}
    error.request_id = "req_1"
    assert json.loads(error.body())["request_id"] == "req_1"


def test_an_error_may_have_a_retry_after() -> None:
    assert errors.NoNodeReady(retry_after_s=5).retry_after_s == 5
    assert errors.NoNodeReady().retry_after_s is None
    assert json.loads(errors.NoNodeReady().body())["error"]["param"] is None


def test_an_error_may_report_where_in_the_queue_a_request_stood() -> None:
    error = errors.QueueFull(retry_after_s=12)
    assert error.standing() == {}
    error.position, error.estimated_wait_s = 257, 12.345
    fields = json.loads(error.body())["error"]
    assert (fields["code"], fields["type"]) == ("queue_full", "rate_limit_error")
    assert (fields["position"], fields["estimated_wait_s"]) == (257, 12.3)
