from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from node.protocol.messages import Began, Finished, FinishReason
from router.quotas import Limits, Quota
from router.records import ledger as ledger_module
from router.records.ledger import Ledger
from router.records.outcomes import IGNORE, LedgerListener, UnreportedAttempt
from router.records.settlement import Settlement
from router.settings import UNREPORTED_AFTER_S
from router.types import Lease, Ticket, Tokens, Verdict
from tests.fakes import FakeClock
from tests.router.conftest import FINISHED, ORIGINS, lease, proven, ticket


class Reports(LedgerListener):
    """Keeps what the ledger reports."""

    def __init__(self) -> None:
        self.prefilled: list[Lease] = []
        self.verdicts: list[Verdict] = []
        self.disconnected: list[Verdict] = []
        self.refused: list[Verdict] = []
        self.used: list[tuple[str, Tokens | None, float | None]] = []

    def on_prefilled(self, lease: Lease) -> None:
        self.prefilled.append(lease)

    def on_verdict(self, verdict: Verdict, ticket: Ticket) -> None:
        self.verdicts.append(verdict)

    def on_disconnected(self, verdict: Verdict, ticket: Ticket) -> None:
        self.disconnected.append(verdict)

    def on_used(
        self, ticket: Ticket, lease: Lease, tokens: Tokens | None, gap_s: float | None
    ) -> None:
        self.used.append((ticket.request_id, tokens, gap_s))

    def on_refused(self, verdict: Verdict) -> None:
        self.refused.append(verdict)


def ledger_with(
    *requests: str,
    reports: LedgerListener = IGNORE,
    reported: bool = True,
) -> Ledger:
    ledger = Ledger(ORIGINS, reports, wall_clock=FakeClock(500.0))
    for name in requests:
        ledger.opened(ticket(name), lease(name), "mini", "i1", reported=reported)
    return ledger


def unfinished(ledger: Ledger) -> list[str]:
    """Ids of the requests that a shutdown would write without usage records."""
    ledger.close_all()
    return [row.request_id for row in ledger.pop_rows()]


def test_the_origin_names_router_and_key() -> None:
    assert ledger_with().origins.of(ticket().caller) == "router-1/key-1"


@pytest.mark.parametrize("report_first", [True, False])
def test_a_reported_request_is_one_row_with_the_node_s_numbers(report_first: bool) -> None:
    ledger = ledger_with("r")
    if report_first:
        ledger.on_finished("n", "i1", FINISHED)
    ledger.ended(lease(), 10.0, "served")
    if not report_first:
        assert ledger.pop_rows() == []
        ledger.on_finished("n", "i1", FINISHED)
    ledger.expire(10.0 + 2 * UNREPORTED_AFTER_S)
    (row,) = ledger.pop_rows()
    assert (row.request_id, row.node_id, row.instance_id, row.seq) == ("r", "n", "i1", 7)
    assert (row.key_id, row.model, row.reason) == ("key-1", "m", "stop")
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (20, 4, 11)
    assert (row.reasoning_tokens, row.ttft_s, row.decode_s) == (2, 0.25, 2.0)
    assert row.finished_at_s == 99.0
    assert unfinished(ledger) == []


def test_what_an_attempt_used_is_passed_on_once() -> None:
    reports = Reports()
    ledger = ledger_with("r", "refused", reports=reports)
    for _ in range(2):
        ledger.on_finished("n", "i1", FINISHED)
    refused = replace(FINISHED, request_id="refused", reason=FinishReason.REFUSED)
    ledger.on_finished("n", "i1", proven(refused))
    assert reports.used == [("r", Tokens(20, 4, 11, 2), 0.2)]


def test_the_gap_between_a_third_party_server_s_tokens_is_measured_by_the_router() -> None:
    reports = Reports()
    ledger = ledger_with("counted", "streamed", "whole", reports=reports, reported=False)
    for name in ("counted", "streamed"):
        ledger.began(lease(name), 1.0)
    ledger.ended(lease("counted"), 3.0, "served", Tokens(9, 0, 5), 3)
    ledger.ended(lease("streamed"), 3.0, "cancelled", None, 3)
    ledger.ended(lease("whole"), 3.0, "served", Tokens(9, 0, 5))
    assert reports.used == [
        ("counted", Tokens(9, 0, 5), 0.5),
        ("streamed", None, 1.0),
        ("whole", Tokens(9, 0, 5), None),
    ]


