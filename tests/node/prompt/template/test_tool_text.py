"""Arguments of earlier calls, whatever a client sent back."""

import json
from typing import Any

import pytest

from node.prompt.template.tool_text import arguments_text, read_arguments, spell_calls
from node.request import ToolCall


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", {}),
        (" ", {}),
        ("{}", {}),
        ('{"a": null, "b": 1.50}', {"a": None, "b": 1.5}),
        ('{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
        ('{"arguments": "x"}', {"arguments": "x"}),
    ],
)
def test_arguments_are_an_object(text: str, arguments: Any) -> None:
    assert read_arguments(text) == arguments
    assert json.loads(arguments_text(text)) == arguments
    assert arguments_text(text) == (text.strip() or "{}")


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "null",
        '{"city": "Be',
        '{"a": NaN}',
        '{"a": "\\ud83d"}',
        '{"a": ' + "[" * 9999 + "]" * 9999 + "}",
        "{'a': 1}",
    ],
)
def test_what_is_no_object_is_an_argument_as_it_is(text: str) -> None:
    assert read_arguments(text) == {"arguments": text}
    assert json.loads(arguments_text(text)) == {"arguments": text}
    spelled = spell_calls([ToolCall("1", "f", text)], "hermes")
    assert json.dumps({"arguments": text}) in spelled
