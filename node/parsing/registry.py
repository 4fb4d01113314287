"""All formats by name, and the names that other servers give them."""

from collections.abc import Mapping
from functools import lru_cache

from node.parsing.calls.any_of import AnyOf
from node.parsing.calls.bracket import BRACKET, with_recovery
from node.parsing.calls.function_xml import FUNCTION_XML
from node.parsing.calls.marked import Marked
from node.parsing.format import NO_REASONING, Grammar, NoCalls, ReasoningFormat, ToolFormat
from node.parsing.formats.apertus import APERTUS, APERTUS_REASONING
from node.parsing.formats.apriel import APRIEL, APRIEL_REASONING
from node.parsing.formats.command_r import COMMAND_R
from node.parsing.formats.command_r_plus import COMMAND_R_PLUS
from node.parsing.formats.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from node.parsing.formats.dsml import DSML
from node.parsing.formats.ernie45 import ERNIE45, ERNIE45_REASONING
from node.parsing.formats.firefunction import FIREFUNCTION
from node.parsing.formats.functionary_v31 import FUNCTIONARY_V31
from node.parsing.formats.functionary_v32 import FUNCTIONARY_V32
from node.parsing.formats.functiongemma import FUNCTIONGEMMA
from node.parsing.formats.gemma4 import GEMMA4, GEMMA4_REASONING
from node.parsing.formats.gigachat3 import GIGACHAT3
from node.parsing.formats.glm import GLM, GLM_REASONING
from node.parsing.formats.granite import GRANITE, GRANITE_REASONING
from node.parsing.formats.granite_20b_fc import GRANITE_20B_FC
from node.parsing.formats.harmony import HARMONY
from node.parsing.formats.hermes import HERMES, QWEN3_CODER
from node.parsing.formats.hunyuan_a13b import HUNYUAN_A13B, HUNYUAN_A13B_REASONING
from node.parsing.formats.hy_v3 import HY_V3, HY_V3_REASONING
from node.parsing.formats.inkling import INKLING
from node.parsing.formats.internlm2 import INTERNLM2
from node.parsing.formats.jamba import JAMBA
from node.parsing.formats.k2_horizon import K2_HORIZON, K2_HORIZON_REASONING
from node.parsing.formats.kimi_k2 import KIMI_K2
from node.parsing.formats.kimi_k3 import KIMI_K3
from node.parsing.formats.lfm2 import LFM2
from node.parsing.formats.ling3 import LING3, LING3_REASONING
from node.parsing.formats.llama3_json import LLAMA3_JSON
from node.parsing.formats.longcat import LONGCAT, LONGCAT_REASONING
from node.parsing.formats.minicpm5 import MINICPM5
from node.parsing.formats.minimax_m2 import MINIMAX_M2
from node.parsing.formats.minimax_m3 import MINIMAX_M3, MINIMAX_M3_REASONING
from node.parsing.formats.mistral import MISTRAL, MISTRAL_REASONING
from node.parsing.formats.muse import MUSE
from node.parsing.formats.nemotron import NEMOTRON
from node.parsing.formats.nemotron_toolcall import NEMOTRON_TOOLCALL
from node.parsing.formats.olmo3 import OLMO3, OLMO3_REASONING
from node.parsing.formats.phi4_functools import PHI4_FUNCTOOLS
from node.parsing.formats.pythonic import PYTHONIC
from node.parsing.formats.reka_edge import REKA_EDGE
from node.parsing.formats.seed_oss import SEED_OSS, SEED_REASONING
from node.parsing.formats.solar import SOLAR
from node.parsing.formats.step3 import STEP3
from node.parsing.formats.think import ALWAYS_THINK, MIXED_THINK, THINK
from node.parsing.formats.ui_tars import UI_TARS
from node.parsing.formats.whole_blocks import WHOLE_BLOCKS
from node.parsing.formats.xlam import XLAM
from node.parsing.selection import NONE, Formats

_WHOLE: Mapping[str, Grammar] = {
    each.name: each
    for each in (
        COMMAND_R,
        FUNCTIONARY_V32,
        HARMONY,
        INKLING,
        KIMI_K3,
        MUSE,
        SOLAR,
        UI_TARS,
    )
}
"""Formats of outputs as a whole: their name is one of reasoning and of tool calls alike."""

