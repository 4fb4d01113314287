"""Tests what `router explain` reads, sends and prints."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.api.admin.explain_views import (
    AttemptRow,
    CostRow,
    DecidedRow,
    DecisionRow,
    RejectRow,
    RequestUsageRow,
)
from router.commands import console, explain
from router.commands.client import AdminClient, CommandFailed
from router.commands.explain import ExplainOptions
from router.records.decisions import TERMS
from serving.terminal.screen import Screen

Played = Callable[[Callable[[httpx.Request], httpx.Response]], AdminClient]


def cost(node: str, *, chosen: bool = False, excluded: str | None = None, **s: float) -> CostRow:
    terms = {"queue": 0.0, "prefill": 0.0, "restore": 0.0, "failure_penalty": 0.0, **s}
    return CostRow(
        node_id=f"id-{node}",
        node=node,
        chosen=chosen,
        excluded=excluded,
        terms_s=terms,
        total_s=sum(terms.values()),
        prompt_tokens=6100,
        cached_tokens=5800 if chosen else 0,
        memory_tokens=0,
        estimated=False,
    )


DECISION = DecisionRow(
    model="tiny",
    node="studio",
    waited_s=0.5,
    reason="studio costs 1.21 s; the next, [red]mini, 3.40 s.",
    costs=(
        cost("studio", chosen=True, prefill=1.21),
        cost("[red]mini", queue=1.0, prefill=2.4),
        cost("air", excluded="It cannot be reached."),
    ),
)
USAGE = RequestUsageRow(
    prompt_tokens=6123,
    cached_tokens=5811,
    completion_tokens=42,
    queue_s=0.0,
    prefill_s=1.33,
    decode_s=2.0,
    ttft_s=1.4,
    reason="stop",
)
SERVED = AttemptRow(
    decision=DECISION, expected_ttft_s=1.71, ttft_s=1.95, outcome="served", usage=USAGE
)
DECIDED = DecidedRow(
    request_id="r",
    path="/v1/chat/completions",
    requested_model="gpt",
    model="tiny",
    priority="default",
    arrived_ago_s=90.0,
    attempts=(SERVED,),
    rejected=None,
)


def past(played: Played, decided: DecidedRow, capsys: pytest.CaptureFixture[str]) -> str:
    client = played(lambda _request: httpx.Response(200, json=decided.model_dump()))
    explain.run(client, ExplainOptions(None, "r", None, None), as_json=False)
    return capsys.readouterr().out


def line(text: str, word: str) -> str:
    return next(each for each in text.splitlines() if word in each)


@pytest.fixture
def body(tmp_path: Path) -> Path:
    file = tmp_path / "request.json"
    file.write_text('{"model": "tiny"}')
    return file


def test_a_dry_run_prints_a_row_per_node_and_a_column_per_term_that_matters(
    played: Played, body: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = played(lambda _request: httpx.Response(200, json=DECISION.model_dump()))
    explain.run(client, ExplainOptions(body, None, None, None), as_json=False)
    text = capsys.readouterr().out
    assert line(text, "Node").split() == [
        *("Node", "queue", "prefill", "total", "cached", "/", "prompt")
    ]
    assert line(text, "studio *").split() == [
        *("studio", "*", "0.00", "1.21", "1.21", "5,800", "/", "6,100")
    ]
    assert line(text, "[red]mini  ").split()[1:4] == ["1.00", "2.40", "3.40"]
    assert line(text, "air") == "air: It cannot be reached."
    assert "queue: work that is ahead of it; prefill: its tokens that are not cached." in text
    assert DECISION.reason in text


def test_a_narrow_window_has_a_column_per_node(
    played: Played,
    body: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(console, "out", lambda: Screen(width=100))
    terms: Any = dict.fromkeys(TERMS.values(), 1.0)
    names = [f"mac-{number}" for number in range(9)]
    costs = (cost("studio", chosen=True, **terms), *(cost(name, **terms) for name in names))
    decision = DECISION.model_copy(update={"costs": costs})
    client = played(lambda _request: httpx.Response(200, json=decision.model_dump()))
    explain.run(client, ExplainOptions(body, None, None, None), as_json=False)
    text = capsys.readouterr().out
    heads = line(text, "studio *").split()
    assert heads[:3] == ["studio", "*", "mac-0"]
    assert line(text, "decode interference ").split()[2:] == ["1.00"] * (len(heads) - 1)
    assert line(text, "mac-8")
    table, _, _ = text.partition("Seconds until")
    assert max(map(len, table.splitlines())) <= 100


def test_every_term_has_a_meaning() -> None:
    assert list(explain.MEANINGS) == list(TERMS.values())


def test_path_session_and_body_are_sent(played: Played, body: Path) -> None:
    seen: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.path, json.loads(request.content)))
        return httpx.Response(200, json=DECISION.model_dump())

    explain.run(played(answer), ExplainOptions(body, None, "/v1/messages", "s1"), as_json=False)
    explain.run(played(answer), ExplainOptions(body, None, None, None), as_json=True)
    headers = {"x-session-id": "s1"}
    sent = {"path": "/v1/messages", "headers": headers, "body": {"model": "tiny"}}
    assert seen == [
        ("/admin/explain", sent),
        ("/admin/explain", {"body": {"model": "tiny"}}),
    ]


def test_a_body_may_be_read_from_standard_input(
    played: Played, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"model": "tiny"}')))
    client = played(lambda _request: httpx.Response(200, json=DECISION.model_dump()))
    explain.run(client, ExplainOptions(Path("-"), None, None, None), as_json=True)
    assert json.loads(capsys.readouterr().out)["node"] == "studio"


def test_a_past_request_compares_what_was_expected_with_what_was_measured(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    text = past(played, DECIDED, capsys)
    assert line(text, "Request r").endswith("gpt (now tiny), default, 1 min ago")
    assert "waited 0.50 s" in text
    assert line(text, "of them cached").split()[-2:] == ["5,800", "5,811"]
    assert line(text, "Prefill").split()[1:] == ["1.21", "s", "1.33", "s"]
    assert line(text, "First token").split()[2:] == ["1.71", "s", "1.95", "s"]
    assert "Outcome: served (stop), 42 tokens." in text


def test_what_is_a_guess_at_a_server_s_cache_is_marked_so(
    played: Played, body: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guess = cost("ollama", chosen=True, prefill=1.0).model_copy(update={"estimated": True})
    decision = DECISION.model_copy(update={"costs": (guess, cost("mini", prefill=2.0))})
    client = played(lambda _request: httpx.Response(200, json=decision.model_dump()))
    explain.run(client, ExplainOptions(body, None, None, None), as_json=False)
    text = capsys.readouterr().out
    assert "5,800 / 6,100 (estimated)" in line(text, "ollama *")
    assert "estimated" not in line(text, "mini")


def test_a_retry_shows_every_attempt_and_a_rejection_its_reason(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = SERVED.model_copy(update={"outcome": "node_failed", "usage": None, "ttft_s": None})
    running = failed.model_copy(update={"outcome": None})
    rejected = RejectRow(kind="queue_full", reason="Too many wait.", position=7, wait_s=3.0)
    changes = {"attempts": (failed, running), "rejected": rejected}
    text = past(played, DECIDED.model_copy(update=changes), capsys)
    assert "Attempt 1:" in text and "Attempt 2:" in text
    assert "Outcome: node failed; its node has not reported its usage." in text
    assert "It is still running." in text
    assert line(text, "First token").split()[-1] == "?"
    assert "Rejected (queue full): Too many wait. It stood at position 7." in text


@pytest.mark.parametrize(
    ("content", "word"),
    [("{", "is not JSON"), ("[1]", "is not a JSON object")],
)
def test_a_file_that_is_no_request_is_refused_with_what_it_should_contain(
    played: Played, tmp_path: Path, content: str, word: str
) -> None:
    file = tmp_path / "request.json"
    file.write_text(content)
    with pytest.raises(CommandFailed, match=word) as failed:
        explain.run(
            played(lambda _request: httpx.Response(500)),
            ExplainOptions(file, None, None, None),
            as_json=False,
        )
    assert explain.BODY_HINT in failed.value.message


def test_a_file_that_is_not_there_is_reported_as_such_and_no_more(
    played: Played, tmp_path: Path
) -> None:
    client = played(lambda _request: httpx.Response(500))
    with pytest.raises(CommandFailed) as failed:
        explain.run(client, ExplainOptions(tmp_path / "none", None, None, None), as_json=False)
    assert (
        failed.value.message == f"{tmp_path / 'none'} cannot be read (No such file or directory)."
    )


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        (ExplainOptions(None, None, None, None), "--request-id"),
        (ExplainOptions(Path("x"), "r", None, None), "--request-id"),
        (ExplainOptions(None, "r", "/v1/messages", None), "--path"),
        (ExplainOptions(None, "r", None, "s"), "--session"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    played: Played, wanted: ExplainOptions, word: str
) -> None:
    client = played(lambda _request: httpx.Response(500))
    with pytest.raises(CommandFailed, match=word):
        explain.run(client, wanted, as_json=False)


def test_the_router_s_own_sentence_is_shown(played: Played, body: Path) -> None:
    error = {"error": {"message": "No node of the fleet has the model 'tiny'."}}
    client = played(lambda _request: httpx.Response(404, json=error))
    with pytest.raises(CommandFailed, match="No node of the fleet"):
        explain.run(client, ExplainOptions(body, None, None, None), as_json=False)
