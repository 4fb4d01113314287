from __future__ import annotations

import pytest

from node.protocol.names import is_name


@pytest.mark.parametrize("name", ["m", "mlx-community/Qwen3-8B-4bit", "modèle", "模型", "a b"])
def test_what_can_be_shown_is_a_name(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "m ",
        "\tm",
        "a\nb",
        "a\r\nb",
        "a\0",
        "\x1b[31mred",
        "\x9b31mred",
        "a\u202eb",
        "a\u2066b",
        "a\u200bb",
        "a\ufeff",
        "a\u2028b",
        "a\ud800",
        "m" * 257,
    ],
    ids=ascii,
)
def test_what_moves_hides_or_turns_text_is_none(name: str) -> None:
    assert not is_name(name)
