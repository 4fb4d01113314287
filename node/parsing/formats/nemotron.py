"""Nemotron of all generations: calls like `qwen3_coder` or `nemotron_toolcall`."""

from node.parsing.calls.any_of import AnyOf
from node.parsing.calls.bracket import with_recovery
from node.parsing.format import ModelFamily
from node.parsing.formats.hermes import QWEN3_CODER
from node.parsing.formats.nemotron_toolcall import NEMOTRON_TOOLCALL

NEMOTRON = AnyOf("nemotron", (QWEN3_CODER, NEMOTRON_TOOLCALL))

FAMILY = ModelFamily(
    tool_calls=(with_recovery(NEMOTRON),),
    tool_call_aliases={"nemotron": ("nemotron3", "nemotron3_nano", "nemotron_v3")},
)
