"""Checks of this machine's clock and power settings.

The queries of macOS have been tested with recorded outputs only, not on a Mac.
"""

import re

from node.commands.checks import Check, Level
from node.darwin import Kernel
from node.hardware import Runner

TIME_SERVER = "time.apple.com"
"""The server by which macOS sets the clock by default."""
SKEWED_S = 2.0
WRONG_S = 60.0
_OFFSET = re.compile(r"([+-]\d+(?:\.\d+)?) \+/- (\d+(?:\.\d+)?)")
"""Matches the difference and its uncertainty in the output of `sntp`."""
_LOW_POWER = re.compile(r"^\s*(?:lowpowermode|powermode)\s+(\d)", re.MULTILINE)


def check_clock(run: Runner, kernel: Kernel | None) -> Check:
    """Compares the clock with a time server on a Mac; asks the system whether it does on Linux."""
    return _mac_clock(run) if kernel is not None else _linux_clock(run)


def _mac_clock(run: Runner) -> Check:
    found = _OFFSET.search(run(["sntp", TIME_SERVER]) or "")
    if found is None:
        sentence = f"How far the clock is off is unknown: {TIME_SERVER} does not respond."
        advice = "Times in logs and usage records are this Mac's; look at them if they seem odd."
        return Check("clock", Level.UNKNOWN, sentence, advice)
    skew_s = max(0.0, abs(float(found[1])) - float(found[2]))
    figures = {"skew_ms": round(skew_s * 1000)}
    if skew_s < SKEWED_S:
        return Check("clock", Level.OK, f"The clock is off by {skew_s:.2f} s.", figures=figures)
    level = Level.FAIL if skew_s >= WRONG_S else Level.WARN
    sentence = f"The clock is off by {skew_s:,.0f} s; so are times in logs and usage records."
    advice = "Switch on System Settings > General > Date & Time > Set time and date automatically."
    return Check("clock", level, sentence, advice, figures)


def _linux_clock(run: Runner) -> Check:
    found = run(["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    if found == "yes":
        return Check("clock", Level.OK, "The clock is set by a time server.")
    if found == "no":
        sentence = "The clock is not set by a time server; times in logs may differ from others'."
        return Check("clock", Level.WARN, sentence, "Run `sudo timedatectl set-ntp true`.")
    sentence = "It is unknown whether a time server sets the clock."
    return Check("clock", Level.UNKNOWN, sentence, "`timedatectl` shows it, where there is one.")


def check_power(run: Runner) -> Check:
    """Checks whether this Mac runs slower to save energy."""
    found = _LOW_POWER.search(run(["pmset", "-g"]) or "")
    if found is None:
        sentence = "pmset does not report whether this Mac runs in low power mode."
        return Check("power", Level.UNKNOWN, sentence, "See System Settings > Battery or Energy.")
    if found[1] == "1":
        sentence = "This Mac runs in low power mode, which makes its GPU much slower."
        advice = (
            "Switch it off in System Settings > Battery, or Energy: `sudo pmset -a lowpowermode 0`."
        )
        return Check("power", Level.WARN, sentence, advice)
    return Check("power", Level.OK, "This Mac does not run in low power mode.")
