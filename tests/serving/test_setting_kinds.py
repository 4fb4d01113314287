"""Kinds of settings that the router and the node agent share."""

from pathlib import Path
from typing import Any

import pytest

from serving.setting import BadSetting, Kind
from serving.setting_kinds import (
    DURATION,
    FLAG,
    PATH,
    PORT,
    STAY_AWAKE_MODE,
    TEXT,
    one_of,
    whole_number,
)
from serving.stay_awake import StayAwake


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (TEXT, "a b", "a b"),
        (PATH, "~/x", Path.home() / "x"),
        (PORT, "0", 0),
        (PORT, "65535", 65_535),
        (whole_number(2, 30), "2", 2),
        (whole_number(2, 30), "30", 30),
        (one_of("a", "b"), "b", "b"),
        (FLAG, "ON", True),
        (FLAG, "", False),
        (DURATION, "150", 150.0),
        (DURATION, "2m30s", 150.0),
        (DURATION, "0", 0.0),
        (STAY_AWAKE_MODE, "never", StayAwake.NEVER),
    ],
)
def test_a_value_is_read(kind: Kind, text: str, value: Any) -> None:
    assert kind.read("x", text) == value


@pytest.mark.parametrize(
    ("kind", "text", "sentence"),
    [
        (PATH, "", "KEY must be a path, not ''"),
        (PORT, "65536", "KEY must be a port number from 0 to 65535"),
        (PORT, "9" * 5000, "KEY must be a port number"),
        (PORT, "-1", "KEY must be a port number"),
        (whole_number(2, 30), "1", "KEY must be a whole number from 2 to 30, not '1'"),
        (whole_number(2, 30), "31", "KEY must be a whole number from 2 to 30, not '31'"),
        (whole_number(2, 30), "2.5", "KEY must be a whole number from 2 to 30"),
        (whole_number(2, 30), "9" * 5000, "KEY must be a whole number"),
        (one_of("a", "b"), "c", "KEY must be one of a, b, not 'c'"),
        (FLAG, "maybe", "KEY must be on or off, not 'maybe'"),
        (DURATION, "soon", "KEY: 'soon' is not a duration"),
        (STAY_AWAKE_MODE, "x", "KEY must be one of busy|always|never, not 'x'"),
    ],
)
def test_a_refused_value_is_named_with_its_key(kind: Kind, text: str, sentence: str) -> None:
    with pytest.raises(BadSetting) as raised:
        kind.read("KEY", text)
    assert str(raised.value).startswith(sentence)


def test_a_default_is_shown_as_a_user_writes_it() -> None:
    assert (DURATION.show(900.0), FLAG.show(True), PORT.show(8800)) == ("15m", "yes", "8800")
