"""Outputs of Kimi K3."""

import pytest

from tests.node.parsing.reading import Parsed, read

TAIL = '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
END = "<|close|>message<|sep|>"


def tag(name: str, text: str, attributes: str = "") -> str:
    return f"<|open|>{name}{attributes}<|sep|>{text}<|close|>{name}<|sep|>"


def argument(key: str, text: str, type_name: str) -> str:
    return tag("argument", text, f' key="{key}" type="{type_name}"')


def call(name: str, *arguments: str) -> str:
    return tag("call", "".join(arguments), f' tool="{name}" index="1"')


def k3(text: str, tail: str = TAIL) -> Parsed:
    return read(text, reasoning="kimi_k3", tool_calls="kimi_k3", tail=tail)


def test_reasoning_answer_and_calls_are_distinguished() -> None:
    tools = tag("tools", call("find", argument("where", "x", "string")) + call("ping"))
    text = "Hm.<|close|>think<|sep|>" + tag("response", "I look.") + tools + END
    expected = Parsed("I look.", "Hm.", (("find", {"where": "x"}), ("ping", {})))
    assert k3(text) == expected
    assert k3("<|open|>think<|sep|>" + text, tail="") == expected


def test_an_answer_ends_reasoning_that_is_still_open() -> None:
    assert k3("Hm." + tag("response", "So.") + END) == Parsed("So.", "Hm.")
    assert k3("So.<|close|>response<|sep|>", "<|open|>response<|sep|>") == Parsed("So.")


def test_values_have_the_type_that_they_declare() -> None:
    arguments = (
        argument("where", '"12" < 13\n', "string"),
        argument("depth", "2", "number"),
        argument("exact", "true", "boolean"),
        argument("names", '["a"]', "array"),
        argument("filter", '{"n": null}', "object"),
        argument("a&quot;b &amp; c", "null", "null"),
    )
    assert k3(tag("tools", call("find", *arguments))).calls[0][1] == {
        "where": '"12" < 13\n',
        "depth": 2,
        "exact": True,
        "names": ["a"],
        "filter": {"n": None},
        'a"b & c': None,
    }


def test_arguments_may_be_one_object() -> None:
    arguments = tag("json", '{"where": "x", "depth": 1}', ' type="object"')
    assert k3(tag("tools", call("find", arguments))).calls == (
        ("find", {"where": "x", "depth": 1}),
    )


@pytest.mark.parametrize(
    "text",
    [
        tag("tools", call("unknown")),
        tag("tools", call("find", argument("where", "x", "string")))[:-60],
        "<|open|>tools<|sep|>nothing",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert k3(tag("response", "So.") + text).content.startswith("So.<|open|>tools<|sep|>")


def test_other_tags_are_text() -> None:
    text = "It writes <|open|>note<|sep|> and <|close|>note<|sep|>."
    assert k3(tag("response", text)) == Parsed(text)


def test_reasoning_that_is_not_split_keeps_its_markers() -> None:
    text = tag("think", "Hm.") + tag("response", "So.")
    assert read(text, tool_calls="kimi_k3") == Parsed(tag("think", "Hm.") + "So.")
