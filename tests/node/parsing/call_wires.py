"""A call in each spelling of each format, for tests that check all formats by one rule.

The name stands for NAME and the arguments for ARGUMENTS, which are JSON text, or PARAMETERS, which
are written one by one.
"""

from collections.abc import Mapping
from typing import Any

JSON_WIRES: Mapping[str, tuple[str, ...]] = {
    "apertus": ('<|tools_prefix|>[{"NAME": ARGUMENTS}]<|tools_suffix|>',),
    "apriel": ('<tool_calls>[{"name": "NAME", "arguments": ARGUMENTS}]</tool_calls>',),
    "bracket": (
        "[Calling tool: NAME(ARGUMENTS)]",
        '[TOOL_CALL]{"name": "NAME", "arguments": ARGUMENTS}[/TOOL_CALL]',
    ),
    "command_r": (
        '<|START_ACTION|>[\n  {"tool_call_id": "0", "tool_name": "NAME", "parameters": ARGUMENTS}'
        "\n]<|END_ACTION|>",
    ),
    "command_r_plus": ('Action:\n```json\n[{"tool_name": "NAME", "parameters": ARGUMENTS}]\n```',),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGUMENTS\n"
        "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
    ),
    "ernie45": ('<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>',),
    "firefunction": (' functools[{"name": "NAME", "arguments": ARGUMENTS}]',),
    "function_xml": ("<function><name>NAME</name><arguments>ARGUMENTS</arguments></function>",),
    "functionary_v31": ("<function=NAME>ARGUMENTS</function>",),
    "functionary_v32": (">>>NAME\nARGUMENTS", "<function=NAME>ARGUMENTS</function>"),
    "gemma4": ('<|tool_call>{"name": "NAME", "arguments": ARGUMENTS}<tool_call|>',),
    "gigachat3": ('<|function_call|>{"name": "NAME", "arguments": ARGUMENTS}',),
    "glm": (
        '<tool_call>{"name": "NAME", "arguments": ARGUMENTS}</tool_call>',
        "<tool_call>NAME\nARGUMENTS</tool_call>",
    ),
    "granite": (
        '<|tool_call|>[{"name": "NAME", "arguments": ARGUMENTS}]',
        '[{"name": "NAME", "arguments": ARGUMENTS}]',
    ),
    "granite_20b_fc": ('<function_call> {"name": "NAME", "arguments": ARGUMENTS}',),
    "harmony": (
        "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>ARGUMENTS<|call|>",
    ),
    "hermes": (
        '<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>',
        '<tool_call>[{"name": "NAME", "arguments": ARGUMENTS}]</tool_call>',
        '<tool_call>{"type": "function", "function": {"name": "NAME", "arguments": ARGUMENTS}}'
        "</tool_call>",
        '<tool_call>{"arguments": ARGUMENTS, "name": "NAME"}</tool_call>',
        "<tool_call><function=NAME>ARGUMENTS</function></tool_call>",
    ),
    "hunyuan_a13b": ('<tool_calls>[{"name": "NAME", "arguments": ARGUMENTS}]</tool_calls>',),
    "hy_v3": ("<tool_calls><tool_call>NAME<tool_sep>ARGUMENTS</tool_call></tool_calls>",),
    "inkling": (
        '<|message_model|>NAME<|content_invoke_tool_json|>{"name": "NAME", "args": ARGUMENTS}'
        "<|end_message|>",
    ),
    "internlm2": (
        '<|action_start|><|plugin|>{"name": "NAME", "parameters": ARGUMENTS}<|action_end|>',
    ),
    "jamba": ('<tool_calls>[{"name": "NAME", "arguments": ARGUMENTS}]</tool_calls>',),
    "k2_horizon": (
        '<ifm|tool_calls><ifm|tool_call>{"name": "NAME", "arguments": ARGUMENTS}'
        "</ifm|tool_call></ifm|tool_calls>",
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0"
        "<|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "kimi_k3": (
        '<|open|>tools<|sep|><|open|>call tool="NAME" index="1"<|sep|><|open|>json '
        'type="object"<|sep|>ARGUMENTS<|close|>json<|sep|><|close|>call<|sep|>'
        "<|close|>tools<|sep|>",
    ),
    "lfm2": ('<|tool_call_start|>[{"name": "NAME", "arguments": ARGUMENTS}]<|tool_call_end|>',),
    "ling3": ('<tool_call>{"name": "NAME", "arguments": ARGUMENTS}</tool_call>',),
    "llama3_json": (
        '{"name": "NAME", "parameters": ARGUMENTS}',
        '<|python_tag|>{"type": "function", "name": "NAME", "parameters": ARGUMENTS}',
        "<function=NAME>ARGUMENTS</function>",
    ),
    "longcat": ('<longcat_tool_call>{"name": "NAME", "arguments": ARGUMENTS}</longcat_tool_call>',),
    "mistral": (
        '[TOOL_CALLS][{"name": "NAME", "arguments": ARGUMENTS, "id": "abcdefghi"}]',
        '[TOOL_CALLS]{"name": "NAME", "arguments": ARGUMENTS}',
        "[TOOL_CALLS]NAME[ARGS]ARGUMENTS",
        "[TOOL_CALLS]NAME[CALL_ID]abcdefghi[ARGS]ARGUMENTS",
        "[TOOL_CALLS]NAMEARGUMENTS",
    ),
    "nemotron": ('<TOOLCALL>[{"name": "NAME", "arguments": ARGUMENTS}]</TOOLCALL>',),
    "nemotron_toolcall": ('<TOOLCALL>[{"name": "NAME", "arguments": ARGUMENTS}]</TOOLCALL>',),
    "phi4_functools": (
        'functools[{"name": "NAME", "arguments": ARGUMENTS}]',
        '<|tool_call|>[{"name": "NAME", "arguments": ARGUMENTS}]<|/tool_call|>',
    ),
    "pythonic": ('<|python_start|>[{"name": "NAME", "arguments": ARGUMENTS}]<|python_end|>',),
    "reka_edge": ('<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>',),
    "solar": (
        "<|begin|>assistant<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>NAME"
        "<|tool_call:args|>ARGUMENTS<|tool_call:end|><|calls|>",
    ),
    "xlam": (
        '[{"name": "NAME", "arguments": ARGUMENTS}]',
        '```json\n[{"name": "NAME", "arguments": ARGUMENTS}]\n```',
    ),
}
"""Spellings whose arguments are one JSON text."""

