"""Calls as a JSON list in `<TOOLCALL>` … `</TOOLCALL>`: Nemotron Nano 2 and older ones."""

from node.parsing.calls.json_calls import JsonCalls

NEMOTRON_TOOLCALL = JsonCalls("nemotron_toolcall", ("<TOOLCALL>",), ("</TOOLCALL>",))
