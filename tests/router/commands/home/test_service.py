"""The settings and times of the router as a service."""

import pytest

from router.commands.home.service import checked_stop_s
from router.commands.serve import LAST_WORDS_S, SHUTDOWN_S
from router.settings import sources
from serving.errors import CannotStart


def test_the_system_waits_until_a_router_has_ended() -> None:
    assert checked_stop_s(sources({})) > SHUTDOWN_S + LAST_WORDS_S


def test_settings_that_stop_a_start_stop_the_installation() -> None:
    with pytest.raises(CannotStart):
        checked_stop_s(sources({"host": "0.0.0.0"}))
