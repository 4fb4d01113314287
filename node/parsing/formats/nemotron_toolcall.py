"""Nemotron Nano 2 and older: calls as a JSON list in `<TOOLCALL>` … `</TOOLCALL>`."""

from node.parsing.calls.json_calls import JsonCalls
from node.parsing.format import ModelFamily

NEMOTRON_TOOLCALL = JsonCalls("nemotron_toolcall", ("<TOOLCALL>",), ("</TOOLCALL>",))

FAMILY = ModelFamily(
    tool_calls=(NEMOTRON_TOOLCALL,),
)