PARAMETER_WIRES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "dsml": (
        (
            '<｜DSML｜tool_calls><｜DSML｜invoke name="NAME">PARAMETERS</｜DSML｜invoke>'
            "</｜DSML｜tool_calls>",
            '<｜DSML｜parameter name="KEY">VALUE</｜DSML｜parameter>',
        ),
    ),
    "glm": (
        (
            "<tool_call>NAME\nPARAMETERS</tool_call>",
            "<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n",
        ),
    ),
    "hy_v3": (
        (
            "<tool_calls><tool_call>NAME<tool_sep>PARAMETERS</tool_call></tool_calls>",
            "<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>",
        ),
    ),
    "k2_horizon": (
        (
            "<ifm|tool_calls><ifm|tool_call>NAME\nPARAMETERS</ifm|tool_call></ifm|tool_calls>",
            "<ifm|arg_key>KEY</ifm|arg_key><ifm|arg_value>VALUE</ifm|arg_value>",
        ),
    ),
    "kimi_k3": (
        (
            '<|open|>tools<|sep|><|open|>call tool="NAME" index="1"<|sep|>PARAMETERS'
            "<|close|>call<|sep|><|close|>tools<|sep|>",
            '<|open|>argument key="KEY"<|sep|>VALUE<|close|>argument<|sep|>',
        ),
    ),
    "ling3": (
        (
            "<tool_call>NAME\nPARAMETERS</tool_call>",
            "<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>",
        ),
    ),
    "longcat": (
        (
            "<longcat_tool_call>NAME\nPARAMETERS</longcat_tool_call>",
            "<longcat_arg_key>KEY</longcat_arg_key><longcat_arg_value>VALUE</longcat_arg_value>",
        ),
    ),
    "minicpm5": (
        (
            '<function name="NAME">PARAMETERS</function>',
            '<param name="KEY"><![CDATA[VALUE]]></param>',
        ),
    ),
    "minimax_m2": (
        (
            '<minimax:tool_call>\n<invoke name="NAME">\nPARAMETERS</invoke>\n</minimax:tool_call>',
            '<parameter name="KEY">VALUE</parameter>\n',
        ),
    ),
    "minimax_m3": (
        (
            ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="NAME">PARAMETERS'
            "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
            "]<]minimax[>[<KEY>VALUE]<]minimax[>[</KEY>",
        ),
    ),
    "muse": (
        (
            ' to=NAME<|message|><atem:function_calls><atem:invoke name="NAME">PARAMETERS'
            "</atem:invoke></atem:function_calls>",
            '<atem:parameter name="KEY">VALUE</atem:parameter>',
        ),
    ),
    "hermes": (
        (
            "<tool_call>\n<function=NAME>\nPARAMETERS</function>\n</tool_call>",
            "<parameter=KEY>\nVALUE\n</parameter>\n",
        ),
    ),
    "qwen3_coder": (
        (
            "<tool_call>\n<function=NAME>\nPARAMETERS</function>\n</tool_call>",
            "<parameter=KEY>\nVALUE\n</parameter>\n",
        ),
        (
            "<function=NAME>\nPARAMETERS</function>",
            "<parameter=KEY>\nVALUE\n</parameter>\n",
        ),
    ),
    "seed_oss": (
        (
            "<seed:tool_call><function=NAME>PARAMETERS</function></seed:tool_call>",
            "<parameter=KEY>VALUE</parameter>",
        ),
    ),
    "step3": (
        (
            "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
            '<steptml:invoke name="NAME">PARAMETERS</steptml:invoke><｜tool_call_end｜>'
            "<｜tool_calls_end｜>",
            '<steptml:parameter name="KEY">VALUE</steptml:parameter>',
        ),
    ),
}
"""Spellings whose arguments stand in tags: (the call, one of them), values as bare text."""


