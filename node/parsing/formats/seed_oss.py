"""Seed-OSS: XML like `qwen3_coder` in a tag of its own, without newlines around values."""

from node.parsing.calls.xml_calls import XmlCalls
from node.parsing.format import ModelFamily, ReasoningFormat

SEED_OSS = XmlCalls("seed_oss", "<seed:tool_call>", keeps_last_newline=True)
SEED_REASONING = ReasoningFormat("seed", ("<seed:think>",), ("</seed:think>",))

FAMILY = ModelFamily(
    tool_calls=(SEED_OSS,),
    reasoning=(SEED_REASONING,),
    tool_call_aliases={"seed_oss": ("seed",)},
    reasoning_aliases={"seed": ("seed_oss",)},
)
