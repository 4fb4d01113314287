"""The MAC addresses at which this machine can be woken."""

import sys

import pytest

from node.agent.own_macs import FRESH_S, Interface, OwnMacs, macs_of, read_interfaces
from node.protocol.bounds import MAX_MACS
from tests.fakes import FakeClock

EN0 = Interface("en0", ("192.168.1.7", "fe80::1%en0", "A0-B1-C2-D3-E4-F5"))


def test_only_interfaces_that_others_reach_count() -> None:
    interfaces = [
        Interface("lo0", ("127.0.0.1", "::1", "00:00:00:00:00:00")),
        Interface("en1", ("a0:00:00:00:00:02",)),
        Interface("awdl0", ("fe80::2%awdl0", "a0:00:00:00:00:03")),
        Interface("en5", ("169.254.1.1", "a0:00:00:00:00:04")),
        Interface("utun0", ("10.0.0.1",)),
        EN0,
    ]
    assert macs_of(interfaces) == ("a0:b1:c2:d3:e4:f5",)


def test_they_are_few_and_each_is_there_once() -> None:
    many = [Interface(f"en{at}", (f"10.0.0.{at}", f"a0:00:00:00:00:{at:02x}")) for at in range(20)]
    assert macs_of([*many, *many]) == macs_of(many)
    assert len(macs_of(many)) == MAX_MACS


def test_they_are_read_once_a_minute() -> None:
    clock, found = FakeClock(100.0), [EN0]
    macs = OwnMacs(lambda: found, clock)
    assert macs.now() == ("a0:b1:c2:d3:e4:f5",)
    found.clear()
    assert macs.now() == ("a0:b1:c2:d3:e4:f5",)
    clock.now_s += FRESH_S
    assert macs.now() == ()


def test_this_machine_has_interfaces_unless_the_library_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {each.name for each in read_interfaces()} & {"lo", "lo0"}
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert read_interfaces() == []
