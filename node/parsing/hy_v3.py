"""Calls of Hunyuan 3: `<tool_call:opensource>f<tool_sep:opensource>`, then pairs of keys and values
or a JSON object, in a block. Its tags carry a suffix or, in some builds, none."""

from node.parsing.arg_pairs import PairTags, read_pairs
from node.parsing.format import ReasoningFormat, ToolFormat
from node.parsing.json_calls import read_arguments, read_declared_name
from node.parsing.source import Source, Step

_SUFFIXES = (":opensource", "")


def _each(form: str) -> tuple[str, ...]:
    return tuple(form.format(suffix) for suffix in _SUFFIXES)


_BLOCK = _each("<tool_calls{}>")
_BLOCK_END = _each("</tool_calls{}>")
_CALL = _each("<tool_call{}>")
_CALL_END = (*_each("</tool_call{}>"), *_each("<end_of_tool_call{}>"))
_SEPARATOR = _each("<tool_sep{}>")
_TAGS = {
    separator: PairTags(
        f"<arg_key{suffix}>",
        f"</arg_key{suffix}>",
        f"<arg_value{suffix}>",
        f"</arg_value{suffix}>",
        _CALL_END,
    )
    for separator, suffix in zip(_SEPARATOR, _SUFFIXES, strict=True)
}

HY_V3_REASONING = ReasoningFormat("hy_v3", _each("<think{}>"), _each("</think{}>"))


class HyV3(ToolFormat):
    name = "hy_v3"
    openers = (*_BLOCK, *_CALL)
    orphans = (*_BLOCK_END, *_CALL_END)

    def read(self, source: Source, opener: str) -> Step[None]:
        if opener in _BLOCK:
            yield from source.space()
            if (yield from source.expect(*_CALL, *_BLOCK_END)) in _BLOCK_END:
                source.edge()
                return
        while True:
            yield from self._call(source)
            yield from source.space()
            if not (yield from source.accept(*_CALL)):
                break
        yield from source.accept(*_BLOCK_END)

    def _call(self, source: Source) -> Step[None]:
        yield from source.space()
        name = yield from read_declared_name(source)
        yield from source.space()
        mark = yield from source.expect(*_SEPARATOR, *_CALL_END)
        if mark in _CALL_END:
            source.call(name, {})
            return
        yield from source.space()
        if (yield from source.peek()) == "{":
            source.call(name, (yield from read_arguments(source, *_CALL_END)))
            return
        source.call(name, (yield from read_pairs(source, _TAGS[mark], source.schemas[name])))


HY_V3 = HyV3()
