"""Calls in Python's syntax, as text."""

import pytest

from node.parsing.calls.python_calls import NotPythonCalls, Quotes, read_calls


def only(text: str) -> dict[str, object]:
    [call] = read_calls(f"f({text})")
    return call.arguments


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'it'", "it"),
        ('"it"', "it"),
        ("''", ""),
        ("7", 7),
        ("-7", -7),
        ("007", 7),
        ("1_000", 1000),
        ("2.5e3", 2500.0),
        (".5", 0.5),
        ("True", True),
        ("false", False),
        ("None", None),
        ("null", None),
        ("[1, 'a', [true]]", [1, "a", [True]]),
        ("(1, 2)", [1, 2]),
        ("{'k': {\"n\": None}, 2: 'two',}", {"k": {"n": None}, "2": "two"}),
        ("[]", []),
        ("{}", {}),
        ("{'b', 'a'}", ["b", "a"]),
        ("{ 1, (2,), {'x': {3}}, }", [1, [2], {"x": [3]}]),
        (r"'a\tb\n\'c\' \\ \x41é\U0001F600'", "a\tb\n'c' \\ Aé\U0001f600"),
        (r"'\d+\.\w'", r"\d+\.\w"),
        ("'two\nlines'", "two\nlines"),
        ("'''it's \"so\"'''", 'it\'s "so"'),
        ("'x) , y=[{'", "x) , y=[{"),
        ("'nul\0 inside'", "nul\0 inside"),
    ],
)
def test_reads_a_value(text: str, value: object) -> None:
    assert only(f"a={text}") == {"a": value}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a='tail -n '5' /tmp/x'", "tail -n '5' /tmp/x"),
        ("a='don't'", "don't"),
        ("a='print('x')'", "print('x')"),
        ('a="say "hi", twice"', 'say "hi", twice'),
        ("a='f('x', 'y')'", "f('x', 'y')"),
    ],
)
def test_a_quote_that_was_not_escaped_is_part_of_the_string(text: str, value: str) -> None:
    assert only(text) == {"a": value}


def test_a_wrong_end_of_one_string_leaves_the_next_argument_whole() -> None:
    assert only("a='it's', b='that's'") == {"a": "it's", "b": "that's"}


def test_reads_a_list_of_calls_and_calls_one_behind_the_other() -> None:
    for text in ("[f(a=1), g.h()]", "[ f( a = 1 ) , g.h( ) , ]", "f(a=1)\ng.h()", "f(a=1); g.h()"):
        assert read_calls(text) == [("f", {"a": 1}), ("g.h", {})]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "f",
        "f(",
        "f(1)",
        "f(a)",
        "f(a=)",
        "f(a=b)",
        "f(a='x'",
        "f(a=1) and more",
        "[f(a=1)",
        "f(a=1e999)",
        "f(a=open('x'))",
        "f(a={[]: 1})",
        "f(a=" + "[" * 2000 + "]" * 2000 + ")",
    ],
)
def test_anything_else_is_no_list_of_calls(text: str) -> None:
    with pytest.raises(NotPythonCalls):
        read_calls(text)


def test_the_search_for_a_strings_end_is_bounded() -> None:
    with pytest.raises(NotPythonCalls):
        read_calls("f(a='" + "', b='" * 8000 + "")


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        ("f(a='x", True),
        (r"f(a='x\'", True),
        ('f(a=\'"""', True),
        ("f(a='x', b=\"it's\"", False),
        (r"f(a='x\\'", False),
    ],
)
def test_knows_whether_a_string_is_open_however_it_is_cut(text: str, *, is_open: bool) -> None:
    for at in range(len(text)):
        quotes = Quotes()
        for piece in (text[:at], "", text[at:]):
            quotes.read(piece)
        assert quotes.is_open is is_open
