"""`router usage` and `audit`."""

from __future__ import annotations

import httpx
import pytest

from router.commands.access import reports
from router.commands.client import CommandFailed
from tests.router.commands.test_listings import SOUND, Played, show_usage


def test_a_time_is_a_length_before_now_or_a_day() -> None:
    assert reports.read_time(None, 1e6) is None
    assert reports.read_time("2h", 1e6) == 1e6 - 7200
    assert reports.read_time("7d", 1.0) == 0.0
    assert reports.read_time("1970-01-03", 1.0) == 2 * 86_400
    with pytest.raises(CommandFailed, match="'yesterday'"):
        reports.read_time("yesterday", 1.0)


def test_usage_is_shown_by_the_groups_that_are_asked_for(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    sums = {"requests": 2, "prompt_tokens": 1500, "cached_tokens": 1000}
    sums |= {"completion_tokens": 70, "reasoning_tokens": 30}
    row = {"key_id": "k1", "key": "ci", "key_revoked": True, "day": "2026-01-31", **sums}
    asked: list[httpx.QueryParams] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/registry"):
            return httpx.Response(200, json=SOUND)
        asked.append(request.url.params)
        return httpx.Response(200, json=[{**row, "cost": None}])

    show_usage(played(answer), "key", "day")
    assert asked[0].get_list("by") == ["key", "day"]
    head, line = [line for line in capsys.readouterr().out.splitlines() if "│" not in line][1:4:2]
    assert head.split()[:2] == ["Key", "Day"] and "Reasoning" in head
    assert line.split() == ["ci", "(revoked)", "2026-01-31", "2", "1,500", "1,000", "70", "30"]
    reports.show_usage(played(answer), ("key", "day"), (5.0, 6.0), "csv")
    assert capsys.readouterr().out == (
        "key_id,key,day,requests,prompt_tokens,cached_tokens,completion_tokens,reasoning_tokens,cost\n"
        "k1,ci,2026-01-31,2,1500,1000,70,30,\n"
    )
    assert (asked[1]["since_s"], asked[1]["until_s"]) == ("5.0", "6.0")


def test_usage_has_few_groups() -> None:
    assert reports.read_groups(None) == ["key", "model"]
    assert reports.read_groups(["team, day", "team"]) == ["team", "day"]
    with pytest.raises(CommandFailed, match="key, team, model, node or day, not 'user'"):
        reports.read_groups(["user"])


def test_the_audit_log_says_from_where_and_with_which_outcome(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"id": 1, "at_s": 1.0, "verb": "key.create", "subject": "ci", "detail": ""}
    rows = [
        {**entry, "actor": "admin", "client": "127.0.0.1", "outcome": "done"},
        {**entry, "actor": "", "client": "10.0.0.9", "outcome": "invalid_api_key"},
    ]
    reports.show_audit(
        played(lambda _request: httpx.Response(200, json=rows)), 5, None, as_json=False
    )
    text = capsys.readouterr().out
    assert "local" in text and "10.0.0.9" in text and "invalid_api_key: " in text
