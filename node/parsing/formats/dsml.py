"""DeepSeek V3.2 and V4: `<｜DSML｜invoke name="f"><｜DSML｜parameter name="a"
string="true">v</｜DSML｜parameter></｜DSML｜invoke>`, in a block.

`string="false"` says that the value is JSON. The name of the block depends on the model's version.
"""

from collections.abc import Sequence
from itertools import product

from node.ipc.generate import ToolSchema
from node.parsing.calls.invoke import Attributes, InvokeCalls, InvokeTags, spell_invoke
from node.parsing.calls.spelled_json import between, blocks
from node.parsing.constraints.lark import Lark
from node.parsing.constraints.values import Argument
from node.parsing.format import ModelFamily
from node.parsing.values.raw_values import RawText, spell_other, spell_string

_PREFIXES = ("\uff5cDSML\uff5c", "\uff5cDSML\uff5c ")
_BLOCKS = ("function_calls", "tool_calls", "calls")


def _tags(form: str, *names: str) -> tuple[str, ...]:
    return tuple(form.format(prefix + name) for prefix, name in product(_PREFIXES, names))


_BEGINS = _tags("<{}>", *_BLOCKS)
_ENDS = _tags("</{}>", *_BLOCKS)
_TAGS = InvokeTags(
    _tags("<{}", "invoke"),
    _tags("</{}>", "invoke"),
    _tags("<{}", "parameter"),
    _tags("</{}>", "parameter"),
)


def _is_text(attributes: Attributes) -> bool | None:
    return {"true": True, "false": False}.get(attributes.get("string", ""))


def _spell_parameter(lark: Lark, argument: Argument, tags: InvokeTags) -> str:
    raw = RawText(tags.parameter_end[0], tags.parameter_end[1:], loose=())
    string, other = spell_string(lark, argument, raw), spell_other(lark, argument, raw)
    tags_and_values = ((' string="true">', string), (' string="false">', other))
    return lark.one_of([f"{lark.text(tag)} {value}" for tag, value in tags_and_values if value])


class Dsml(InvokeCalls):
    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        call = lark.one_of([spell_invoke(lark, tool, _TAGS, _spell_parameter) for tool in tools])
        calls = blocks(lark, call, parallel=parallel)
        # The name of the block depends on the model's version.
        pairs = zip(_BEGINS[: len(_BLOCKS)], _ENDS, strict=False)
        return lark.one_of([between(lark, begin, calls, end) for begin, end in pairs])


DSML = Dsml("dsml", _TAGS, _BEGINS, _ENDS, _is_text)

FAMILY = ModelFamily(
    tool_calls=(DSML,),
    tool_call_aliases={
        "dsml": ("deepseek_v32", "deepseek_v4", "deepseek_v4_0731", "deepseekv32", "deepseekv4")
    },
)
