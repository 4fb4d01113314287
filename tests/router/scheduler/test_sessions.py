"""The table of sessions."""

from __future__ import annotations

import pytest

from router.scheduler.sessions import FIRST_TOKENS, MAX_SESSIONS, NEW_PACE, TTL_S, Session, Sessions
from router.types import Hints
from tests.router.scheduler.fleet import a_ticket


def session(key: str, head: int = 1, node_id: str = "a", used_s: float = 0.0) -> Session:
    return Session(key, node_id, head, f"of {key} {head}", 400, 100, 0.0, NEW_PACE, used_s)


def test_a_hint_goes_before_a_chain_and_a_chain_before_a_parent() -> None:
    sessions = Sessions()
    ticket = a_ticket("1", 300, of=7, hints=Hints("own", parent="parent"))
    assert ticket.chain is not None
    assert sessions.find(ticket, 0.0) is None
    sessions.bind(session("parent", head=1))
    assert sessions.find(ticket, 0.0) == session("parent", head=1)
    sessions.bind(session("#x", head=ticket.chain.hashes[1]))
    found = sessions.find(ticket, 0.0)
    assert found is not None and found.key == "#x"
    sessions.bind(session("own", head=2))
    found = sessions.find(ticket, 0.0)
    assert found is not None and found.key == "own"


def test_a_session_that_moves_shows_where_it_was() -> None:
    sessions = Sessions()
    assert sessions.bind(session("s")) is None
    assert sessions.bind(session("s")) is None
    assert sessions.bind(session("s", node_id="b")) == "a"


def test_only_the_latest_chain_of_a_session_leads_to_it() -> None:
    sessions = Sessions()
    ticket = a_ticket("1", 200, of=7)
    assert ticket.chain is not None
    sessions.bind(session("#s", head=ticket.chain.head))
    assert sessions.key(ticket) == "#s"
    sessions.bind(session("#s", head=99))
    assert sessions.find(ticket, 0.0) is None


def test_what_goes_on_from_the_latest_response_of_a_session_belongs_to_it() -> None:
    sessions = Sessions()
    sessions.bind(session("#s", head=1))
    following = a_ticket("2", 200, of=7, follows="of #s 1")
    assert sessions.key(following) == "#s"
    assert sessions.find(following, 0.0) == session("#s", head=1)
    sessions.bind(session("#s", head=2))
    assert sessions.find(following, 0.0) is None
    sessions.bind(session("#t", head=3, used_s=TTL_S))
    assert sessions.key(a_ticket("3", 200, of=8, follows="of #s 2")) != "#s"


def test_a_request_without_chain_and_hint_is_a_session_of_its_own() -> None:
    sessions = Sessions()
    one, two = (a_ticket(name, 100, of=7) for name in "ab")
    assert sessions.key(one) == sessions.key(two)


def test_quiet_sessions_are_forgotten() -> None:
    sessions = Sessions()
    sessions.bind(session("s"))
    ticket = a_ticket("1", hints=Hints("s"))
    assert sessions.find(ticket, TTL_S - 1.0) is not None
    assert sessions.find(ticket, TTL_S) is None
    sessions.bind(session("t", head=2, used_s=TTL_S))
    assert len(sessions) == 1


def test_the_table_is_bounded() -> None:
    sessions = Sessions()
    for number in range(MAX_SESSIONS + 10):
        sessions.bind(session(f"{number}", head=number))
    assert len(sessions) == MAX_SESSIONS


def test_a_pace_follows_the_latest_turns() -> None:
    pace = NEW_PACE.after_turn(1000.0)
    assert FIRST_TOKENS < pace.tokens < 1000.0
    for _ in range(40):
        pace = pace.after_gap(2.0).after_turn(100.0)
    assert pace.turns_per_s == pytest.approx(0.5, rel=0.01)
    demand = pace.demand(2.0)
    assert demand.tokens_per_s == pytest.approx(100.0, rel=0.02)
    assert demand.squared_per_s == pytest.approx(20_000.0, rel=0.02)
