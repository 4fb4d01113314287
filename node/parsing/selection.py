"""Chooses the formats of a model's output by its chat template and its vocabulary.

The template comes first: it shows the model how to spell a call, or spells earlier calls. If it
says nothing, the vocabulary decides. A model's name decides nothing, since folders are renamed.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

AUTO = "auto"
"""The tool format if none is recognized: reads calls of any format with markup of its own, and asks
the model for one of them."""
NONE = "none"


class Formats(NamedTuple):
    """Names of a model's formats."""

    reasoning: str = NONE
    tool_calls: str = NONE


class _Sign(NamedTuple):
    """A format, with the texts that a template for it contains."""

    name: str
    all_of: tuple[str, ...]


_THINK = "<think>"

_TOOL_SIGNS = (
    # Markup that no other format has.
    _Sign("kimi_k2", ("<|tool_calls_section_begin|>",)),
    _Sign("kimi_k3", ("<|open|>", "<|sep|>")),
    _Sign("dsml", ("｜DSML｜",)),
    _Sign("step3", ("steptml:",)),
    _Sign("deepseek_v3", ("<｜tool▁sep｜>", "```json")),
    _Sign("deepseek_v31", ("<｜tool▁sep｜>",)),
    _Sign("minimax_m3", ("]<]minimax[>[",)),
    _Sign("minimax_m2", ("<minimax:tool_call>",)),
    _Sign("hy_v3", ("<tool_sep{}>",)),
    _Sign("hy_v3", ("<tool_sep:",)),
    _Sign("k2_horizon", ("<ifm|tool_call",)),
    _Sign("longcat", ("<longcat_tool_call>",)),
    _Sign("seed_oss", ("<seed:tool_call>",)),
    _Sign("muse", ("<atem:",)),
    _Sign("muse", ("atem:invoke",)),
    _Sign("inkling", ("<|content_invoke_tool_json|>",)),
    _Sign("harmony", ("<|channel|>", "<|call|>")),
    _Sign("gemma4", ("<|tool_call>",)),
    _Sign("functiongemma", ("<start_function_call>",)),
    _Sign("solar", ("<|tool_call:begin|>",)),
    _Sign("command_r", ("<|START_ACTION|>",)),
    _Sign("command_r_plus", ("Action:", "tool_name", "<|CHATBOT_TOKEN|>")),
    _Sign("apertus", ("<|tools_prefix|>",)),
    _Sign("internlm2", ("<|action_start|>",)),
    _Sign("gigachat3", ("<|function_call|>",)),
    _Sign("lfm2", ("<|tool_call_start|>",)),
    _Sign("lfm2", ("<|tool_list_start|>",)),
    _Sign("mistral", ("[TOOL_CALLS]",)),
    _Sign("granite", ("<|tool_call|>", "<|start_of_role|>")),
    _Sign("nemotron_toolcall", ("<TOOLCALL>",)),
    _Sign("minicpm5", ("<function name=", "<param name=")),
    # Markup that several formats share, distinguished by its context.
    _Sign("ui_tars", ("Thought:", "Action:", "click(")),
    _Sign("ling3", ("<arg_key>", "<|role_end|>")),
    _Sign("glm", ("<arg_key>",)),
    _Sign("apriel", ("<tool_calls>", "[BEGIN FINAL RESPONSE]")),
    _Sign("hunyuan_a13b", ("<tool_calls>", "<|extra_0|>")),
    _Sign("jamba", ("<tool_calls>",)),
    _Sign("olmo3", ("<function_calls>",)),
    _Sign("granite_20b_fc", ("<function_call>",)),
    _Sign("qwen3_coder", ("<function=", "<parameter=")),
    _Sign("functionary_v31", ("<function=",)),
    _Sign("functionary_v32", (">>>", "recipient")),
    _Sign("firefunction", ("functools[", "<|start_header_id|>")),
    _Sign("phi4_functools", ("functools[",)),
    _Sign("reka_edge", ("<tool_call>", "assistant: ", "<sep>")),
    _Sign("ernie45", ("<tool_call>", _THINK, "<response>", "<|im_start|>")),
    _Sign("hermes", ("<tool_call>",)),
    # Words of an instruction.
    _Sign("pythonic", ("[func_name1(",)),
    _Sign("xlam", ("tool_call_name", '"arguments"')),
    _Sign("llama3_json", ('"name": function name', '"parameters"')),
    _Sign("llama3_json", ("<|python_tag|>",)),
)
"""The first sign that a template contains decides."""

