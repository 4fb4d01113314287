"""Formats by what templates and vocabularies contain."""

import pytest

from node.parsing import selection
from node.parsing.registry import reasoning_names, tool_call_names
from node.parsing.selection import Formats, select_formats


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<tool_call>\n{{ c | tojson }}\n</tool_call>", "hermes"),
        ("<tool_call>\n<function={{ n }}>\n<parameter={{ k }}>", "qwen3_coder"),
        ("<TOOLCALL>[{{ c }}]</TOOLCALL>", "nemotron_toolcall"),
        ('Say {"name": function name, "parameters": arguments}.', "llama3_json"),
        ("<|python_tag|>{{ c }}", "llama3_json"),
        ("Say [func_name1(a=1), func_name2(b=2)]", "pythonic"),
        ("<|tool_call_start|>[{{ c }}]", "lfm2"),
        ("<|tool_list_start|>{{ tools }}", "lfm2"),
        ("[TOOL_CALLS]{{ n }}[ARGS]", "mistral"),
        ("<｜tool▁sep｜>{{ n }}\n```json\n{{ a }}", "deepseek_v3"),
        ("{{ n }}<｜tool▁sep｜>{{ a }}", "deepseek_v31"),
        ("{% set d = '｜DSML｜' %}<{{ d }}invoke>", "dsml"),
        ("<|tool_calls_section_begin|>", "kimi_k2"),
        ("{{ '<|open|>' + tag + '<|sep|>' }}", "kimi_k3"),
        ("<|start_of_role|>x<|tool_call|>", "granite"),
        ("<function_call> {{ c }}", "granite_20b_fc"),
        ("<tool_call>{{ n }}\n<arg_key>", "glm"),
        ("<longcat_tool_call>", "longcat"),
        ("<|channel|>commentary{{ a }}<|call|>", "harmony"),
        ("<function={{ n }}>{{ a }}</function>", "functionary_v31"),
        (">>>{{ recipient }}", "functionary_v32"),
        ('[{"name": "tool_call_name", "arguments": {}}]', "xlam"),
        ("<minimax:tool_call>", "minimax_m2"),
        ("]<]minimax[>[<tool_call>", "minimax_m3"),
        ("<|tool_call>call:{{ n }}", "gemma4"),
        ("<start_function_call>call:{{ n }}", "functiongemma"),
        ("<seed:tool_call>\n<function={{ n }}>\n<parameter=", "seed_oss"),
        ("{{ '<tool_sep{}>'.format(s) }}<arg_key>", "hy_v3"),
        ('<function name="{{ n }}"><param name="{{ k }}">', "minicpm5"),
        ('<atem:invoke name="{{ n }}">', "muse"),
        ("<ifm|tool_call>", "k2_horizon"),
        ("<|tool_call:begin|>", "solar"),
        ("<|START_ACTION|>[", "command_r"),
        ("<|CHATBOT_TOKEN|>Action: ```json [{'tool_name'", "command_r_plus"),
        ("<|tools_prefix|>[", "apertus"),
        ("<|function_call|>{", "gigachat3"),
        ("<|action_start|><|plugin|>", "internlm2"),
        (" <tool_calls>[", "jamba"),
        ("<|extra_0|><tool_calls>[", "hunyuan_a13b"),
        ("[BEGIN FINAL RESPONSE]<tool_calls>[", "apriel"),
        ("<function_calls>{{ c }}</function_calls>", "olmo3"),
        ("<sep> assistant: <tool_call>", "reka_edge"),
        ("<steptml:invoke", "step3"),
        ("functools[{{ c }}]", "phi4_functools"),
        ("<|start_header_id|>functools[", "firefunction"),
        ("<tool_call><arg_key><|role_end|>", "ling3"),
        ("Thought: x\nAction: click(a)", "ui_tars"),
        ("<|im_start|><think><response><tool_call>", "ernie45"),
        ("<|content_invoke_tool_json|>", "inkling"),
        ("{{ messages }}", "auto"),
        ("", "auto"),
    ],
)
def test_the_format_of_calls_is_determined_by_the_template(template: str, name: str) -> None:
    assert select_formats(template, ()).tool_calls == name


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<think>\n", "think"),
        ("{{ content.split('</think>')[-1] }}", "think"),
        ("[THINK]{{ r }}[/THINK]", "mistral"),
        ("<|channel|>analysis<|message|>", "harmony"),
        ("<|channel>thought\n<channel|>", "gemma4"),
        ("{{ '<think{}>'.format(s) }}", "hy_v3"),
        ("<seed:think>", "seed"),
        ("<mm:think>", "minimax_m3"),
        ("<ifm|think>", "k2_horizon"),
        ("to=self<|message|>", "muse"),
        ("Thought: x\nAction: click(a)", "ui_tars"),
        ("<|START_THINKING|>", "command_r"),
        ("{{ '<|open|>' + tag + '<|sep|>' }}", "kimi_k3"),
        ("<|think|>", "solar"),
        ("<|start_of_role|><think></think><response></response>", "granite"),
        ("<|im_start|><think></think><response></response>", "ernie45"),
        ("<tool_response><response><think>", "think"),
        ("<|extra_0|><think>", "hunyuan_a13b"),
        ("[BEGIN FINAL RESPONSE]", "apriel"),
        ("<function_calls><think>", "olmo3"),
        ("<|content_thinking|>", "inkling"),
        ("<longcat_think>", "longcat"),
        ("<|inner_prefix|>", "apertus"),
        ("[gMASK]<sop><think>", "glm"),
        ("<think><|role_end|>", "ling3"),
        (">>>{{ recipient }}", "functionary_v32"),
        ("{{ messages }}", "none"),
    ],
)
def test_the_format_of_reasoning_is_determined_by_the_template(template: str, name: str) -> None:
    assert select_formats(template, ()).reasoning == name


def test_the_vocabulary_determines_what_the_template_does_not() -> None:
    assert select_formats("", {"<think>", "<tool_call>"}) == Formats("think", "hermes")
    assert select_formats("", {"[TOOL_CALLS]", "[THINK]"}) == Formats("mistral", "mistral")
    template = "[TOOL_CALLS]<seed:think>"
    assert select_formats(template, {"<think>", "<tool_call>"}) == Formats("seed", "mistral")


def test_nothing_is_determined_by_nothing() -> None:
    assert select_formats("", ()) == Formats("none", "auto")
    assert Formats() == ("none", "none")


def test_all_that_is_selected_is_known() -> None:
    calls = {sign.name for sign in selection._TOOL_SIGNS}
    calls |= {name for _, name in selection._TOOL_TOKENS} | {selection.AUTO, selection.NONE}
    assert calls <= set(tool_call_names())
    reasoning = {sign.name for sign in selection._REASONING_SIGNS}
    reasoning |= {name for _, name in selection._REASONING_TOKENS} | {selection.NONE}
    assert reasoning <= set(reasoning_names())
