from __future__ import annotations

import pytest

from node.protocol.idle_rule import is_idle_too_long
from tests.node.protocol.idle_cases import CASES, KEEP_ALIVE_S, IdleCase


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_of_the_table(case: IdleCase) -> None:
    assert is_idle_too_long(case.status()) is case.is_idle


def test_the_age_of_the_status_counts_as_idle_time() -> None:
    status = IdleCase("", is_idle=False, idle_s=KEEP_ALIVE_S - 10.0).status()
    assert not is_idle_too_long(status, 9.0)
    assert is_idle_too_long(status, 10.0)
