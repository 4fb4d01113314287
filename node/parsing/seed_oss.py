"""Seed-OSS: the XML of `qwen_xml` in a tag of its own; values are not set on lines of their own."""

from node.parsing.format import ReasoningFormat
from node.parsing.qwen_xml import XmlCalls

SEED_OSS = XmlCalls("seed_oss", "<seed:tool_call>", keeps_last_newline=True)
SEED_REASONING = ReasoningFormat("seed", ("<seed:think>",), ("</seed:think>",))