_TOOL_TOKENS = (
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<｜DSML｜", "dsml"),
    ("｜DSML｜", "dsml"),
    ("<｜tool▁sep｜>", "deepseek_v31"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<longcat_tool_call>", "longcat"),
    ("<seed:tool_call>", "seed_oss"),
    ("<|START_ACTION|>", "command_r"),
    ("<|tools_prefix|>", "apertus"),
    ("<|action_start|>", "internlm2"),
    ("<|tool_call_start|>", "lfm2"),
    ("<|tool_call>", "gemma4"),
    ("<start_function_call>", "functiongemma"),
    ("<|tool_call:begin|>", "solar"),
    ("[TOOL_CALLS]", "mistral"),
    ("<arg_key>", "glm"),
    ("<TOOLCALL>", "nemotron_toolcall"),
    ("<tool_call>", "hermes"),
)
"""Tokens of vocabularies, for templates that say nothing."""

_REASONING_SIGNS = (
    _Sign("harmony", ("<|channel|>", "analysis")),
    _Sign("muse", ("<atem:",)),
    _Sign("muse", ("to=self", "<|message|>")),
    _Sign("kimi_k3", ("<|open|>", "<|sep|>")),
    _Sign("gemma4", ("<|channel>",)),
    _Sign("hy_v3", ("<think{}>",)),
    _Sign("hy_v3", ("<think:",)),
    _Sign("minimax_m3", ("<mm:think>",)),
    _Sign("seed", ("<seed:think>",)),
    _Sign("k2_horizon", ("<ifm|think",)),
    _Sign("mistral", ("[THINK]",)),
    _Sign("inkling", ("<|content_thinking|>",)),
    _Sign("command_r", ("<|START_THINKING|>",)),
    _Sign("solar", ("<|think|>",)),
    _Sign("longcat", ("<longcat_think>",)),
    _Sign("apertus", ("<|inner_prefix|>",)),
    _Sign("apriel", ("[BEGIN FINAL RESPONSE]",)),
    _Sign("granite", ("<response>", "<|start_of_role|>")),
    _Sign("ernie45", (_THINK, "<response>", "<|im_start|>")),
    _Sign("hunyuan_a13b", (_THINK, "<|extra_0|>")),
    _Sign("olmo3", (_THINK, "<function_calls>")),
    _Sign("ling3", (_THINK, "<|role_end|>")),
    _Sign("glm", (_THINK, "[gMASK]")),
    _Sign("ui_tars", ("Thought:", "Action:", "click(")),
    # A format without reasoning, but all of its output is addressed to a recipient.
    _Sign("functionary_v32", (">>>", "recipient")),
    _Sign("think", (_THINK,)),
    _Sign("think", ("</think>",)),
)

_REASONING_TOKENS = (
    ("<mm:think>", "minimax_m3"),
    ("<seed:think>", "seed"),
    ("[THINK]", "mistral"),
    ("<|START_THINKING|>", "command_r"),
    ("<longcat_think>", "longcat"),
    ("<|inner_prefix|>", "apertus"),
    (_THINK, "think"),
)


def select_formats(template: str, vocabulary: Collection[str]) -> Formats:
    """Returns the formats of a model with this chat template and these tokens. If nothing is
    recognized, `AUTO` for calls and `NONE` for reasoning."""
    return Formats(
        _select(template, vocabulary, _REASONING_SIGNS, _REASONING_TOKENS) or NONE,
        _select(template, vocabulary, _TOOL_SIGNS, _TOOL_TOKENS) or AUTO,
    )


def _select(
    template: str,
    vocabulary: Collection[str],
    signs: Sequence[_Sign],
    tokens: Sequence[tuple[str, str]],
) -> str | None:
    for sign in signs:
        if all(part in template for part in sign.all_of):
            return sign.name
    return next((name for token, name in tokens if token in vocabulary), None)