_REASONING: Mapping[str, ReasoningFormat] = {
    each.name: each
    for each in (
        NO_REASONING,
        THINK,
        ALWAYS_THINK,
        MIXED_THINK,
        GLM_REASONING,
        LONGCAT_REASONING,
        MINIMAX_M3_REASONING,
        SEED_REASONING,
        APRIEL_REASONING,
        HUNYUAN_A13B_REASONING,
        HY_V3_REASONING,
        K2_HORIZON_REASONING,
        LING3_REASONING,
        APERTUS_REASONING,
        ERNIE45_REASONING,
        GEMMA4_REASONING,
        GRANITE_REASONING,
        MISTRAL_REASONING,
        OLMO3_REASONING,
    )
}
REASONING_MARKERS = frozenset(
    marker for form in _REASONING.values() for marker in (*form.openers, *form.closers)
)
"""Of all formats."""
_TOOL_CALLS: Mapping[str, ToolFormat] = {
    each.name: each
    for each in (
        NoCalls(),
        with_recovery(HERMES),
        with_recovery(QWEN3_CODER),
        GLM,
        LONGCAT,
        MINICPM5,
        with_recovery(MINIMAX_M2),
        with_recovery(MINIMAX_M3),
        SEED_OSS,
        APRIEL,
        COMMAND_R_PLUS,
        DEEPSEEK_V3,
        DEEPSEEK_V31,
        DSML,
        FUNCTIONARY_V31,
        HUNYUAN_A13B,
        HY_V3,
        K2_HORIZON,
        KIMI_K2,
        LING3,
        STEP3,
        APERTUS,
        BRACKET,
        FUNCTION_XML,
        ERNIE45,
        FIREFUNCTION,
        FUNCTIONGEMMA,
        with_recovery(GEMMA4),
        GIGACHAT3,
        GRANITE,
        GRANITE_20B_FC,
        INTERNLM2,
        JAMBA,
        with_recovery(LFM2),
        LLAMA3_JSON,
        MISTRAL,
        with_recovery(NEMOTRON),
        NEMOTRON_TOOLCALL,
        OLMO3,
        PHI4_FUNCTOOLS,
        PYTHONIC,
        REKA_EDGE,
        XLAM,
    )
}
_WITHOUT_MARKUP = frozenset({"none", "command_r_plus", "xlam"})
"""Formats that only what is known of the model can choose: their calls look like any text."""
_KNOWN = [form for name, form in _TOOL_CALLS.items() if name not in _WITHOUT_MARKUP]
_AUTO = AnyOf("auto", (*_KNOWN, *WHOLE_BLOCKS))
"""Calls of any format that has markup of its own, as they come; for models of which nothing is
known."""
_ALL_TOOL_CALLS: Mapping[str, ToolFormat] = {**_TOOL_CALLS, _AUTO.name: _AUTO}

REASONING_ALIASES: Mapping[str, str] = {
    "cohere": "command_r",
    "cohere_command3": "command_r",
    "cohere_command4": "command_r",
    "deepseek_r1": "think",
    "deepseek_v3": "think",
    "deepseek_v31": "think",
    "deepseek_v4": "think",
    "dsml": "think",
    "gpt_oss": "harmony",
    "gptoss": "harmony",
    "hunyuan": "hunyuan_a13b",
    "hy3": "hy_v3",
    "k2_v3": "k2_horizon",
    "kimi": "think",
    "kimi_k2": "think",
    "muse_glimmer": "muse",
    "muse_spark": "muse",
    "north": "command_r",
    "openai": "harmony",
    "openai_gptoss": "harmony",
    "solar_open": "solar",
    "spark2.5": "think",
    "step3": "think",
    "step5": "think",
    "gemma_4": "gemma4",
    "granite3": "granite",
    "ernie": "ernie45",
    "ernie_4_5": "ernie45",
    "ling": "ling3",
    "magistral": "mistral",
    "deepseek_r1_distill": "always_think",
    "vibethinker": "always_think",
    "glm4": "glm",
    "glm45": "glm",
    "glm47": "glm",
    "glm47_flash": "glm",
    "glm4_moe": "glm",
    "glm5": "glm",
    "hermes": "think",
    "holo2": "think",
    "laguna": "think",
    "longcat_flash_lite": "longcat",
    "mimo": "think",
    "minicpm": "think",
    "minicpm5": "think",
    "minimax": "think",
    "minimax_m2": "think",
    "mixed_think_tool_handoff": "mixed_think",
    "nano_v3": "think",
    "nemotron": "think",
    "nemotron3": "think",
    "nemotron3_nano": "think",
    "nemotron_v3": "think",
    "olmo": "olmo3",
    "poolside_v1": "think",
    "qwen3": "think",
    "qwen3.5": "think",
    "qwen3_5": "think",
    "qwen3_thinking": "think",
    "qwq": "think",
    "seed_oss": "seed",
    "step": "think",
    "step3p5": "think",
    "step_35": "think",
}
"""What other servers call a reasoning format."""
TOOL_CALL_ALIASES: Mapping[str, str] = {
    "cohere": "command_r",
    "cohere_command3": "command_r",
    "cohere_command4": "command_r",
    "deepseek": "deepseek_v3",
    "deepseek_r1": "deepseek_v3",
    "deepseek_r1_0528": "deepseek_v3",
    "deepseek_v32": "dsml",
    "deepseek_v4": "dsml",
    "deepseek_v4_0731": "dsml",
    "deepseekv3": "deepseek_v3",
    "deepseekv31": "deepseek_v31",
    "deepseekv32": "dsml",
    "deepseekv4": "dsml",
    "functionary": "functionary_v32",
    "gpt_oss": "harmony",
    "gptoss": "harmony",
    "hunyuan": "hunyuan_a13b",
    "hy3": "hy_v3",
    "k2_v3": "k2_horizon",
    "kimi": "kimi_k2",
    "meetkai": "functionary_v32",
    "moonshot": "kimi_k2",
    "muse_glimmer": "muse",
    "muse_spark": "muse",
    "north": "command_r",
    "openai": "harmony",
    "solar_open": "solar",
    "spark2.5": "glm",
    "step5": "qwen3_coder",
    "ernie": "ernie45",
    "ernie_4_5": "ernie45",
    "function_gemma": "functiongemma",
    "gemma_4": "gemma4",
    "generic": "auto",
    "gigachat": "gigachat3",
    "granite3": "granite",
    "granite4": "hermes",
    "internlm": "internlm2",
    "lfm": "lfm2",
    "lfm2.5": "lfm2",
    "liquid": "lfm2",
    "ling": "ling3",
    "liquidai": "lfm2",
    "llama": "llama3_json",
    "llama3": "llama3_json",
    "llama4": "llama3_json",
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
    "magistral": "mistral",
    "phi4_mini_json": "phi4_functools",
    "phi4_mini": "phi4_functools",
    "glm4": "glm",
    "glm45": "glm",
    "glm47": "glm",
    "glm4_moe": "glm",
    "glm5": "glm",
    "iquest_coder_v1": "hermes",
    "json_tools": "hermes",
    "laguna": "glm",
    "longcat_flash_lite": "longcat",
    "mimo": "qwen3_coder",
    "minicpm": "minicpm5",
    "minimax": "minimax_m2",
    "nemotron3": "nemotron",
    "nemotron3_nano": "nemotron",
    "nemotron_v3": "nemotron",
    "nous": "hermes",
    "olmo": "olmo3",
    "poolside_v1": "glm",
    "qwen": "hermes",
    "qwen25": "hermes",
    "qwen2.5": "hermes",
    "qwen3": "hermes",
    "qwen3.5": "qwen3_coder",
    "qwen3_5": "qwen3_coder",
    "qwen3_coder_xml": "qwen3_coder",
    "qwen3_moe": "hermes",
    "qwen3_vl": "hermes",
    "qwen3_xml": "qwen3_coder",
    "reka": "reka_edge",
    "seed": "seed_oss",
    "step": "qwen3_coder",
    "step3p5": "qwen3_coder",
    "step_35": "qwen3_coder",
}
"""What other servers call a tool-call format."""


