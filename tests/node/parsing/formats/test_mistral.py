"""Calls and reasoning of the Mistral models."""

from typing import Any

import pytest

from tests.node.parsing.reading import Parsed, collect, output_format, read

FOUND = ("find", {"where": "[TOOL_CALLS] {", "depth": 2})
ARGUMENTS = '{"where": "[TOOL_CALLS] {", "depth": 2}'
PINGED: tuple[str, Any] = ("ping", {})


@pytest.mark.parametrize(
    "body",
    [
        f'[{{"name": "find", "arguments": {ARGUMENTS}}}, {{"name": "ping", "arguments": {{}}}}]',
        f'{{"name": "find", "arguments": {ARGUMENTS}}}, {{"name": "ping", "arguments": {{}}}}',
        f"find{ARGUMENTS}[TOOL_CALLS]ping{{}}",
        f"find[ARGS]{ARGUMENTS}[TOOL_CALLS]ping[ARGS]{{}}",
        f"find[CALL_ID]a1b2c3d4e[ARGS]{ARGUMENTS}[TOOL_CALLS]ping[CALL_ID]z[ARGS]{{}}",
    ],
)
@pytest.mark.parametrize("opener", ["[TOOL_CALLS]", "[TOOL_CALLS] ", "[TOOL_CALLS] [TOOL_CALLS]"])
def test_reads_every_generation(opener: str, body: str) -> None:
    assert read(f'"So.{opener}{body}', tool_calls="mistral") == Parsed('"So.', "", (FOUND, PINGED))


def test_keeps_the_ids_that_the_model_gave() -> None:
    form = output_format(tool_calls="mistral")
    for text in (
        "[TOOL_CALLS]ping[CALL_ID]a1b2c3d4e[ARGS]{}",
        '[TOOL_CALLS][{"name": "ping", "arguments": {}, "id": "a1b2c3d4e"}]',
    ):
        assert [call.call_id for call in collect(form, text).calls] == ["a1b2c3d4e"]


@pytest.mark.parametrize("behind", [" I am looking", ', "junk"', "]", ""])
def test_text_behind_a_call_is_not_returned(behind: str) -> None:
    text = f'[TOOL_CALLS][{{"name": "ping", "arguments": {{}}}}, "junk"]{behind}'
    assert read(text, tool_calls="mistral") == Parsed("", "", (PINGED,))
    text = f'[TOOL_CALLS]{{"name": "ping", "arguments": {{}}}}{behind}'
    assert read(text, tool_calls="mistral") == Parsed("", "", (PINGED,))
    assert read(f"[TOOL_CALLS]ping{{}}{behind}", tool_calls="mistral") == Parsed("", "", (PINGED,))


@pytest.mark.parametrize("later", ["open{}", 'find{"where": "/a', '[{"name": "open"}] so'])
def test_a_later_call_that_is_none_is_text(later: str) -> None:
    text = f"[TOOL_CALLS]ping{{}} so [TOOL_CALLS]{later}"
    assert read(text, tool_calls="mistral") == Parsed(f"[TOOL_CALLS]{later}", "", (PINGED,))
    text = '[TOOL_CALLS][{"name": "ping", "arguments": {}}, {"name": "open"}]'
    assert read(text, tool_calls="mistral") == Parsed(text)


def test_the_end_of_a_list_may_be_missing() -> None:
    text = '[TOOL_CALLS][{"name": "ping", "arguments": {}}'
    assert read(text, tool_calls="mistral") == Parsed("", "", (PINGED,))


def test_what_is_not_returned_is_not_buffered_either() -> None:
    form = output_format(tool_calls="mistral")
    pieces = ["[TOOL_CALLS]ping{}", *["word " * 1000] * 40, "[TOOL_CALLS]find{}"]
    assert [call.name for call in collect(form, pieces).calls] == ["ping", "find"]


@pytest.mark.parametrize(
    "text",
    [
        "The token [TOOL_CALLS] begins a call.",
        "[TOOL_CALLS]open{}",
        "[TOOL_CALLS]find[ARGS]nothing",
        '[TOOL_CALLS]find{"where": "/a"',
        '[TOOL_CALLS][{"name": "find", "arguments": {oops}}]',
        "[TOOL_CALLS]",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert read(text, tool_calls="mistral") == Parsed(text)


def test_reads_reasoning() -> None:
    text = "[THINK]r [TOOL_CALLS] s[/THINK]\nAnswer[TOOL_CALLS]ping{}"
    parsed = Parsed("Answer", "r [TOOL_CALLS] s", (PINGED,))
    assert read(text, reasoning="mistral", tool_calls="mistral") == parsed
    assert read("[THINK]r", reasoning="mistral") == Parsed("", "r")
    assert read("a\n[THINK]r[/THINK]\nb", reasoning="mistral") == Parsed("a\n\nb", "r")