def test_the_end_of_a_prefill_is_passed_on_for_our_own_open_requests_only() -> None:
    reports = Reports()
    ledger = ledger_with("r", reports=reports)
    for node_id, instance_id, request_id, origin in (
        ("n", "i1", "r", "router-2/key-1"),
        ("n", "i1", "x", "router-1/key-1"),
        ("n", "i0", "r", "router-1/key-1"),
        ("b", "i1", "r", "router-1/key-1"),
    ):
        ledger.on_began(node_id, instance_id, Began(request_id, origin))
    assert reports.prefilled == []
    ledger.on_began("n", "i1", Began("r", "router-1/key-1"))
    assert reports.prefilled == [lease("r")]


@pytest.mark.parametrize("report_first", [True, False])
@pytest.mark.parametrize(
    ("outcome", "reason", "failed"),
    [
        ("served", FinishReason.STOP, False),
        ("served", FinishReason.LENGTH, False),
        ("served", FinishReason.ERROR, True),
        ("served", FinishReason.CANCELLED, None),
        ("cancelled", FinishReason.CANCELLED, None),
        ("cancelled", FinishReason.ERROR, True),
        ("deadline_exceeded", FinishReason.CANCELLED, None),
        ("deadline_exceeded", FinishReason.ERROR, True),
        ("node_failed", FinishReason.ERROR, None),
        ("refused", FinishReason.ERROR, None),
    ],
)
def test_the_node_s_own_report_decides_where_the_relay_saw_nothing_wrong(
    report_first: bool, outcome: str, reason: FinishReason, failed: bool | None
) -> None:
    reports = Reports()
    ledger = ledger_with("r", reports=reports)
    if not report_first:
        ledger.ended(lease(), 10.0, outcome)
    finished = msgspec.structs.replace(FINISHED, reason=reason)
    ledger.on_finished("n", "i1", finished)
    if report_first:
        assert reports.verdicts == []
        ledger.ended(lease(), 10.0, outcome)
    assert reports.verdicts == (
        [] if failed is None else [Verdict(lease(), 10.0, failed, finished)]
    )
    assert len(ledger.pop_rows()) == 1
    assert unfinished(ledger) == []


@pytest.mark.parametrize("report_first", [True, False])
@pytest.mark.parametrize("outcome", ["served", "refused", "cancelled"])
def test_accounts_of_what_was_refused_imply_nothing_of_the_node_and_count_no_tokens(
    report_first: bool, outcome: str
) -> None:
    reports = Reports()
    ledger = ledger_with("r", reports=reports)
    if not report_first:
        ledger.ended(lease(), 10.0, outcome)
    finished = msgspec.structs.replace(FINISHED, reason=FinishReason.REFUSED)
    ledger.on_finished("n", "i1", finished)
    if report_first:
        ledger.ended(lease(), 10.0, outcome)
    assert reports.refused == [Verdict(lease(), 10.0, failed=False, usage=finished)]
    (row,) = ledger.pop_rows()
    assert (row.reason, row.prompt_tokens, row.seq) == ("refused", None, 7)


def test_a_request_that_is_accounted_for_and_still_runs_at_shutdown_is_one_row() -> None:
    ledger = ledger_with("r")
    ledger.on_finished("n", "i1", FINISHED)
    ledger.close_all()
    assert [row.seq for row in ledger.pop_rows()] == [7]
    assert unfinished(ledger) == []


def test_a_request_whose_node_died_is_written_without_counts() -> None:
    ledger = ledger_with("r")
    ledger.ended(lease(), 10.0, "node_failed")
    ledger.expire(10.0 + UNREPORTED_AFTER_S - 0.1)
    assert ledger.pop_rows() == []
    ledger.expire(10.0 + UNREPORTED_AFTER_S)
    (row,) = ledger.pop_rows()
    assert (row.reason, row.prompt_tokens, row.ttft_s) == ("node_failed", None, None)
    assert (row.instance_id, row.seq, row.finished_at_s) == ("i1", 0, 500.0)
    assert unfinished(ledger) == []


def test_a_request_whose_caller_left_before_it_had_a_node_is_a_usage_record_without_one() -> None:
    ledger = ledger_with()
    ledger.left(ticket("r"))
    (row,) = ledger.pop_rows()
    assert (row.request_id, row.node_id, row.instance_id, row.seq) == ("r", "", "", 0)
    assert (row.key_id, row.model, row.reason) == ("key-1", "m", "cancelled")
    assert (row.prompt_tokens, row.completion_tokens, row.finished_at_s) == (None, None, 500.0)
    assert row.cost is None


def test_a_request_that_still_runs_never_expires() -> None:
    ledger = ledger_with("r")
    ledger.expire(1e9)
    assert ledger.pop_rows() == []
    assert unfinished(ledger) == ["r"]


