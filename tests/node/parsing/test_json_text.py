"""JSON as models write it."""

import json
import sys

import pytest

from node.parsing.json_text import DEPTH, JsonScan, is_strict_json, read_json, write_json


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "}\\"", "b": [1, -2.5e+3, true, null]}',
        '["]", {"a": {}}]',
        '"a \\\\ \\u00e9 b"',
        "{}",
    ],
)
def test_a_value_ends_where_it_does_however_it_is_cut(text: str) -> None:
    behind = text + " } ]"
    for at in range(len(behind) + 1):
        scan = JsonScan()
        end = scan.read(behind, 0, at)
        assert scan.is_whole == (at >= len(text))
        assert end == min(at, len(text))
        if not scan.is_whole:
            assert scan.read(behind, end, len(behind)) == len(text)
            assert scan.is_whole


@pytest.mark.parametrize("text", ["{'a': 1}", '{"a": <|end|>', '["a" | "b"]'])
def test_what_no_json_has_is_seen_at_once(text: str) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        JsonScan().read(text, 0, len(text))


def test_strings_may_span_lines_but_are_not_strict_then() -> None:
    assert read_json('{"a": "b\nc"}') == {"a": "b\nc"}
    assert not is_strict_json('{"a": "b\nc"}')
    assert is_strict_json('{"a": "b\\nc"}')


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\d \u12 \$"', r"\d \u12 \$"),
        ('"\\\n"', "\\\n"),
        (r'"\\d \n \u0041 \ud83d\ude00 \q"', "\\d \n A \N{GRINNING FACE} \\q"),
    ],
)
def test_a_backslash_that_begins_no_escape_is_a_character(text: str, value: str) -> None:
    assert read_json(text) == value
    assert not is_strict_json(text)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "{", "[" * 100_000])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_json(text)
    assert not is_strict_json(text)


def test_a_number_beyond_all_that_readers_share_is_the_nearest_one() -> None:
    assert read_json('{"a": [-1e999, 2e4801]}') == {"a": [-sys.float_info.max, sys.float_info.max]}
    assert not is_strict_json("1e999")
    assert json.loads(write_json(read_json("1e999"))) == sys.float_info.max


def test_integers_of_any_length_are_read() -> None:
    assert read_json("9" * 4000) == 10**4000 - 1
    assert read_json(f"[-{'9' * 5000}]") == [-sys.float_info.max]
    assert not is_strict_json("9" * 5000)


def test_nesting_has_a_limit_that_no_stack_decides() -> None:
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        deepest = opened * DEPTH + "1" + closed * DEPTH
        assert is_strict_json(deepest)
        assert write_json(read_json(deepest)).count(opened[0]) == DEPTH
        with pytest.raises(ValueError, match="deeply"):
            read_json(f"[{deepest}]")
    beside = [["[" * 9 + '"'] for _ in range(DEPTH)]
    assert read_json(write_json(beside)) == beside


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"\\ud83d\\ude00"', "\N{GRINNING FACE}"),
        ('"\\ud83d"', "\ufffd"),
        ('"\\uDE00\\uD83D"', "\ufffd\ufffd"),
        ('"\\\\ud83d"', "\\ud83d"),
    ],
)
def test_half_a_character_is_replaced(text: str, value: str) -> None:
    assert read_json(text) == value
    assert is_strict_json(text) == ("\ufffd" not in value)


def test_halves_of_characters_are_written_whole_or_replaced() -> None:
    assert write_json({"a": "é"}) == '{"a": "é"}'
    assert write_json(["\ud83d\ude00"]) == '["\N{GRINNING FACE}"]'
    assert write_json(["\ud83d"]) == '["\ufffd"]'
    assert not is_strict_json('"\ud83d"')
