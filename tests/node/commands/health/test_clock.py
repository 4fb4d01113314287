"""The clock and the power mode, by recorded outputs."""

from collections.abc import Sequence

import pytest

from node.commands.checks import Level
from node.commands.health.clock import check_clock, check_power
from node.hardware import Runner
from tests.node.kernels import PlayedKernel

MAC = PlayedKernel({})


def printing(text: str | None) -> Runner:
    def run(_command: Sequence[str]) -> str | None:
        return text

    return run


@pytest.mark.parametrize(
    ("text", "level", "words"),
    [
        ("+0.002341 +/- 0.012345 time.apple.com 17.253.4.125", Level.OK, "off by 0.00 s"),
        (
            "sntp 4.2.8p10@1.3728-o Tue Mar 21 14:36:42 UTC 2017\n2018-09-29 19:42:41.448103 "
            "(-0200) -7.5 +/- 0.5 time.apple.com 17.253.4.125 s2 no-leap",
            Level.WARN,
            "off by 7 s",
        ),
        ("+1087.742403 +/- 25.183462 time.apple.com", Level.FAIL, "off by 1,063 s"),
        # Only so much is known for sure.
        ("+10.0 +/- 725.0 time.apple.com", Level.OK, "off by 0.00 s"),
        ("sntp: lookup error nodename nor servname provided", Level.UNKNOWN, "unknown"),
        (None, Level.UNKNOWN, "unknown"),
    ],
)
def test_a_mac_s_clock_is_compared_with_a_time_server(
    text: str | None, level: Level, words: str
) -> None:
    check = check_clock(printing(text), MAC)
    assert check.level is level
    assert words in check.sentence
    assert bool(check.advice) is (level is not Level.OK)


@pytest.mark.parametrize(
    ("text", "level"),
    [("yes", Level.OK), ("no", Level.WARN), ("", Level.UNKNOWN), (None, Level.UNKNOWN)],
)
def test_linux_is_asked_whether_a_time_server_sets_the_clock(
    text: str | None, level: Level
) -> None:
    check = check_clock(printing(text), None)
    assert check.level is level
    assert bool(check.advice) is (level is not Level.OK)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("Currently in use:\n lowpowermode         1\n sleep 0", Level.WARN),
        ("Currently in use:\n powermode            1\n", Level.WARN),
        ("Currently in use:\n lowpowermode         0\n", Level.OK),
        ("Currently in use:\n powermode            2\n", Level.OK),
        ("Currently in use:\n sleep 0", Level.UNKNOWN),
        (None, Level.UNKNOWN),
    ],
)
def test_low_power_mode_is_named(text: str | None, level: Level) -> None:
    check = check_power(printing(text))
    assert check.level is level
    assert bool(check.advice) is (level is not Level.OK)
