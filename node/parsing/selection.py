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


class _FormatSignature(NamedTuple):
    """A format, with the texts that a template for it contains."""

    name: str
    all_of: tuple[str, ...]


_THINK = "<think>"

_TOOL_SIGNS = (
    # Markup that no other format has.
    _FormatSignature("kimi_k2", ("<|tool_calls_section_begin|>",)),
    _FormatSignature("kimi_k3", ("<|open|>", "<|sep|>")),
    _FormatSignature("dsml", ("｜DSML｜",)),
    _FormatSignature("step3", ("steptml:",)),
    _FormatSignature("deepseek_v3", ("<｜tool▁sep｜>", "```json")),
    _FormatSignature("deepseek_v31", ("<｜tool▁sep｜>",)),
    _FormatSignature("minimax_m3", ("]<]minimax[>[",)),
    _FormatSignature("minimax_m2", ("<minimax:tool_call>",)),
    _FormatSignature("hy_v3", ("<tool_sep{}>",)),
    _FormatSignature("hy_v3", ("<tool_sep:",)),
    _FormatSignature("k2_horizon", ("<ifm|tool_call",)),
    _FormatSignature("longcat", ("<longcat_tool_call>",)),
    _FormatSignature("seed_oss", ("<seed:tool_call>",)),
    _FormatSignature("muse", ("<atem:",)),
    _FormatSignature("muse", ("atem:invoke",)),
    _FormatSignature("inkling", ("<|content_invoke_tool_json|>",)),
    _FormatSignature("harmony", ("<|channel|>", "<|call|>")),
    _FormatSignature("gemma4", ("<|tool_call>",)),
    _FormatSignature("functiongemma", ("<start_function_call>",)),
    _FormatSignature("solar", ("<|tool_call:begin|>",)),
    _FormatSignature("command_r", ("<|START_ACTION|>",)),
    _FormatSignature("command_r_plus", ("Action:", "tool_name", "<|CHATBOT_TOKEN|>")),
    _FormatSignature("apertus", ("<|tools_prefix|>",)),
    _FormatSignature("internlm2", ("<|action_start|>",)),
    _FormatSignature("gigachat3", ("<|function_call|>",)),
    _FormatSignature("lfm2", ("<|tool_call_start|>",)),
    _FormatSignature("lfm2", ("<|tool_list_start|>",)),
    _FormatSignature("mistral", ("[TOOL_CALLS]",)),
    _FormatSignature("granite", ("<|tool_call|>", "<|start_of_role|>")),
    _FormatSignature("nemotron_toolcall", ("<TOOLCALL>",)),
    _FormatSignature("minicpm5", ("<function name=", "<param name=")),
    # Markup that several formats share, distinguished by its context.
    _FormatSignature("ui_tars", ("Thought:", "Action:", "click(")),
    _FormatSignature("ling3", ("<arg_key>", "<|role_end|>")),
    _FormatSignature("glm", ("<arg_key>",)),
    _FormatSignature("apriel", ("<tool_calls>", "[BEGIN FINAL RESPONSE]")),
    _FormatSignature("hunyuan_a13b", ("<tool_calls>", "<|extra_0|>")),
    _FormatSignature("jamba", ("<tool_calls>",)),
    _FormatSignature("olmo3", ("<function_calls>",)),
    _FormatSignature("granite_20b_fc", ("<function_call>",)),
    _FormatSignature("qwen3_coder", ("<function=", "<parameter=")),
    _FormatSignature("functionary_v31", ("<function=",)),
    _FormatSignature("functionary_v32", (">>>", "recipient")),
    _FormatSignature("firefunction", ("functools[", "<|start_header_id|>")),
    _FormatSignature("phi4_functools", ("functools[",)),
    _FormatSignature("reka_edge", ("<tool_call>", "assistant: ", "<sep>")),
    _FormatSignature("ernie45", ("<tool_call>", _THINK, "<response>", "<|im_start|>")),
    _FormatSignature("hermes", ("<tool_call>",)),
    # Words of an instruction.
    _FormatSignature("pythonic", ("[func_name1(",)),
    _FormatSignature("xlam", ("tool_call_name", '"arguments"')),
    _FormatSignature("llama3_json", ('"name": function name', '"parameters"')),
    _FormatSignature("llama3_json", ("<|python_tag|>",)),
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
    _FormatSignature("harmony", ("<|channel|>", "analysis")),
    _FormatSignature("muse", ("<atem:",)),
    _FormatSignature("muse", ("to=self", "<|message|>")),
    _FormatSignature("kimi_k3", ("<|open|>", "<|sep|>")),
    _FormatSignature("gemma4", ("<|channel>",)),
    _FormatSignature("hy_v3", ("<think{}>",)),
    _FormatSignature("hy_v3", ("<think:",)),
    _FormatSignature("minimax_m3", ("<mm:think>",)),
    _FormatSignature("seed", ("<seed:think>",)),
    _FormatSignature("k2_horizon", ("<ifm|think",)),
    _FormatSignature("mistral", ("[THINK]",)),
    _FormatSignature("inkling", ("<|content_thinking|>",)),
    _FormatSignature("command_r", ("<|START_THINKING|>",)),
    _FormatSignature("solar", ("<|think|>",)),
    _FormatSignature("longcat", ("<longcat_think>",)),
    _FormatSignature("apertus", ("<|inner_prefix|>",)),
    _FormatSignature("apriel", ("[BEGIN FINAL RESPONSE]",)),
    _FormatSignature("granite", ("<response>", "<|start_of_role|>")),
    _FormatSignature("ernie45", (_THINK, "<response>", "<|im_start|>")),
    _FormatSignature("hunyuan_a13b", (_THINK, "<|extra_0|>")),
    _FormatSignature("olmo3", (_THINK, "<function_calls>")),
    _FormatSignature("ling3", (_THINK, "<|role_end|>")),
    _FormatSignature("glm", (_THINK, "[gMASK]")),
    _FormatSignature("ui_tars", ("Thought:", "Action:", "click(")),
    # A format without reasoning, but all of its output is addressed to a recipient.
    _FormatSignature("functionary_v32", (">>>", "recipient")),
    _FormatSignature("think", (_THINK,)),
    _FormatSignature("think", ("</think>",)),
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
    signs: Sequence[_FormatSignature],
    tokens: Sequence[tuple[str, str]],
) -> str | None:
    for sign in signs:
        if all(part in template for part in sign.all_of):
            return sign.name
    return next((name for token, name in tokens if token in vocabulary), None)
