from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any

import pytest

from registry import records

EVERY = [record for record in vars(records).values() if is_dataclass(record)]


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_records_are_frozen_and_slotted(kind: Any) -> None:
    names = [field.name for field in fields(kind)]
    record = kind(**dict.fromkeys(names, "x"))
    for name in names:
        with pytest.raises(FrozenInstanceError):
            setattr(record, name, "y")
    assert not hasattr(record, "__dict__")


def test_the_repr_of_a_node_hides_its_credential() -> None:
    node = records.NodeRecord("n1", "mini", "http://mini", "agent", "hunter2", 1.0)
    assert "hunter2" not in repr(node)
    assert node.credential == "hunter2"


def test_the_repr_of_a_key_hides_its_salt() -> None:
    key = records.KeyRecord(
        "k1", "ci", "mlxf-ab", "d", ("inference",), 1.0, None, None, salt="s4lt"
    )
    assert "s4lt" not in repr(key)
