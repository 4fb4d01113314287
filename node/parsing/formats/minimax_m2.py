"""MiniMax M2: `<invoke name="f"><parameter name="a">v</parameter></invoke>`, with or without
`<minimax:tool_call>`. Also reads calls like `hermes`."""

from node.parsing.calls.any_of import AnyOf
from node.parsing.calls.bracket import with_recovery
from node.parsing.calls.xml_calls import XmlCalls
from node.parsing.format import ModelFamily
from node.parsing.formats.hermes import HERMES

_TAGS = XmlCalls(
    "minimax_m2",
    "<minimax:tool_call>",
    function="<invoke name=",
    parameter="<parameter name=",
    keeps_last_newline=True,
    quote='"',
)
MINIMAX_M2 = AnyOf("minimax_m2", (_TAGS, HERMES))

FAMILY = ModelFamily(
    tool_calls=(with_recovery(MINIMAX_M2),),
    tool_call_aliases={"minimax_m2": ("minimax",)},
)
