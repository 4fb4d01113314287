"""One call as models of each family write it."""

from collections.abc import Mapping

ARGUMENTS = {"where": "a b", "depth": 3}
"""Arguments of a call of `find`, one of `tests.node.parsing.reading.TOOLS`."""

CALLS: Mapping[str, str] = {
    "apertus": '<|tools_prefix|>[{"find": {"where": "a b", "depth": 3}}]<|tools_suffix|>',
    "apriel": '<tool_calls>[{"name": "find", "arguments": {"where": "a b", "depth": 3}}]'
    "</tool_calls>",
    "bracket": '[Calling tool: find({"where": "a b", "depth": 3})]',
    "command_r": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "find", "parameters": '
    '{"where": "a b", "depth": 3}}]<|END_ACTION|>',
    "command_r_plus": 'Action:\n```json\n[{"tool_name": "find", "parameters": '
    '{"where": "a b", "depth": 3}}]\n```',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>find\n"
    '```json\n{"where": "a b", "depth": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>find<｜tool▁sep｜>"
    '{"where": "a b", "depth": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "dsml": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="find">\n<｜DSML｜parameter name="where" '
    'string="true">a b</｜DSML｜parameter>\n<｜DSML｜parameter name="depth" string="false">3'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    "firefunction": ' functools[{"name": "find", "arguments": {"where": "a b", "depth": 3}}]',
    "functionary_v31": '<function=find>{"where": "a b", "depth": 3}</function>',
    "functionary_v32": '>>>find\n{"where": "a b", "depth": 3}',
    "functiongemma": "<start_function_call>call:find{where:<escape>a b<escape>,depth:3}"
    "<end_function_call>",
    "gemma4": '<|tool_call>call:find{where:<|"|>a b<|"|>,depth:3}<tool_call|>',
    "gigachat3": '<|function_call|>{"name": "find", "arguments": {"where": "a b", "depth": 3}}',
    "glm": "<tool_call>find\n<arg_key>where</arg_key>\n<arg_value>a b</arg_value>\n"
    "<arg_key>depth</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    "granite": '<|tool_call|>[{"name": "find", "arguments": {"where": "a b", "depth": 3}}]',
    "granite_20b_fc": '<function_call> {"name": "find", "arguments": {"where": "a b", "depth": 3}}',
    "harmony": "<|channel|>commentary to=functions.find <|constrain|>json<|message|>"
    '{"where": "a b", "depth": 3}<|call|>',
    "hermes": '<tool_call>\n{"name": "find", "arguments": {"where": "a b", "depth": 3}}\n'
    "</tool_call>",
    "hunyuan_a13b": '<tool_calls>[{"name": "find", "arguments": {"where": "a b", "depth": 3}}]'
    "</tool_calls>",
    "hy_v3": "<tool_calls:opensource><tool_call:opensource>find<tool_sep:opensource>"
    "<arg_key:opensource>where</arg_key:opensource><arg_value:opensource>a b"
    "</arg_value:opensource><arg_key:opensource>depth</arg_key:opensource>"
    "<arg_value:opensource>3</arg_value:opensource></tool_call:opensource>"
    "</tool_calls:opensource>",
    "inkling": '<|content_invoke_tool_json|>{"name": "find", "args": '
    '{"where": "a b", "depth": 3}}<|end_message|>',
    "internlm2": '<|action_start|><|plugin|>{"name": "find", "parameters": '
    '{"where": "a b", "depth": 3}}<|action_end|>',
    "jamba": '<tool_calls>[{"name": "find", "arguments": {"where": "a b", "depth": 3}}]'
    "</tool_calls>",
    "k2_horizon": "<ifm|tool_calls><ifm|tool_call>find\n<ifm|arg_key>where</ifm|arg_key>"
    "<ifm|arg_value>a b</ifm|arg_value><ifm|arg_key>depth</ifm|arg_key>"
    "<ifm|arg_value>3</ifm|arg_value></ifm|tool_call></ifm|tool_calls>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.find:0"
    '<|tool_call_argument_begin|>{"where": "a b", "depth": 3}<|tool_call_end|>'
    "<|tool_calls_section_end|>",
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="find" index="1"<|sep|><|open|>argument '
    'key="where" type="string"<|sep|>a b<|close|>argument<|sep|><|open|>argument '
    'key="depth" type="integer"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>'
    "<|close|>tools<|sep|>",
    "lfm2": '<|tool_call_start|>[find(where="a b", depth=3)]<|tool_call_end|>',
    "llama3_json": '{"name": "find", "parameters": {"where": "a b", "depth": 3}}',
    "longcat": "<longcat_tool_call>find\n<longcat_arg_key>where</longcat_arg_key>"
    "<longcat_arg_value>a b</longcat_arg_value><longcat_arg_key>depth</longcat_arg_key>"
    "<longcat_arg_value>3</longcat_arg_value></longcat_tool_call>",
    "minicpm5": '<function name="find"><param name="where">a b</param><param name="depth">3'
    "</param></function>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="find">\n<parameter name="where">a b'
    '</parameter>\n<parameter name="depth">3</parameter>\n</invoke>\n</minimax:tool_call>',
    "minimax_m3": ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="find">]<]minimax[>[<where>'
    "a b]<]minimax[>[</where>]<]minimax[>[<depth>3]<]minimax[>[</depth>]<]minimax[>[</invoke>\n"
    "]<]minimax[>[</tool_call>",
    "mistral": '[TOOL_CALLS]find[ARGS]{"where": "a b", "depth": 3}',
    "muse": ' to=find<|message|><atem:function_calls><atem:invoke name="find">'
    '<atem:parameter name="where">a b</atem:parameter><atem:parameter name="depth">3'
    "</atem:parameter></atem:invoke></atem:function_calls><|eom|>",
    "nemotron_toolcall": '<TOOLCALL>[{"name": "find", "arguments": {"where": "a b", "depth": 3}}]'
    "</TOOLCALL>",
    "olmo3": "<function_calls>find(where='a b', depth=3)</function_calls>",
    "phi4_functools": 'functools[{"name": "find", "arguments": {"where": "a b", "depth": 3}}]',
    "pythonic": "[find(where='a b', depth=3)]",
    "qwen3_coder": "<tool_call>\n<function=find>\n<parameter=where>\na b\n</parameter>\n"
    "<parameter=depth>\n3\n</parameter>\n</function>\n</tool_call>",
    "seed_oss": "<seed:tool_call><function=find><parameter=where>a b</parameter>"
    "<parameter=depth>3</parameter></function></seed:tool_call>",
    "solar": "<|tool_call:begin|>id1<|tool_call:name|>find<|tool_call:args|>"
    '{"where": "a b", "depth": 3}<|tool_call:end|>',
    "step3": '<｜tool_calls_begin｜><｜tool_call_begin｜><steptml:invoke name="find">'
    '<steptml:parameter name="where">a b</steptml:parameter><steptml:parameter name="depth">3'
    "</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
    "xlam": '[{"name": "find", "arguments": {"where": "a b", "depth": 3}}]',
}
"""By the format's name."""
