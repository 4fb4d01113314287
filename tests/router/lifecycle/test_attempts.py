"""Tests the record of actions that were attempted."""

from __future__ import annotations

from router.lifecycle.attempts import RENEW_S, RETRY_S, Attempts, Pushes
from router.lifecycle.reconcile import LoadModel, PushPolicies, UnloadModel
from tests.fakes import FakeClock

LOAD, PUSH = LoadModel("n", "m"), PushPolicies("n", "i", {})


def test_what_failed_is_news_once_and_waits_for_its_time() -> None:
    clock = FakeClock(100.0)
    attempts = Attempts(clock)
    assert not attempts.must_wait(LOAD, is_new=False)
    assert attempts.on_failed(LOAD, "no room", 30.0)
    assert not attempts.on_failed(LOAD, "no memory", 30.0)
    assert attempts.must_wait(LOAD, is_new=False)
    clock.advance(30.0)
    assert not attempts.must_wait(LOAD, is_new=False)
    attempts.on_done(LOAD)
    assert attempts.on_failed(LOAD, "no room", 30.0)


def test_what_is_new_waits_only_where_one_like_it_failed() -> None:
    clock = FakeClock(100.0)
    attempts = Attempts(clock)
    attempts.on_done(PUSH)
    assert attempts.must_wait(PUSH, is_new=False)
    assert not attempts.must_wait(PUSH, is_new=True)
    attempts.on_failed(PUSH, "gone", RETRY_S)
    assert attempts.must_wait(PUSH, is_new=True)


def test_why_it_failed_is_known_by_node_or_of_any_until_it_is_done_or_the_node_gone() -> None:
    attempts = Attempts(FakeClock(100.0))
    attempts.on_failed(LOAD, "no room", 30.0)
    assert (
        attempts.failure(LoadModel, "m", "n") == attempts.failure(LoadModel, "m", "") == "no room"
    )
    for what, model, node_id in (
        (LoadModel, "m", "other"),
        (LoadModel, "x", "n"),
        (UnloadModel, "m", "n"),
    ):
        assert attempts.failure(what, model, node_id) is None
    attempts.on_done(LOAD)
    assert attempts.failure(LoadModel, "m", "n") is None
    attempts.on_failed(LOAD, "no room", 30.0)
    attempts.forget_node("n")
    assert attempts.failure(LoadModel, "m", "n") is None
    assert not len(attempts)


def test_policies_are_pushed_again_before_the_node_forgets_them() -> None:
    clock = FakeClock(100.0)
    pushes = Pushes(clock)
    pushes.on_sent(PUSH)
    clock.advance(RENEW_S - 1.0)
    assert pushes.fresh() == {"n": PUSH}
    clock.advance(1.0)
    assert pushes.fresh() == {}
    pushes.on_sent(PUSH)
    assert pushes.fresh() == {"n": PUSH}
    pushes.forget_node("n")
    assert pushes.fresh() == {}
