"""Signatures of thinking blocks restore the text that was omitted, and nothing else."""

import pytest

from node.dialects.anthropic.signature import (
    carried_thought,
    carrying_signature,
    hashed_signature,
)


def test_a_carrying_signature_restores_the_thought() -> None:
    assert carried_thought(carrying_signature("Größer als 7?\n")) == "Größer als 7?\n"


def test_a_hash_restores_nothing_and_distinguishes_thoughts() -> None:
    assert carried_thought(hashed_signature("a")) == ""
    assert hashed_signature("a") == hashed_signature("a") != hashed_signature("b")


@pytest.mark.parametrize("signature", ["", "EqQBCgIYAhIM", "other.abc"])
def test_foreign_signatures_restore_nothing(signature: str) -> None:
    assert carried_thought(signature) == ""


@pytest.mark.parametrize("signature", ["text.%%%", "text.abc", "text._w=="])
def test_a_damaged_signature_is_an_error(signature: str) -> None:
    with pytest.raises(ValueError):
        carried_thought(signature)
