"""Outputs of Hunyuan 3."""

import pytest

from tests.node.parsing.reading import Calls, Parsed, read

USUAL = pytest.mark.parametrize("suffix", [":opensource", ""])
SUFFIXES = pytest.mark.parametrize("suffix", [":opensource", "", ":v2.1"])
CALLS: Calls = (("find", {"where": "a < b\n", "depth": 2}), ("ping", {}))


def hy(text: str, tail: str = "") -> Parsed:
    return read(text, reasoning="hy_v3", tool_calls="hy_v3", tail=tail)


def tagged(text: str, suffix: str) -> str:
    return text.replace("~", suffix)


PAIRS = (
    "<arg_key~>where</arg_key~>\n<arg_value~>a < b\n</arg_value~>\n"
    "<arg_key~>depth</arg_key~>\n<arg_value~>2</arg_value~>\n"
)
FIND = f"<tool_call~>find<tool_sep~>\n{PAIRS}</tool_call~>\n"
PING = "<tool_call~>ping<tool_sep~>\n</tool_call~>\n"


@USUAL
def test_reasoning_answer_and_calls_are_distinguished(suffix: str) -> None:
    text = tagged(f"Hm.</think~>I look.<tool_calls~>\n{FIND}{PING}</tool_calls~>", suffix)
    expected = Parsed("I look.", "Hm.", CALLS)
    assert hy(text, tail=f"<think{suffix}>") == hy(f"<think{suffix}>{text}") == expected


@SUFFIXES
@pytest.mark.parametrize(
    "calls",
    [
        FIND + PING,
        f"<tool_calls~>{FIND}{PING}",
        f'<tool_call~>find<tool_sep~>{{"where": "a < b\\n", "depth": 2}}<end_of_tool_call~>{PING}',
        f"{FIND}<tool_call~>ping</tool_call~>",
    ],
)
def test_calls_have_more_than_one_spelling(suffix: str, calls: str) -> None:
    assert hy(tagged(calls, suffix)) == Parsed(calls=CALLS)


@SUFFIXES
@pytest.mark.parametrize("value", ["an </arg_value~> within", "</tool_call~>", 'a "quoted" b', ""])
def test_values_are_bare_text(suffix: str, value: str) -> None:
    text = tagged(FIND.replace("a < b\n", value), suffix)
    assert hy(text).calls[0][1]["where"] == tagged(value, suffix)


@SUFFIXES
@pytest.mark.parametrize("text", [FIND[:-20], FIND.replace("find", "unknown"), "<tool_calls~>no"])
def test_what_is_no_call_stays_text(suffix: str, text: str) -> None:
    assert hy(tagged(text, suffix)) == Parsed(tagged(text, suffix).strip())
