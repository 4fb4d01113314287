"""Calls of MiniMax M2: `<invoke name="f"><parameter name="a">v</parameter></invoke>`, one or more
in `<minimax:tool_call>`, or without it."""

from node.parsing.qwen_xml import XmlCalls

MINIMAX_M2 = XmlCalls(
    "minimax_m2",
    "<minimax:tool_call>",
    function="<invoke name=",
    parameter="<parameter name=",
    keeps_last_newline=True,
)
