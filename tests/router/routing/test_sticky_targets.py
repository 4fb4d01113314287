"""Which target a session was answered by last."""

from __future__ import annotations

import json

import pytest

from node.protocol.chain.prefix import Chain, PrefixHasher, read_fields
from router.routing import sticky_targets
from router.routing.sticky_targets import TTL_S, StickyTargets, Turn
from router.types import Target
from tests.router.conftest import CHAT

A, B = Target("a"), Target("b", "n")
SCOPE = "ann/'auto'/"


def chain(*texts: str) -> Chain:
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    body = json.dumps({"model": "auto", "messages": messages}).encode()
    made = PrefixHasher().chain(read_fields(body), CHAT, "a")
    assert made is not None
    return made


def turn(*texts: str, scope: str = SCOPE, **named: str) -> Turn:
    return Turn(scope, chain=chain(*texts) if texts else None, **named)


def test_a_session_that_its_client_names_is_known_by_that_whatever_its_messages() -> None:
    table = StickyTargets()
    table.served(turn("hello", session="s"), B, 1.0)
    assert table.find(turn("something else", session="s"), 2.0) == B.key == "b@n"
    assert table.find(turn(session="s"), 2.0) == B.key
    assert table.find(turn("hello", session="t"), 2.0) == ""
    assert table.find(turn("hello", session="s", scope="bob/'auto'/"), 2.0) == ""
    table.served(turn("more", session="s"), A, 3.0)
    assert table.find(turn("hello", session="s"), 4.0) == A.key
    assert len(table) == 1


def test_a_session_without_a_name_is_known_by_what_it_goes_on_from() -> None:
    table = StickyTargets()
    table.served(turn("hello"), B, 1.0)
    assert table.find(turn("hello", "hi", "and then?"), 2.0) == B.key
    assert table.find(turn("hallo", "hi", "and then?"), 2.0) == ""
    assert table.find(turn("hello", "hi", "and then?", scope="bob/'auto'/"), 2.0) == ""
    table.served(turn("hello", "hi", "and then?"), A, 3.0)
    longer = turn("hello", "hi", "and then?", "nothing", "why?")
    assert table.find(longer, 4.0) == A.key


def test_equal_first_prompts_are_no_one_session() -> None:
    table = StickyTargets()
    table.served(turn("hello"), B, 1.0)
    assert table.find(turn("hello"), 2.0) == ""


def test_what_goes_on_from_a_stored_response_is_of_its_session() -> None:
    table = StickyTargets()
    table.served(turn("hello", stored_as="r1"), B, 1.0)
    assert table.find(turn("more", follows="r1", stored_as="r2"), 2.0) == B.key
    assert table.find(turn("more", follows="r9"), 2.0) == ""


def test_messages_far_back_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sticky_targets, "MOST_ITEMS", 3)
    table = StickyTargets()
    table.served(turn("hello"), B, 1.0)
    assert table.find(turn("hello", "a", "b"), 2.0) == B.key
    assert table.find(turn("hello", "a", "b", "c"), 2.0) == ""


def test_sessions_are_forgotten_when_they_are_quiet_or_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = StickyTargets()
    table.served(turn(session="s"), B, 0.0)
    assert table.find(turn(session="s"), TTL_S - 1) == B.key
    assert table.find(turn(session="s"), TTL_S) == ""
    table.served(turn(session="t"), B, TTL_S)
    assert len(table) == 1
    monkeypatch.setattr(sticky_targets, "MAX_KNOWN", 2)
    table.served(turn(session="u"), A, TTL_S + 1)
    table.served(turn(session="t"), A, TTL_S + 2)
    table.served(turn(session="v"), A, TTL_S + 3)
    assert table.find(turn(session="u"), TTL_S + 4) == ""
    assert table.find(turn(session="t"), TTL_S + 4) == A.key
    assert len(table) == 2
