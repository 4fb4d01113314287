"""Which of our formats a user would choose for a family's model, and what its prompt ends with."""

from collections.abc import Iterable
from dataclasses import dataclass

from node.ipc.generate import OutputFormat
from node.parsing.registry import layout_for
from tests.conformance.corpus import Case

TOOL_CALLS = {
    "apertus": "apertus",
    "apriel": "apriel",
    "cohere_action": "command_r",
    "command_r_plus": "command_r_plus",
    "deepseek_r1": "deepseek_v3",
    "deepseek_v3": "deepseek_v3",
    "deepseek_v31": "deepseek_v31",
    "dsml": "dsml",
    "ernie45": "hermes",
    "firefunction": "firefunction",
    "functionary_v31": "functionary_v31",
    "functionary_v32": "functionary_v32",
    "functiongemma": "functiongemma",
    "gemma4": "gemma4",
    "gigachat3": "gigachat3",
    "glm45": "glm",
    "glm_xml": "glm",
    "granite": "granite",
    "granite3": "granite",
    "granite4": "hermes",
    "granite_20b_fc": "granite_20b_fc",
    "harmony": "harmony",
    "hermes_json": "hermes",
    "holo2": "hermes",
    "hunyuan_a13b": "hunyuan_a13b",
    "hy_v3": "hy_v3",
    "inkling": "inkling",
    "internlm2": "internlm2",
    "jamba": "jamba",
    "kimi_k2": "kimi_k2",
    "kimi_k3": "kimi_k3",
    "ling3": "ling3",
    "llama3_json": "llama3_json",
    "longcat": "longcat",
    "minicpm5": "minicpm5",
    "minimax_m2": "minimax_m2",
    "minimax_m3": "minimax_m3",
    "mistral": "mistral",
    "mistral_json_array": "mistral",
    "muse": "muse",
    "nemotron_toolcall": "nemotron_toolcall",
    "nemotron_v3": "qwen3_coder",
    "olmo3": "olmo3",
    "phi4_functools": "phi4_functools",
    "poolside": "glm",
    "pythonic": "pythonic",
    "pythonic_lfm2": "lfm2",
    "pythonic_olmo3": "olmo3",
    "qwen3": "hermes",
    "qwen_xml": "qwen3_coder",
    "reka_edge": "reka_edge",
    "seed_oss": "seed_oss",
    "spark2.5": "glm",
    "step3": "step3",
    "step3p5": "qwen3_coder",
    "step5": "qwen3_coder",
    "xlam": "xlam",
}
"""By the corpus' name of the wire format. A format that is not here is read without calls."""

REASONING = {
    "apriel": "apriel",
    "command_a": "command_r",
    "command_r7b": "command_r",
    "deepseek_r1": "think",
    "deepseek_v3": "think",
    "deepseek_v31": "think",
    "deepseek_v32": "think",
    "deepseek_v4": "think",
    "ernie45": "ernie45",
    "gemma4": "gemma4",
    "glm45": "think",
    "glm47": "think",
    "gpt_oss": "harmony",
    "granite3": "granite",
    "granite4": "think",
    "holo2": "think",
    "hunyuan_a13b": "hunyuan_a13b",
    "hy_v3": "hy_v3",
    "inkling": "inkling",
    "kimi_k2": "think",
    "kimi_k3": "kimi_k3",
    "lfm2.5": "think",
    "ling3": "ling3",
    "mimo": "think",
    "minicpm5": "think",
    "minimax_m2": "think",
    "minimax_m3": "minimax_m3",
    "mistral_reasoning": "mistral",
    "muse_glimmer": "muse",
    "nemotron_nano_v2": "think",
    "nemotron_v3": "think",
    "olmo3": "olmo3",
    "poolside": "think",
    "qwen3": "think",
    "qwen3.5": "think",
    "qwq": "think",
    "reka_edge": "think",
    "seed_oss": "seed",
    "spark2.5": "think",
    "step3p5": "think",
    "step5": "think",
}
"""By family; the models of the others do not reason."""

PROMPT_OPENS = frozenset(
    {"deepseek_r1", "ernie45", "holo2", "minimax_m2", "olmo3", "qwen3", "step3p5"}
)
"""Wire formats of outputs of scope `reasoning` after prompts that end with the opener, where the
case itself does not say so: these models' templates always do."""


@dataclass(frozen=True, slots=True)
class Formats:
    reasoning: str
    tool_calls: str


def formats_of(case: Case) -> Formats:
    """The names of the two formats."""
    reasons = case.scope != "tools" and case.context.get("extract_reasoning") is not False
    return Formats(
        REASONING.get(case.family, "none") if reasons else "none",
        TOOL_CALLS.get(case.wire, "none"),
    )


def output_format(case: Case) -> OutputFormat:
    """Returns the format by which the engine parses the case's output."""
    names = formats_of(case)
    wants_calls = case.scope != "reasoning" and case.context.get("tool_choice") != "none"
    return OutputFormat(
        reasoning=names.reasoning,
        tool_calls=names.tool_calls,
        prompt_tail=prompt_tail(case, names.reasoning),
        tools=case.tools if wants_calls else (),
        parallel_calls=case.context.get("parallel_tool_calls") is not False,
        # The sources return a repeated call again; that ours may leave it out is an option.
        repeated_calls=True,
        is_json="json_schema" in case.context,
    )


def prompt_tail(case: Case, reasoning: str) -> str:
    """The prompt's end as the case has it. Where it does not, what the output shows: one that
    opens its reasoning goes on from a prompt that did not, and one that only closes it from one
    that did."""
    given = case.context.get("generation_prompt")
    if given is not None:
        return str(given)
    if reasoning == "none":
        return ""
    markers = layout_for(reasoning, "none")
    first = _first(case.output, (*markers.strict, *markers.orphans))
    if first and first not in markers.orphans:
        return ""
    return layout_for(reasoning, "none").opener if _begins_within(case, shown=bool(first)) else ""


def _first(text: str, markers: Iterable[str]) -> str:
    """The marker that stands first in the text; of those that begin together, the longest."""
    found = ((at, -len(each), each) for each in markers if (at := text.find(each)) >= 0)
    return min(found, default=(0, 0, ""))[2]


def _begins_within(case: Case, *, shown: bool) -> bool:
    context = case.context
    kwargs = context.get("chat_template_kwargs") or {}
    effort = context.get("reasoning_effort")
    if False in (context.get("enable_thinking"), kwargs.get("thinking")) or effort == "no_think":
        return False
    return (
        shown
        or bool(context.get("starts_in_reasoning"))
        or effort is not None
        or (case.scope == "reasoning" and case.wire in PROMPT_OPENS)
    )
