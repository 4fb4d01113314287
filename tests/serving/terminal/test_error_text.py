"""The text of errors, for people."""

import pytest

from serving.terminal.error_text import error_text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("it is full.\nTraceback"), "it is full"),
        (MemoryError(), "there is not enough memory"),
        (TimeoutError(), "no response arrived in time"),
        (ConnectionResetError(), "the connection was cut"),
        (RecursionError(), "it is nested too deep"),
        (RuntimeError(), "it gave no reason"),
        (AssertionError(" \n"), "it gave no reason"),
    ],
)
def test_an_error_is_spelled_in_words(error: Exception, words: str) -> None:
    assert error_text(error) == words