def test_requests_expire_in_the_order_of_their_ends() -> None:
    ledger = ledger_with("one", "two")
    ledger.ended(lease("two"), 0.0, "served")
    ledger.ended(lease("one"), 5.0, "served")
    ledger.expire(UNREPORTED_AFTER_S)
    assert [row.request_id for row in ledger.pop_rows()] == ["two"]
    ledger.expire(UNREPORTED_AFTER_S + 5.0)
    assert [row.request_id for row in ledger.pop_rows()] == ["one"]


def test_a_retry_on_the_same_node_does_not_block_the_others() -> None:
    ledger = ledger_with("again", "other")
    ledger.ended(lease("again"), 0.0, "node_failed")
    ledger.opened(ticket("again"), lease("again", attempt=2), "mini", "i1", reported=True)
    ledger.ended(lease("other"), 1.0, "served")
    ledger.expire(1.0 + UNREPORTED_AFTER_S)
    assert [row.request_id for row in ledger.pop_rows()] == ["again", "other"]
    ledger.ended(lease("again", attempt=2), 50.0, "served")
    ledger.expire(50.0 + UNREPORTED_AFTER_S)
    (row,) = ledger.pop_rows()
    assert (row.request_id, row.reason) == ("again.2", "served")


CANCELLED = msgspec.structs.replace(FINISHED, seq=6, reason=FinishReason.CANCELLED)
AGAIN = proven(msgspec.structs.replace(FINISHED, request_id="r.2"))


@pytest.mark.parametrize("report_first", [True, False])
def test_each_attempt_at_a_node_is_accounted_for_by_itself(report_first: bool) -> None:
    reports = Reports()
    ledger = ledger_with("r", reports=reports)
    ledger.ended(lease(), 5.0, "node_failed")
    again = lease(attempt=2)
    ledger.opened(ticket(), again, "mini", "i1", reported=True)
    if report_first:
        ledger.on_finished("n", "i1", AGAIN)
    ledger.on_finished("n", "i1", CANCELLED)  # the node was still at it
    ledger.ended(again, 10.0, "served")
    if not report_first:
        ledger.on_finished("n", "i1", AGAIN)
    assert reports.verdicts == [Verdict(again, 10.0, failed=False, usage=AGAIN)]
    rows = {row.request_id: row.reason for row in ledger.pop_rows()}
    assert rows == {"r": "cancelled", "r.2": "stop"}
    assert unfinished(ledger) == []


def test_an_abandoned_answer_reports_what_was_cached_once_it_had_begun() -> None:
    reports = Reports()
    ledger = ledger_with("r", "s", reports=reports)
    for name in ("r", "s"):
        ledger.ended(lease(name), 5.0, "cancelled")
    ledger.on_finished("n", "i1", CANCELLED)
    unbegun = proven(msgspec.structs.replace(CANCELLED, request_id="s", ttft_s=None))
    ledger.on_finished("n", "i1", unbegun)
    assert reports.verdicts == []
    assert reports.disconnected == [Verdict(lease("r"), 5.0, failed=False, usage=CANCELLED)]


def test_a_foreign_server_s_request_is_written_at_its_end() -> None:
    ledger = ledger_with("r", reported=False)
    ledger.ended(lease(), 10.0, "served")
    (row,) = ledger.pop_rows()
    assert (row.reason, row.completion_tokens) == ("served", None)
    assert unfinished(ledger) == []


def test_the_end_of_an_unknown_request_is_passed_over() -> None:
    ledger = ledger_with()
    ledger.ended(lease("x"), 1.0, "served")
    assert ledger.pop_rows() == []


@pytest.mark.parametrize("origin", ["router-2/key-1", "router-10/key-1", "", "router-1"])
def test_accounts_of_other_routers_are_ignored_on_replay(origin: str) -> None:
    ledger = ledger_with("r")
    ledger.on_finished("n", "i1", msgspec.structs.replace(FINISHED, origin=origin))
    assert ledger.pop_rows() == []
    assert unfinished(ledger) == ["r"]


