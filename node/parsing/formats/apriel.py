"""Apriel: calls as a JSON list in `<tool_calls>` … `</tool_calls>`; a heading separates reasoning
and answer."""

from node.parsing.calls.json_calls import JsonCalls
from node.parsing.format import ModelFamily, ReasoningFormat

APRIEL_REASONING = ReasoningFormat(
    "apriel",
    ("Here are my reasoning steps:",),
    ("[BEGIN FINAL RESPONSE]",),
    dropped=("[END FINAL RESPONSE]",),
    wrap=("", "[END FINAL RESPONSE]"),
)
APRIEL = JsonCalls("apriel", ("<tool_calls>",), ("</tool_calls>",))

FAMILY = ModelFamily(
    tool_calls=(APRIEL,),
    reasoning=(APRIEL_REASONING,),
)
