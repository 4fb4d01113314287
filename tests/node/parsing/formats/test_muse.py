"""Outputs of Muse."""

import pytest

from tests.node.parsing.reading import Parsed, read

START = "<|start|>assistant"


def muse(text: str, tail: str = START) -> Parsed:
    return read(text, reasoning="muse", tool_calls="muse", tail=tail)


def block(name: str, *parameters: tuple[str, str]) -> str:
    inner = "".join(
        f'<atem:parameter name="{key}">{text}</atem:parameter>\n' for key, text in parameters
    )
    invoke = f'<atem:invoke name="{name}">\n{inner}</atem:invoke>\n'
    return f"<atem:function_calls>\n{invoke}</atem:function_calls>"


def test_messages_to_self_to_the_user_and_to_a_tool_are_distinguished() -> None:
    text = (
        f" to=self<|message|>Hm.<|eom|>{START} to=user<|message|>I look.<|eom|>"
        f"{START} to=find<|message|>{block('find', ('where', ' x '), ('depth', '2'))}<|eom|>"
        f"{START} to=ping<|message|>{block('ping')}<|eot|>"
    )
    expected = Parsed("I look.", "Hm.", (("find", {"where": " x ", "depth": 2}), ("ping", {})))
    assert muse(text) == muse(text, tail="") == expected


def test_a_block_in_a_message_to_the_user_is_no_call() -> None:
    text = "Write it so:\n" + block("find", ("where", "x"))
    assert muse(f" to=user<|message|>{text}<|eot|>") == Parsed(text)


def test_a_message_without_a_recipient_is_the_answer() -> None:
    assert muse("<|message|>So.<|eot|>") == muse("So.") == Parsed("So.")


def test_the_prompt_may_have_opened_the_message() -> None:
    assert muse("Hm.<|eom|>", START + " to=self<|message|>") == Parsed("", "Hm.")
    assert muse("so.<|eot|>", START + " to=user<|message|>It is ") == Parsed("so.")


@pytest.mark.parametrize("value", ["<b>a</b>\n</atem:parameter> b", '["a"', "</atem:invoke>"])
def test_values_are_bare_text(value: str) -> None:
    text = f" to=find<|message|>{block('find', ('where', value), ('mode', 'm'))}<|eot|>"
    assert muse(text) == Parsed(calls=(("find", {"where": value, "mode": "m"}),))


def test_the_tags_name_the_tool_that_the_message_is_to() -> None:
    text = f"to=ping<|message|>{block('find', ('where', 'x'))}"
    assert muse(text) == Parsed(text)


def test_a_header_that_the_output_ends_within_is_no_text() -> None:
    assert muse(" to=us") == Parsed()


def test_what_is_no_call_stays_text() -> None:
    for body in (block("unknown"), block("find", ("where", "x"))[:-50]):
        text = "to=find<|message|>" + body
        assert muse(text) == Parsed(text)