@pytest.mark.parametrize(
    "changes",
    [
        {"request_id": "never"},
        {"model": "other"},
        {"origin": "router-1/key-2"},
        {"proof": ""},
        {"cached_tokens": 21},
        {"reasoning_tokens": 12},
    ],
    ids=str,
)
def test_accounts_of_what_a_node_was_never_given_or_that_cannot_be_so_are_dropped(
    changes: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    ledger = ledger_with("r")
    for _ in range(100):
        ledger.on_finished("n", "i1", msgspec.structs.replace(FINISHED, **changes))
    ledger.on_finished("b", "i1", FINISHED)
    assert ledger.pop_rows() == []
    assert len([line for line in caplog.messages if "usage record of node n" in line]) == 1
    assert len([line for line in caplog.messages if "usage record of node b" in line]) == 1
    ledger.ended(lease(), 10.0, "served")
    ledger.expire(10.0 + UNREPORTED_AFTER_S)
    (row,) = ledger.pop_rows()
    assert (row.request_id, row.prompt_tokens) == ("r", None)


def test_accounts_replayed_after_a_restart_of_the_router_are_rows() -> None:
    ledger = ledger_with()
    ledger.on_finished("n", "i1", FINISHED)
    assert [row.request_id for row in ledger.pop_rows()] == ["r"]


def test_rows_are_handed_out_once_and_given_back_in_order() -> None:
    ledger = ledger_with("one", "two", reported=False)
    ledger.ended(lease("one"), 1.0, "served")
    rows = ledger.pop_rows()
    assert ledger.pop_rows() == []
    ledger.ended(lease("two"), 1.0, "served")
    ledger.push_back_rows(rows)
    assert [row.request_id for row in ledger.pop_rows()] == ["one", "two"]


def test_of_too_many_rows_that_wait_the_oldest_are_lost_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger_module, "MOST_ROWS", 3)
    names = ["a", "b", "c", "d", "e"]
    ledger = ledger_with(*names, reported=False)
    for name in names:
        ledger.ended(lease(name), 1.0, "served")
    assert [row.request_id for row in ledger.pop_rows(2)] == ["a", "b"]
    rows = ledger.pop_rows(9)
    assert (ledger.waiting_rows, ledger.lost_rows) == (0, 0)
    ledger.push_back_rows(rows + rows[:1])
    assert (ledger.waiting_rows, ledger.lost_rows) == (3, 1)
    assert [row.request_id for row in ledger.pop_rows(9)] == ["d", "e", "c"]


def test_at_shutdown_every_open_request_is_written() -> None:
    ledger = ledger_with("running", "ended")
    ledger.ended(lease("ended"), 1.0, "cancelled")
    ledger.close_all()
    reasons = {row.request_id: row.reason for row in ledger.pop_rows()}
    assert reasons == {"running": "unreported", "ended": "cancelled"}
    ledger.expire(1e9)
    assert ledger.pop_rows() == []


class Limited(Settlement):
    """Keeps what the ledger reports of requests whose caller has limits."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def opened(self, ticket: Ticket) -> None:
        self.seen.append(f"opened {ticket.request_id}")

    def reported(self, ticket: Ticket, usage: Finished) -> None:
        self.seen.append(f"used {usage.prompt_tokens} + {usage.completion_tokens}")

    def unreported(self, ticket: Ticket, attempt: UnreportedAttempt) -> None:
        self.seen.append(f"{attempt.outcome} {attempt.events}")


def limited() -> Ticket:
    caller = replace(ticket().caller, quotas=(Quota("k", "This API key", Limits()),))
    return ticket("r", caller=caller)


@pytest.mark.parametrize("report_first", [True, False])
def test_each_attempt_of_a_caller_with_limits_is_reported_once(report_first: bool) -> None:
    listener = Limited()
    ledger = Ledger(ORIGINS, settlement=listener)
    ledger.opened(limited(), lease(), "mini", "i1", reported=True)
    if not report_first:
        ledger.ended(lease(), 10.0, "served")
    for _ in range(2):
        ledger.on_finished("n", "i1", FINISHED)
    if report_first:
        ledger.ended(lease(), 10.0, "served")
    ledger.close_all()
    assert listener.seen == ["opened r", "used 20 + 11"]


def test_an_attempt_without_a_record_is_charged_with_its_events() -> None:
    listener = Limited()
    ledger = Ledger(ORIGINS, settlement=listener)
    ledger.opened(limited(), lease(), "ollama", "", reported=False)
    ledger.ended(lease(), 10.0, "cancelled", None, 7)
    assert listener.seen == ["opened r", "cancelled 7"]


def test_a_caller_without_limits_is_not_reported() -> None:
    listener = Limited()
    ledger = Ledger(ORIGINS, settlement=listener)
    ledger.opened(ticket("r"), lease(), "mini", "i1", reported=True)
    ledger.on_finished("n", "i1", FINISHED)
    ledger.ended(lease(), 10.0, "served")
    assert listener.seen == []
