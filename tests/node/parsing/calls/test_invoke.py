"""Attributes and values of tags."""

import pytest

from node.parsing.calls.invoke import attributes_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (' name="f"', {"name": "f"}),
        (' name = "f" string="true"', {"name": "f", "string": "true"}),
        (" name='f'", {}),
        (' name="a b" x-y=""', {"name": "a b", "x-y": ""}),
        ("", {}),
    ],
)
def test_attributes_are_read(text: str, expected: dict[str, str]) -> None:
    assert attributes_of(text) == expected
