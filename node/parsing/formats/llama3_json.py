"""Llama 3: `{"name": "f", "parameters": {…}}` bare, separated by `;`, or behind `<|python_tag|>`;
`<function=f>{…}</function>`; and calls like `pythonic`.

A bare object is a call only if it names a declared tool and has no other keys than a call, since an
answer may be JSON.
"""

from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.parsing.calls.any_of import AnyOf
from node.parsing.calls.json_calls import NAME, read_bare_calls, read_function
from node.parsing.calls.python_blocks import read_call_list, read_python
from node.parsing.calls.spelled_json import call_objects
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily, ToolFormat
from node.parsing.formats.pythonic import PYTHONIC
from node.parsing.parsed_calls import emit_calls
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step

_BUILT_IN = ".call"
"""Text behind the name of a built-in tool."""


class Llama3Json(ToolFormat):
    name = "llama3_json"
    openers = ("<|python_tag|>", "<function=")
    starts = ("{",)
    orphans = ("<|python_tag|>", "<|eom_id|>")
    stop_tokens = ("<|eom_id|>",)
    spells_bare = True

    def read(self, source: Source, opener: str) -> Step[None]:
        if opener == "<function=":
            yield from read_function(source)
        elif opener == "{":
            yield from read_bare_calls(source, opener)
        else:
            yield from source.space()
            bracket = yield from source.accept("[", "{")
            if bracket == "[":
                python = self._python(source)
                yield from source.either(read_bare_calls(source, bracket), python)
            elif bracket:
                yield from read_bare_calls(source, bracket)
            else:
                yield from self._built_in(source)

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        call = call_objects(lark, tools, arguments=("parameters",))
        space = lark.space()
        return lark.many(call, f"{space} {lark.text(';')} {space}") if parallel else call

    def _python(self, source: Source) -> Step[None]:
        emit_calls(source, (yield from read_call_list(source)))

    def _built_in(self, source: Source) -> Step[None]:
        """Reads `f.call(a="v")`, one or more."""
        begun: str | None = yield from self._begin_built_in(source)
        while begun is not None:
            emit_calls(source, (yield from read_python(source, begun)))
            begun = yield from source.maybe(self._begin_built_in(source))

    def _begin_built_in(self, source: Source) -> Step[str]:
        yield from source.space()
        name = (yield from source.run(NAME)).removesuffix(_BUILT_IN)
        source.calls.declared_schema(name)
        return name + (yield from source.expect("("))


LLAMA3_JSON = AnyOf("llama3_json", (Llama3Json(), PYTHONIC))

FAMILY = ModelFamily(
    tool_calls=(LLAMA3_JSON,),
    tool_call_aliases={"llama3_json": ("llama", "llama3", "llama4", "llama4_json")},
    yields_to=("functionary_v31",),
)
