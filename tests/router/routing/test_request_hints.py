"""Tests the reading of a request's session, class and deadline."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from node.protocol.chain.prefix import read_fields
from router.errors import BadRequest, Forbidden
from router.routing.request_hints import MAX_ID_CHARS, RoutingHeaders, hints, read_headers
from router.types import Caller, Hints, Priority

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
CLAUDE_CODE = {"x-claude-code-session-id": "S"}
UUID = "0b0f5c36-9bb1-4f0c-8c2e-0d6f1f3e7a11"


def caller(owner: str = "1234567890", priority: Priority = Priority.DEFAULT) -> Caller:
    return Caller("k", "key", frozenset(("inference",)), owner, priority=priority)


def read(priority: Priority = Priority.DEFAULT, /, **headers: str) -> RoutingHeaders:
    raw = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    return read_headers([(b"host", b"x"), *raw], caller(priority=priority))


def hinted(
    body: dict[str, Any],
    path: str = CHAT,
    routing: RoutingHeaders | None = None,
    owner: str = "o",
    model: str = "m",
) -> Hints:
    fields = read_fields(json.dumps({"model": "its alias", **body}).encode())
    return hints(routing or RoutingHeaders(), fields, path, caller(owner), model)


def scoped(session: str, parent: str = "") -> Hints:
    return Hints(f"o/'m'/{session}" if session else "", f"o/'m'/{parent}" if parent else "")


# --- sessions by headers ---


@pytest.mark.parametrize(
    ("headers", "session", "parent"),
    [
        ({}, "", ""),
        ({"x-session-id": ""}, "", ""),
        ({"x-session-id": " S "}, "S", ""),
        ({"x-session-id": "S", "x-parent-session-id": "P"}, "S", "P"),
        ({"x-parent-session-id": "P"}, "", "P"),
        (CLAUDE_CODE, "S", ""),
        ({**CLAUDE_CODE, "x-claude-code-agent-id": "A"}, "S/A", "S"),
        (
            {
                **CLAUDE_CODE,
                "x-claude-code-agent-id": "A",
                "x-claude-code-parent-agent-id": "B",
            },
            "S/A",
            "S/B",
        ),
        ({**CLAUDE_CODE, "x-claude-code-parent-agent-id": "B"}, "S", ""),
        ({**CLAUDE_CODE, "x-session-id": "own"}, "own", ""),
        ({"session-id": "S"}, "S", ""),
        ({"session-id": "S", "thread-id": "S"}, "S", ""),
        ({"session-id": "S", "thread-id": "T"}, "T", "S"),
        ({"session-id": "S", "thread-id": "T", "x-codex-parent-thread-id": "U"}, "T", "U"),
    ],
)
def test_headers_name_a_session_and_its_parent(
    headers: dict[str, str], session: str, parent: str
) -> None:
    headers_read = read(**headers)
    assert (headers_read.session, headers_read.parent) == (session, parent)


def test_without_headers_it_is_the_key_s_own_class_and_no_deadline() -> None:
    assert read() == RoutingHeaders()
    assert read(Priority.BATCH) == RoutingHeaders(priority=Priority.BATCH)
    assert read(Priority.BATCH, x_session_id="S") == RoutingHeaders("S", priority=Priority.BATCH)


# --- class, deadline, decision ---


def test_a_caller_may_ask_for_its_class_or_a_worse_one() -> None:
    assert read(x_fleet_priority="default").priority is Priority.DEFAULT
    assert read(x_fleet_priority="Batch").priority is Priority.BATCH
    best = read(Priority.INTERACTIVE, x_fleet_priority="interactive")
    assert best.priority is Priority.INTERACTIVE
    with pytest.raises(Forbidden, match=r"x-fleet-priority: .* of class default at best\."):
        read(x_fleet_priority="interactive")


@pytest.mark.parametrize("value", ["", "high", "0"])
def test_an_unknown_class_is_refused_by_its_header(value: str) -> None:
    with pytest.raises(BadRequest, match="interactive, default or batch") as raised:
        read(x_fleet_priority=value)
    assert raised.value.param == "x-fleet-priority"


def test_a_deadline_is_in_seconds() -> None:
    assert read(x_fleet_deadline_s="1.5").deadline_after_s == 1.5
    assert read(x_fleet_deadline_s="86400").deadline_after_s == 86_400.0
    assert read(x_session_id="S").deadline_after_s == math.inf


@pytest.mark.parametrize("value", ["", "0", "-1", "nan", "inf", "86401", "1_0", "1e3", "soon"])
def test_what_is_no_deadline_is_refused_by_its_header(value: str) -> None:
    with pytest.raises(BadRequest, match="number of seconds") as raised:
        read(x_fleet_deadline_s=value)
    assert raised.value.param == "x-fleet-deadline-s"


@pytest.mark.parametrize(
    ("value", "wanted"), [("1", True), ("true", True), ("TRUE", True), ("0", False), ("", False)]
)
def test_the_decision_is_shown_to_those_who_request_it(value: str, wanted: bool) -> None:
    assert read(x_fleet_decision=value).shows_decision is wanted


# --- sessions by bodies ---


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", RESPONSES])
def test_openai_s_bodies_name_a_session_or_a_person(path: str) -> None:
    assert hinted({"prompt_cache_key": "S", "user": "U"}, path) == scoped("S")
    assert hinted({"user": "U"}, path) == scoped("", "U")
    assert hinted({"metadata": {"user_id": "U"}}, path) == Hints()


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("U", scoped("", "U")),
        (f"user_0a_account__session_{UUID}", scoped(UUID)),
        (json.dumps({"device_id": "d", "account_uuid": "", "session_id": UUID}), scoped(UUID)),
        ("{}", scoped("", "{}")),
        ('{"session_id": 7}', scoped("", '{"session_id": 7}')),
        ("u_session_", scoped("", "u_session_")),
    ],
)
def test_a_message_s_user_is_a_person_unless_claude_code_names_a_session(
    user: str, expected: Hints
) -> None:
    assert hinted({"metadata": {"user_id": user}}, MESSAGES) == expected


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"metadata": None},
        {"metadata": 7},
        {"metadata": {"user_id": None}},
        {"metadata": {"user_id": ["U"]}},
        {"user": "U", "prompt_cache_key": "S"},
    ],
)
def test_a_message_s_body_without_a_user_names_nothing(body: dict[str, Any]) -> None:
    assert hinted(body, MESSAGES) == Hints()


@pytest.mark.parametrize("value", [None, 7, "", {"a": 1}])
def test_what_is_no_text_names_nothing(value: object) -> None:
    assert hinted({"prompt_cache_key": value, "user": value}) == Hints()


def test_a_text_that_cannot_be_read_names_nothing() -> None:
    fields = read_fields(b'{"model": "m", "user": "\xff"}')
    assert hints(RoutingHeaders(), fields, CHAT, caller(), "m") == Hints()


def test_a_header_goes_before_the_body() -> None:
    assert hinted({"prompt_cache_key": "B", "user": "U"}, routing=RoutingHeaders("S")) == scoped(
        "S"
    )
    assert hinted({"prompt_cache_key": "B"}, routing=RoutingHeaders(parent="P")) == scoped("B", "P")
    assert hinted({"user": "U"}, routing=RoutingHeaders(parent="P")) == scoped("", "P")


# --- names ---


def test_callers_and_models_have_sessions_of_their_own() -> None:
    body = {"prompt_cache_key": "S"}
    assert hinted(body) == hinted(body)
    assert hinted(body) != hinted(body, owner="another")
    assert hinted(body) != hinted(body, model="another")
    assert hinted(body) == hinted({**body, "model": "another alias"})


def test_a_long_name_is_known_by_its_hash() -> None:
    long = "x" * (MAX_ID_CHARS + 1)
    named = hinted({"prompt_cache_key": long}).session
    assert len(named) <= len("o/'m'/") + MAX_ID_CHARS
    assert named != hinted({"prompt_cache_key": long + "x"}).session
    assert hinted({}, routing=RoutingHeaders(long)).session == named
