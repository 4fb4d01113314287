"""The lines of `--log-requests`."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from router.errors import LimitExceeded, Unauthorized
from router.records.ledger import Ledger
from router.records.request_log import EarlyRequest, RequestLog
from router.types import Tokens
from serving.logs.logs import REQUESTS
from tests.router.conftest import FINISHED, ORIGINS, lease, ticket

TRACE = "0af7651916cd43dd8448eb211c80319c"
TICKET = ticket(requested_model="fast", trace=f"traceparent: 00-{TRACE}-b7ad6b7169203331-01\r\n")
LINE = (
    "chat/completions fast on mini for ann: 200 stop, 20 + 11 tokens (4 cached, 2 reasoning), "
    "queue 0.10 s, first after 0.25 s, total 2.50 s, 5.0 tokens/s"
)


@pytest.fixture(autouse=True)
def propagated(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, REQUESTS)
    monkeypatch.setattr(logging.getLogger(REQUESTS), "propagate", True)


def begun(*, is_on: bool = True) -> RequestLog:
    log = RequestLog(is_on=is_on)
    log.begin(TICKET)
    log.sent(lease(), "mini")
    return log


@pytest.mark.parametrize("report_first", [True, False])
def test_a_request_is_one_line_once_its_response_and_its_usage_are_known(
    caplog: pytest.LogCaptureFixture, report_first: bool
) -> None:
    log = begun()
    if report_first:
        log.reported(lease(), FINISHED)
    log.ended(TICKET, 200, "", 2.5)
    if not report_first:
        assert caplog.messages == []
        log.reported(lease(), FINISHED)
    log.reported(lease(), FINISHED)
    log.close()
    assert caplog.messages == [LINE]


def test_a_line_has_its_parts_and_the_request_s_id_for_a_log_of_objects(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = begun()
    log.reported(lease(), FINISHED)
    log.ended(TICKET, 200, "", 2.5)
    (record,) = caplog.records
    assert (vars(record)["request_id"], vars(record)["trace_id"]) == ("r", TRACE)
    assert vars(record)["request"] == {
        "path": "/v1/chat/completions",
        "key": "ann",
        "model": "fast",
        "node": "mini",
        "attempts": 1,
        "status": 200,
        "outcome": "stop",
        "prompt_tokens": 20,
        "cached_tokens": 4,
        "completion_tokens": 11,
        "reasoning_tokens": 2,
        "queue_s": 0.1,
        "ttft_s": 0.25,
        "total_s": 2.5,
        "tokens_per_s": 5.0,
    }


def test_the_line_of_a_retried_request_is_about_its_last_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = begun()
    log.sent(lease(attempt=2), "studio")
    log.ended(TICKET, 200, "", 3.0)
    log.reported(lease(attempt=2), replace(FINISHED, request_id="r.2"))
    assert caplog.messages == []
    log.unreported(lease(), "node_failed", None, None)
    (line,) = caplog.messages
    assert line.startswith("chat/completions fast on studio for ann: 200 stop, 20 + 11 tokens (")
    assert line.endswith(", 2 attempts")


def test_a_request_that_no_node_could_serve_has_the_error_s_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = RequestLog(is_on=True)
    log.begin(TICKET)
    log.ended(TICKET, 429, "queue_full", 0.75)
    assert caplog.messages == ["chat/completions fast for ann: 429 queue_full, total 0.75 s"]


def test_the_tokens_of_a_third_party_server_are_those_that_it_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = begun()
    log.unreported(lease(), "served", Tokens(9, 3, 4, 1), 0.5)
    log.ended(TICKET, 200, "", 1.0)
    assert caplog.messages == [
        "chat/completions fast on mini for ann: 200 served, 9 + 4 tokens (3 cached, 1 reasoning), "
        "queue 0.00 s, first after 0.50 s, total 1.00 s"
    ]


def test_what_never_had_a_ticket_is_logged_with_its_status(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = RequestLog(is_on=True)
    limited = LimitExceeded(limit="tokens_per_day")
    limited.model = "m" * 1000
    log.refused(EarlyRequest("/v1/responses", "ann", "", 0.0), limited)
    log.refused(EarlyRequest("/v1/" + "x" * 1000, "", "", 0.0), Unauthorized())
    log.left(EarlyRequest("/v1/messages", "ann", "", 1.0))
    first, second, third = caplog.messages
    assert first == f"responses {'m' * 256} for ann: 429 tokens_per_day, total 0.00 s"
    assert second.endswith("x without a valid key: 401 invalid_api_key, total 0.00 s")
    assert len(second) < 400
    assert third == "messages for ann: disconnected, total 1.00 s"


def test_requests_are_logged_only_where_configured(caplog: pytest.LogCaptureFixture) -> None:
    log = begun(is_on=False)
    log.refused(EarlyRequest("/v1/responses", "ann", "", 0.0), Unauthorized())
    log.left(EarlyRequest("/v1/responses", "ann", "", 0.0))
    log.begin(ticket("other"))
    log.ended(ticket("other"), 200, "", 1.0)
    assert caplog.messages == []
    log.is_on = True  # by a reload, which is for open requests, too
    log.reported(lease(), FINISHED)
    log.ended(TICKET, 200, "", 2.5)
    log.close()
    assert caplog.messages == [LINE]


def test_at_shutdown_lines_are_written_without_usage(caplog: pytest.LogCaptureFixture) -> None:
    log = begun()
    log.begin(ticket("open"))
    log.ended(TICKET, 200, "", 1.0)
    log.close()
    assert caplog.messages == [
        "chat/completions fast on mini for ann: 200 ended, queue 0.00 s, total 1.00 s"
    ]


def test_the_ledger_passes_on_what_it_learns(caplog: pytest.LogCaptureFixture) -> None:
    log = RequestLog(is_on=True)
    ledger = Ledger(ORIGINS, request_log=log)
    for name, reported in (("r", True), ("foreign", False)):
        each = ticket(name)
        log.begin(each)
        ledger.opened(each, lease(name), "mini", "i1", reported=reported)
        ledger.began(lease(name), 0.5)
        ledger.ended(lease(name), 1.0, "served", None if reported else Tokens(9, 3, 4, 1))
        log.ended(each, 200, "", 1.0)
    ledger.on_finished("n", "i1", FINISHED)
    foreign, own = caplog.messages
    assert "9 + 4 tokens (3 cached, 1 reasoning)" in foreign and "first after 0.50 s" in foreign
    assert "20 + 11 tokens (4 cached, 2 reasoning)" in own and "first after 0.25 s" in own
