"""The input of a custom tool's call, extracted from the JSON of a function's arguments."""

import json
import random

import pytest

from node.dialects.fields.custom_input import CustomInputReader, arguments_of, input_of

TEXTS = (
    "",
    "a",
    '*** Begin Patch\n+"x" \\n \\\\ \t\n*** End Patch\n',
    "é\u2028 😀 \x07",
    "\\ud83d \\u0041 \\",
    "\\" * 5 + '"',
)
FORMS = ('{"input": %s}', '{"input":%s}', ' {\n "input" : %s\n}', '{"input":%s, "more": "x"}')


def pieces(text: str, chance: random.Random) -> list[str]:
    cut = []
    while text:
        length = chance.choice([1, 1, 2, 3, 7, 40])
        cut.append(text[:length])
        text = text[length:]
    return cut


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_text_is_streamed_as_the_arguments_arrive(form: str, *, ascii_only: bool) -> None:
    chance = random.Random(1)
    for text in TEXTS:
        arguments = form % json.dumps(text, ensure_ascii=ascii_only)
        for _ in range(20):
            reader = CustomInputReader()
            sent = [reader.feed(piece) for piece in pieces(arguments, chance)]
            assert "".join([*sent, reader.rest()]) == text
        assert input_of(arguments) == text


def test_what_is_complete_of_the_text_is_returned_at_once() -> None:
    reader = CustomInputReader()
    for piece, expected in (
        ('{"inp', ""),
        ('ut": "ab', "ab"),
        ("\\", ""),
        ("n", "\n"),
        ("\\ud83d", ""),
        ("\\ude00c", "😀c"),
    ):
        assert reader.feed(piece) == expected
    assert reader.feed('d" ') == "d"
    assert reader.feed("}") == reader.rest() == ""


def test_half_a_character_is_replaced() -> None:
    assert input_of('{"input": "a\\ud83d"}') == "a\ufffd"
    assert input_of('{"input": "\\ud83d\\u0041\\ude00"}') == "\ufffdA\ufffd"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"patch": "x\\n"}', "x\n"),
        ('{"more": 1, "input": "x"}', "x"),
        ('"x"', "x"),
        ('{"a": 1, "b": "x"}', '{"a": 1, "b": "x"}'),
        ('{"input": 5}', '{"input": 5}'),
        ("not JSON", "not JSON"),
        ("{}", "{}"),
        ("", ""),
    ],
)
def test_arguments_of_another_form_are_their_only_text_or_stay_as_they_are(
    arguments: str, text: str
) -> None:
    for length in (1, 4, 100):
        reader = CustomInputReader()
        sent = [reader.feed(arguments[at : at + length]) for at in range(0, len(arguments), length)]
        assert "".join([*sent, reader.rest()]) == text


def test_long_arguments_of_another_form_are_read_in_linear_time() -> None:
    text = "x" * 400_000
    reader = CustomInputReader()
    arguments = json.dumps({"patch": text})
    for at in range(0, len(arguments), 4):
        assert reader.feed(arguments[at : at + 4]) == ""
    assert reader.rest() == text


def test_the_arguments_of_a_text_are_read_as_that_text() -> None:
    for text in TEXTS:
        assert input_of(arguments_of(text)) == text
        assert json.loads(arguments_of(text)) == {"input": text}
