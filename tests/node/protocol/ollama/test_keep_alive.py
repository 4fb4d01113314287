from math import inf
from typing import Any

import pytest

from node.protocol.ollama.keep_alive import keep_alive_s


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        (0, 0),
        ("0", 0),
        ("0s", 0),
        (300, 300),
        (1.5, 1.5),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("300ms", 0.3),
        (".5s", 0.5),
        ("60", 60),
        (-1, inf),
        ("-1", inf),
        ("-1m", inf),
        (1e300, 1e9),
    ],
)
def test_a_duration_is_a_number_or_a_text(value: Any, seconds: float | None) -> None:
    assert keep_alive_s(value) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("value", [True, "soon", "5 m", "m", [], {}, "1" * 65, float("nan")])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="keep_alive"):
        keep_alive_s(value)
