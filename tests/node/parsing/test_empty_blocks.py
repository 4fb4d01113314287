"""Blocks and channels of calls that contain none: their markup is no text."""

import pytest

from node.ipc.messages import PartKind
from node.parsing.calls.marked import MarkedLayout
from node.parsing.output_parser import OutputParser
from node.parsing.registry import layout_for
from tests.node.parsing.reading import TOOLS, Parsed, Tools, output_format, read

BLOCKS = {
    "apertus": ["<|tools_prefix|>[]<|tools_suffix|>", "<|tools_prefix|><|tools_suffix|>"],
    "deepseek_v31": [
        "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ],
    "dsml": ["<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>"],
    "functiongemma": ["<start_function_call><end_function_call>"],
    "gemma4": ["<|tool_call><tool_call|>", "<|tool_call>[]<tool_call|>"],
    "glm": ["<tool_call></tool_call>", "<tool_call>[]</tool_call>"],
    "granite": ["<|tool_call|>[]", "<tool_call>[]</tool_call>"],
    "granite_20b_fc": ["<function_call></function_call>", "<function_call>[]"],
    "hermes": ["<tool_call>\n</tool_call>", "<tool_call>[]</tool_call>"],
    "hunyuan_a13b": ["<tool_calls>[]</tool_calls>", "<tool_calls></tool_calls>"],
    "hy_v3": ["<tool_calls></tool_calls>"],
    "internlm2": [
        "<|action_start|><|plugin|><|action_end|>",
        "<|action_start|> <|plugin|>[]<|action_end|>",
    ],
    "jamba": ["<tool_calls>[ ]</tool_calls>"],
    "k2_horizon": ["<ifm|tool_calls></ifm|tool_calls>"],
    "kimi_k2": [
        "<|tool_calls_section_begin|><|tool_calls_section_end|>",
        "<|tool_calls_section_begin|><|tool_call_begin|><|tool_call_end|>"
        "<|tool_calls_section_end|>",
    ],
    "lfm2": ["<|tool_call_start|>[]<|tool_call_end|>", "<|tool_call_start|><|tool_call_end|>"],
    "longcat": ["<longcat_tool_call></longcat_tool_call>"],
    "minimax_m2": ["<minimax:tool_call>\n</minimax:tool_call>"],
    "mistral": ["[TOOL_CALLS][]", "[TOOL_CALLS] [ ]"],
    "nemotron": ["<TOOLCALL>[]</TOOLCALL>", "<TOOLCALL></TOOLCALL>"],
    "olmo3": ["<function_calls></function_calls>", "<function_calls>\n[]\n</function_calls>"],
    "phi4_functools": ["<|tool_call|>[]<|/tool_call|>"],
    "pythonic": ["<|python_start|>[]<|python_end|>"],
    "qwen3_coder": ["<tool_call></tool_call>"],
    "seed_oss": ["<seed:tool_call></seed:tool_call>"],
    "step3": ["<｜tool_calls_begin｜><｜tool_calls_end｜>"],
}
CHANNELS = {
    "command_r": [
        "<|START_ACTION|>[]<|END_ACTION|>",
        "<|START_ACTION|><|END_ACTION|>",
        "<|START_RESPONSE|>So.<|END_RESPONSE|><|START_ACTION|>[]<|END_ACTION|>",
    ],
    "harmony": [
        "<|start|>assistant<|channel|>commentary to=functions.open<|message|><|call|>",
        "<|start|>assistant<|channel|>commentary to=functions.need<|message|> <|end|>",
        "<|channel|>final<|message|>So.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.open<|message|>",
    ],
    "inkling": [
        "<|message_model|><|content_invoke_tool_json|><|end_message|>",
        "<|message_model|><|content_text|>So.<|end_message|>"
        "<|message_model|>ping<|content_invoke_tool_json|>[]<|end_message|>",
    ],
    "kimi_k3": [
        "<|open|>tools<|sep|><|close|>tools<|sep|>",
        "<|open|>response<|sep|>So.<|close|>response<|sep|>"
        "<|open|>tools<|sep|><|close|>tools<|sep|>",
    ],
    "muse": [
        "<|start|>assistant to=open<|message|><|eom|>",
        "<|start|>assistant to=need<|message|><atem:function_calls></atem:function_calls><|eom|>",
    ],
    "solar": [
        "<|begin|>assistant<|tool_calls|><|calls|>",
        "<|begin|>assistant<|content|>So.<|end|><|begin|>assistant<|tool_calls|><|end|>",
    ],
}
NEED: Tools = {
    **TOOLS,
    "need": {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
    },
}
ALL_BLOCKS = [(name, text) for name, texts in BLOCKS.items() for text in texts]
ALL_CHANNELS = [(name, text) for name, texts in CHANNELS.items() for text in texts]


def read_in_tokens(name: str, block: str, tools: Tools, before: str, behind: str) -> Parsed:
    """Parses an output whose block has all its markers as tokens."""
    grammar = layout_for("none", name)
    markers = sorted((*grammar.openers, *grammar.orphans), key=len, reverse=True)
    machine = OutputParser(output_format(tool_calls=name, tools=tools))
    parts = machine.feed(before)
    rest = block
    while rest:
        marker = next((each for each in markers if rest.startswith(each)), "")
        # Several tokens may make one marker.
        for piece in marker.replace("><", ">\0<").split("\0") if marker else [rest[0]]:
            parts += machine.feed_token(piece, special=True) if marker else machine.feed(piece)
        rest = rest[len(marker) or 1 :]
    parts += [*machine.feed(behind), *machine.finish()]
    assert {part.kind for part in parts} <= {PartKind.CONTENT}
    return Parsed("".join(part.text for part in parts))


@pytest.mark.parametrize(("name", "block"), ALL_BLOCKS)
@pytest.mark.parametrize("tools", [TOOLS, {}], ids=["tools", "no tools"])
def test_an_empty_block_of_tokens_is_no_text_wherever_it_stands(
    name: str, block: str, tools: Tools
) -> None:
    assert isinstance(layout_for("none", name), MarkedLayout)
    for before in ("", "So."):
        assert read_in_tokens(name, block, tools, before, "") == Parsed(before)
        if name != "mistral" or not tools:
            found = read_in_tokens(name, block, tools, before, "\nIt is.")
            assert found.content.split() == [*before.split(), "It", "is."]


@pytest.mark.parametrize(("name", "block"), ALL_BLOCKS)
def test_one_that_is_spelled_is_no_text_where_the_answer_begins(name: str, block: str) -> None:
    assert read(block, tool_calls=name) == Parsed()
    assert read(block, reasoning="think", tool_calls=name, tail="</think>\n\n") == Parsed()


@pytest.mark.parametrize(("name", "block"), ALL_CHANNELS)
@pytest.mark.parametrize("tools", [NEED, {}], ids=["tools", "no tools"])
def test_an_empty_channel_of_calls_is_no_text(name: str, block: str, tools: Tools) -> None:
    found = read(block, reasoning=name, tool_calls=name, tools=tools)
    assert found == Parsed("So." if "So." in block else "")


def test_an_empty_list_may_be_an_answer() -> None:
    for name in ("xlam", "pythonic", "granite", "lfm2"):
        assert read("[]", tool_calls=name) == Parsed("[]")
    assert read("</think>[]", tool_calls="xlam") == Parsed("</think>[]")
    assert read("```json\n[]\n```", tool_calls="xlam") == Parsed("```json\n[]\n```")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("command_r", '<|START_ACTION|>[{"tool_name": "f", "parameters": {}}]<|END_ACTION|>'),
        ("harmony", "<|channel|>commentary to=functions.f<|message|>{}<|call|>"),
        ("inkling", '<|content_invoke_tool_json|>{"name": "f", "args": {}}<|end_message|>'),
        (
            "kimi_k3",
            '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|close|>call<|sep|>'
            "<|close|>tools<|sep|>",
        ),
        (
            "muse",
            '<|start|>assistant to=f<|message|><atem:invoke name="f"></atem:invoke><|eom|>',
        ),
        (
            "solar",
            "<|tool_call:begin|>1<|tool_call:name|>f<|tool_call:args|>{}<|tool_call:end|><|calls|>",
        ),
    ],
)
def test_a_call_that_begins_an_answer_without_tools_is_not_returned(name: str, text: str) -> None:
    assert read(text, reasoning=name, tool_calls=name, tools={}) == Parsed()
    answered = read(f"So.{text}", reasoning=name, tool_calls=name, tools={}, tail="assistant: ")
    assert answered.content.startswith("So.<|")
    # One that is not whole is text, and so is one of another tool than those that there are.
    cut = text[: text.rindex("f") + 3]
    assert read(cut, reasoning=name, tool_calls=name, tools={}).content
    assert read(text, reasoning=name, tool_calls=name).content


def test_a_session_of_python_is_no_call() -> None:
    text = ">>>all\nSo:\n>>>x\n{}\n"
    found = read(text, reasoning="functionary_v32", tool_calls="functionary_v32", tools={})
    assert found == Parsed("So:\n>>>x\n{}")
