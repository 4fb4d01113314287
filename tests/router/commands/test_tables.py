import io

import pytest
from rich.console import Console

from router.commands.tables import Contents, lay_out, print_on

NODES = Contents(
    ("Node", "State", "Address", "Chip", ">Memory used", ">In flight", "Models"),
    [
        (
            "studio",
            "reachable; failing: Qwen3-Coder",
            "http://studio.local:8801",
            "Apple M3 Ultra",
            "101.5 GiB of 192.0 GiB",
            "12",
            "Qwen3-Coder-30B-A3B-Instruct-4bit, gpt-oss-120b",
        ),
        ("mini", "reachable", "http://mini.local:8801", "Apple M4", "0 KiB of 20.0 GiB", "0", ""),
    ],
    ("Chip", "Address"),
)
USAGE = Contents(
    ("Key", "Model", ">Requests", ">Prompt tokens", ">of them cached", ">Completion tokens"),
    [("team", "Qwen3-Coder-30B", "12,345", "123,456,789", "100,000,000", "1,234,567")],
)


def lines(contents: Contents, room: int) -> list[str]:
    printed = io.StringIO()
    print_on(Console(file=printed, width=room), lay_out(contents, room))
    return [line.rstrip() for line in printed.getvalue().splitlines()]


@pytest.mark.parametrize("room", [80, 120])
@pytest.mark.parametrize("contents", [NODES, USAGE], ids=["nodes", "usage"])
def test_a_table_is_no_wider_than_the_window_and_keeps_names_and_numbers_whole(
    contents: Contents, room: int
) -> None:
    shown = lines(contents, room)
    text = "\n".join(shown)
    numbers = [i for i, column in enumerate(contents.columns) if column.startswith(">")]
    assert max(len(line) for line in shown) <= room
    for row in contents.rows:
        assert str(row[0]) in text
        assert all(str(row[i]) in text for i in numbers)


@pytest.mark.parametrize("word", ["reachable", "Memory", "flight", "Models"])
def test_no_short_word_is_broken_at_80_columns(word: str) -> None:
    assert word in "\n".join(lines(NODES, 80))


def test_columns_go_in_the_order_in_which_they_matter_least() -> None:
    assert list(lay_out(NODES, 200).left_out) == []
    assert list(lay_out(NODES, 92).left_out) == ["Chip"]
    assert list(lay_out(NODES, 80).left_out) == ["Chip", "Address"]


def test_where_there_is_room_nothing_wraps() -> None:
    assert len(lines(USAGE, 120)) == 5
    assert lay_out(USAGE, 120).widths == [4, 15, 8, 13, 14, 17]


def test_heads_wrap_between_their_words_before_a_column_goes() -> None:
    shown = lines(USAGE, 80)
    assert any(line.split() == ["of", "them", "Completion"] for line in shown)
    assert any("123,456,789" in line and "1,234,567" in line for line in shown)


def test_a_window_too_narrow_for_all_has_its_names_and_numbers_whole() -> None:
    text = "\n".join(lines(USAGE, 50))
    assert all(word in text for word in ("team", "123,456,789", "1,234,567"))


def test_a_table_without_rows_has_its_heads() -> None:
    assert "Requests" in "\n".join(lines(Contents(USAGE.columns, []), 80))
