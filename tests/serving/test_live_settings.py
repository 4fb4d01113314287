"""Settings that change while the router runs."""

from dataclasses import fields
from pathlib import Path

import pytest

from router.settings import Settings
from serving.live_settings import Change, LiveSettings
from serving.setting import settings_of

BEFORE = Settings(home=Path("/h"))


def test_live_settings_change_and_the_others_are_named() -> None:
    live = LiveSettings(BEFORE)
    seen: list[Settings] = []
    live.on_change(seen.append)
    wanted = Settings(home=Path("/h"), port=9, stall_s=60.0, log_requests=True)
    done = live.change_to(wanted)
    assert done.applied == (
        Change("--log-requests", "no", "yes"),
        Change("--stall", "150s", "1m"),
    )
    assert done.needs_restart == (Change("--port", "8800", "9"),)
    assert live.current == Settings(home=Path("/h"), stall_s=60.0, log_requests=True)
    assert seen == [live.current]
    assert done.sentences() == [
        "--log-requests is yes now, not no.",
        "--stall is 1m now, not 150s.",
        "--port stays 8800 until a restart; then it is 9.",
    ]


def test_what_has_not_changed_is_not_applied_again() -> None:
    live = LiveSettings(BEFORE)
    live.on_change(lambda _settings: pytest.fail("nothing has changed"))
    done = live.change_to(Settings(home=Path("/h")))
    assert (done.applied, done.needs_restart) == ((), ())
    assert done.sentences() == ["Reloaded the settings; none has changed."]


def test_a_value_that_is_set_back_takes_effect_again() -> None:
    live = LiveSettings(BEFORE)
    live.change_to(Settings(home=Path("/h"), queue_limit=5))
    assert live.change_to(BEFORE).applied == (Change("--queue-limit", "5", "256"),)
    assert live.current == BEFORE


def test_the_settings_that_a_running_router_can_change_are_these() -> None:
    """Each has a test in `tests/router/test_reload.py`."""
    declared = settings_of(Settings)
    live = [field.name for field in fields(Settings) if declared[field.name].is_live]
    assert live == [
        "log_requests",
        "log_level",
        "stream_keepalive_s",
        "queue_limit",
        "promote_after_s",
        "stall_s",
        "load_timeout_s",
        "first_token_timeout_s",
        "stay_awake",
        "audit_entries",
    ]
