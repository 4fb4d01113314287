"""Calls of DeepSeek V3, R1 and V3.1."""

import pytest

from tests.node.parsing.reading import Calls, Parsed, read

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_END = "<｜tool▁call▁end｜>"


def fenced(name: str, arguments: str, end: str = "\n```" + CALL_END) -> str:
    """A call of V3."""
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}{end}"


def bare(name: str, arguments: str, end: str = CALL_END) -> str:
    """A call of V3.1."""
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}{end}"


@pytest.mark.parametrize("form", ["deepseek_v3", "deepseek_v31"])
@pytest.mark.parametrize(
    "calls",
    [
        fenced("find", '{"where": "x"}') + "\n" + fenced("ping", "{}"),
        bare("find", '{"where": "x"}') + bare("ping", "{}"),
        fenced("find", '{"where": "x"}', "```" + CALL_END) + fenced("ping", "{}", "```"),
        bare("find", '{"where": "x"}', "") + bare("ping", ""),
    ],
)
def test_calls_of_either_version_are_read(form: str, calls: str) -> None:
    expected: Calls = (("find", {"where": "x"}), ("ping", {}))
    assert read(f"Now.\n{BEGIN}{calls}{END}", tool_calls=form) == Parsed("Now.", "", expected)
    assert read(f"Now.\n{BEGIN}{calls}", tool_calls=form) == Parsed("Now.", "", expected)
    assert read(calls, tool_calls=form) == Parsed("", "", expected)


def test_markers_may_be_spelled_in_ascii() -> None:
    text = BEGIN + bare("find", '{"depth": 2}') + END
    ascii_text = text.replace("▁", "_").replace("｜", "|")
    assert read(ascii_text, tool_calls="deepseek_v31").calls == (("find", {"depth": 2}),)


def test_a_fence_within_a_value_ends_nothing() -> None:
    text = BEGIN + fenced("find", '{"where": "```json\\n{}\\n```"}') + END
    assert read(text, tool_calls="deepseek_v3").calls == (("find", {"where": "```json\n{}\n```"}),)


def test_a_call_ends_reasoning_and_an_empty_section_is_no_text() -> None:
    text = "Hm.</think>" + BEGIN + END + "Nothing to do."
    parsed = read(text, reasoning="think", tool_calls="deepseek_v31", tail="<think>\n")
    assert parsed == Parsed("Nothing to do.", "Hm.")
    text = "Hm." + BEGIN + bare("ping", "{}") + END
    parsed = read(text, reasoning="think", tool_calls="deepseek_v31", tail="<think>\n")
    assert parsed == Parsed("", "Hm.", (("ping", {}),))


@pytest.mark.parametrize(
    "text",
    [
        BEGIN + bare("unknown", "{}") + END,
        BEGIN + bare("find", '{"where":', ""),
        BEGIN + fenced("find", '{"where": "x', ""),
        BEGIN + fenced("find", "{not json}") + END,
        "They write <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGS for a call.",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert read(text, tool_calls="deepseek_v3") == Parsed(text)


def test_what_follows_a_whole_call_does_not_undo_it() -> None:
    text = BEGIN + bare("ping", "{}") + bare("find", '{"wh', "")
    cut = bare("find", '{"wh', "")
    assert read(text, tool_calls="deepseek_v31") == Parsed(cut, "", (("ping", {}),))