def reasoning_name(name: str) -> str:
    """The name of a reasoning format, aliases resolved, whatever its case. Raises `KeyError`."""
    known = name.lower().replace("-", "_")
    known = REASONING_ALIASES.get(known, known)
    if known not in _REASONING and known not in _WHOLE:
        raise KeyError(name)
    return known


def tool_call_name(name: str) -> str:
    """The name of a tool-call format, aliases resolved, whatever its case. Raises `KeyError`."""
    known = name.lower().replace("-", "_")
    known = TOOL_CALL_ALIASES.get(known, known)
    if known not in _ALL_TOOL_CALLS and known not in _WHOLE:
        raise KeyError(name)
    return known


def reasoning_names() -> list[str]:
    return sorted({*_REASONING, *_WHOLE})


def tool_call_names() -> list[str]:
    return sorted({*_ALL_TOOL_CALLS, *_WHOLE})


def go_together(reasoning: str, tool_calls: str) -> bool:
    """Whether an output can have both formats: that of an output as a whole goes with itself, or
    with `none`. Raises `KeyError`."""
    names = {reasoning_name(reasoning), tool_call_name(tool_calls)}
    return len(names - {NONE}) < 2 or not names & _WHOLE.keys()


def override(told: Formats, reasoning: str = "", tool_calls: str = "") -> Formats:
    """The formats of a model of which `told` is known where one or both are given, by names that
    aliases are resolved of. One that does not go with what is given is left out, and a given one
    of outputs as a whole decides both."""
    given = reasoning or tool_calls
    if given in _WHOLE and not (reasoning and tool_calls):
        return Formats(given, given)
    chosen = Formats(reasoning or told.reasoning, tool_calls or told.tool_calls)
    if go_together(*chosen):
        return chosen
    return Formats(reasoning or NONE, tool_calls or NONE) if given else told


@lru_cache(maxsize=256)
def grammar_for(reasoning: str, tool_calls: str, *, reads_calls: bool = True) -> Grammar:
    """What reads an output of the two formats, as text where it would be calls if not
    `reads_calls`. Raises `KeyError`."""
    reasoning, tool_calls = reasoning_name(reasoning), tool_call_name(tool_calls)
    for name in (tool_calls, reasoning):
        if name in _WHOLE:
            return _WHOLE[name]
    return Marked(_REASONING[reasoning], _ALL_TOOL_CALLS[tool_calls], reads_calls=reads_calls)
