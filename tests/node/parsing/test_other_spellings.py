"""Calls in a spelling that is not the model's own, and that of models of which nothing is known."""

import pytest

from tests.node.parsing.reading import Calls, Parsed, read

PINGED: Calls = (("ping", {}),)
FOUND = (("find", {"where": "a"}),)


@pytest.mark.parametrize("name", ["nemotron", "nemotron3", "nemotron3_nano", "nemotron_v3"])
@pytest.mark.parametrize(
    "text",
    [
        '<TOOLCALL>[{"name": "find", "arguments": {"where": "a"}}]</TOOLCALL>',
        '<tool_call>{"name": "find", "arguments": {"where": "a"}}</tool_call>',
        "<tool_call>\n<function=find>\n<parameter=where>\na\n</parameter>\n</function>\n</tool_call>",
        '[Calling tool: find({"where": "a"})]',
    ],
)
def test_nemotron_has_several_spellings(name: str, text: str) -> None:
    assert read(f"So. {text}", tool_calls=name) == Parsed("So.", calls=FOUND)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "find", "arguments": {"where": "a"}}</tool_call>',
        "<function=find><parameter=where>a</parameter></function>",
    ],
)
def test_minimax_m2_has_those_of_hermes(text: str) -> None:
    assert read(f"So. {text}", tool_calls="minimax_m2") == Parsed("So.", calls=FOUND)


FUNCTION = "<function>\n<name>find</name>\n<arguments>{}</arguments>\n</function>"


@pytest.mark.parametrize("name", ["hermes", "gemma4", "lfm2", "auto", "function_xml"])
def test_a_function_may_have_its_name_in_a_tag(name: str) -> None:
    text = FUNCTION.format('{"where": "a"}')
    assert read(f"So.\n{text}", tool_calls=name) == Parsed("So.", calls=FOUND)
    for text in (
        FUNCTION.format("x"),
        FUNCTION.format("{}").replace("find", "open"),
        FUNCTION.format("{}")[:-20],
        "A <function> has a <name>find</name>.",
    ):
        assert read(text, tool_calls=name) == Parsed(text)


WHOLE = {
    "command_r": '<|START_ACTION|>[{"tool_name": "find", "parameters": %}]<|END_ACTION|>',
    "functionary": ">>>find\n%",
    "older functionary": "<|from|>assistant\n<|recipient|>find\n<|content|>%<|stop|>",
    "harmony": "<|channel|>commentary to=functions.find <|constrain|>json<|message|>%<|call|>",
    "inkling": '<|content_invoke_tool_json|>{"name": "find", "args": %}<|end_message|>',
    "kimi_k3": (
        '<|open|>tools<|sep|><|open|>call tool="find" index="1"<|sep|><|open|>json<|sep|>%'
        "<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"
    ),
    "muse": (
        '<atem:function_calls><atem:invoke name="find">'
        '<atem:parameter name="where">a</atem:parameter></atem:invoke></atem:function_calls>'
    ),
    "solar": (
        "<|tool_call:begin|>k1<|tool_call:name|>find<|tool_call:args|>%<|tool_call:end|><|calls|>"
    ),
}


@pytest.mark.parametrize("form", WHOLE)
def test_auto_reads_calls_of_formats_of_outputs_as_a_whole(form: str) -> None:
    text = WHOLE[form].replace("%", '{"where": "a"}')
    assert read(f"So. {text}", tool_calls="auto") == Parsed("So.", calls=FOUND)
    for other in (text.replace("find", "open"), text[: len(text) // 2]):
        assert read(f"So. {other}", tool_calls="auto") == Parsed(f"So. {other}".strip())


@pytest.mark.parametrize(
    "text",
    [
        ">>> find\n3",
        ">>>all\nSo.",
        "<|channel|>final<|message|>So.<|end|>",
        "<|start|> and <|from|>",
    ],
)
def test_auto_leaves_their_other_markup_alone(text: str) -> None:
    assert read(text, tool_calls="auto") == Parsed(text)