PYTHON_WIRES: Mapping[str, tuple[str, ...]] = {
    "gemma4": (
        "```tool_code\nNAME(PARAMETERS)\n```",
        "<|tool_call>call:NAME(PARAMETERS)<tool_call|>",
    ),
    "lfm2": ("<|tool_call_start|>[NAME(PARAMETERS)]<|tool_call_end|>", "[NAME(PARAMETERS)]"),
    "llama3_json": ("<|python_tag|>NAME.call(PARAMETERS)",),
    "olmo3": ("<function_calls>\nNAME(PARAMETERS)\n</function_calls>",),
    "pythonic": ("[NAME(PARAMETERS)]", "<|python_start|>[NAME(PARAMETERS)]<|python_end|>"),
}
"""Spellings whose arguments are literals of Python."""

ALL_JSON = [(name, wire) for name, wires in JSON_WIRES.items() for wire in wires]
"""(format, spelling) of all whose arguments are JSON."""
ALL_TAGGED = [(name, wire) for name, wires in PARAMETER_WIRES.items() for wire in wires]
"""(format, spelling) of all whose arguments stand in tags."""


BRACED = [
    (
        "gemma4",
        ("<|tool_call>call:NAME{PARAMETERS}<tool_call|>", 'KEY:<|"|>VALUE<|"|>,'),
    ),
    (
        "functiongemma",
        (
            "<start_function_call>call:NAME{PARAMETERS}<end_function_call>",
            "KEY:<escape>VALUE<escape>,",
        ),
    ),
]
"""Formats of the same kind, in braces, where all values are strings."""
ALL_PYTHON = [(name, wire) for name, wires in PYTHON_WIRES.items() for wire in wires]
"""(format, spelling) of all whose arguments are Python's."""


def in_json(wire: str, name: str, arguments: str) -> str:
    """The call, with the JSON text of its arguments."""
    return wire.replace("NAME", name).replace("ARGUMENTS", arguments)


def in_tags(wire: tuple[str, str], name: str, arguments: Mapping[str, Any]) -> str:
    """The call, with arguments whose values are as they are to be written."""
    call, parameter = wire
    written = "".join(
        parameter.replace("KEY", key).replace("VALUE", value) for key, value in arguments.items()
    )
    return call.replace("NAME", name).replace("PARAMETERS", written)


def in_python(wire: str, name: str, arguments: Mapping[str, Any]) -> str:
    """The call, with its arguments as Python prints them."""
    written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return wire.replace("NAME", name).replace("PARAMETERS", written)
