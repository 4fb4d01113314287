"""Kimi K3: `<|open|>think<|sep|>…<|close|>think<|sep|>`, then `response`, then `tools` with a
`call` each, whose arguments have a type."""

import re
from collections.abc import Sequence
from typing import Any

from node.ipc.generate import ToolSchema
from node.ipc.messages import PartKind
from node.parsing.calls.channels import Channel, Channels
from node.parsing.calls.spelled_json import arguments_of
from node.parsing.constraints.arguments import arguments_of as declared_arguments
from node.parsing.constraints.lark import Lark
from node.parsing.constraints.schema import UnsupportedConstraint
from node.parsing.constraints.values import Argument, Flat, flat_schemas, has_type, takes
from node.parsing.format import ModelFamily
from node.parsing.json_text import read_json
from node.parsing.scanning.markers import Markers
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step
from node.parsing.values.bare_arguments import BareArguments
from node.parsing.values.raw_values import RawText, spell_other, spell_string

_SEP = "<|sep|>"
_THINK = "<|open|>think<|sep|>"
_THINK_END = "<|close|>think<|sep|>"
_RESPONSE = "<|open|>response<|sep|>"
_RESPONSE_END = "<|close|>response<|sep|>"
_TOOLS = "<|open|>tools<|sep|>"
_TOOLS_END = "<|close|>tools<|sep|>"
_CALL = "<|open|>call "
_CALL_END = "<|close|>call<|sep|>"
_ARGUMENT = "<|open|>argument "
_ARGUMENT_END = "<|close|>argument<|sep|>"
_ARGUMENT_ENDS = Markers((_ARGUMENT_END,))
_JSON = "<|open|>json"
_JSON_END = "<|close|>json<|sep|>"
_MESSAGE_END = "<|close|>message<|sep|>"
_TYPES = ("number", "boolean", "null", "object", "array")
"""Types that the tag of a value other than a string may state."""

_REST_OF_TAG = re.compile(r"[^<>\n]*")
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')


def _read_tag(source: Source) -> Step[dict[str, str]]:
    text = yield from source.run(_REST_OF_TAG)
    yield from source.expect(_SEP)
    found = _ATTRIBUTE.findall(text)
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in found}


class KimiK3(Channels):
    name = "kimi_k3"
    opener = _THINK
    openers = (_TOOLS, _CALL)
    begins = (_THINK, _RESPONSE, _TOOLS, _CALL)
    ends = (
        _THINK_END,
        _RESPONSE_END,
        _TOOLS_END,
        _MESSAGE_END,
        "<|end_of_msg|>",
    )
    closing = _THINK_END
    reasoning_header = _THINK
    answer_headers = (_RESPONSE,)
    answer_ends = (_RESPONSE_END,)

    def channel_of(self, prompt_tail: str) -> Channel | None:
        begun, name = max((prompt_tail.rfind(each), each) for each in (_THINK, _RESPONSE))
        if begun < 0 or any(end in prompt_tail[begun:] for end in self.ends):
            return None
        return Channel(kind=PartKind.REASONING if name == _THINK else PartKind.CONTENT)

    def read_header(self, source: Source, channel: Channel) -> Step[None]:
        yield from ()
        if not channel.header:
            raise Malformed
        if channel.header == _THINK:
            channel.kind = PartKind.REASONING
        elif channel.header != _RESPONSE:
            channel.target = ""

    def read_calls(self, source: Source, channel: Channel) -> Step[None]:
        if channel.header == _TOOLS:
            yield from source.space()
            if (yield from source.expect(_CALL, _TOOLS_END)) == _TOOLS_END:
                return
        while True:
            yield from self._call(source)
            yield from source.space()
            if not (yield from source.accept(_CALL)):
                return

    def call_headers(self, names: Sequence[str]) -> tuple[str, ...]:
        return (_TOOLS,)

    def calls_grammar(
        self,
        lark: Lark,
        tools: Sequence[ToolSchema],
        prompt_tail: str | None,
        *,
        parallel: bool,
    ) -> str:
        call = lark.one_of([_spell_call(lark, tool) for tool in tools])
        calls = lark.many(call) if parallel else call
        # Calls follow an answer, which may be empty.
        begin = lark.optional(lark.text(_RESPONSE + _RESPONSE_END))
        end = lark.optional(lark.text(_MESSAGE_END))
        return " ".join((begin, lark.text(_TOOLS), calls, lark.text(_TOOLS_END), end))

    def _call(self, source: Source) -> Step[None]:
        name = (yield from _read_tag(source)).get("tool", "")
        call = source.calls.open(name)
        arguments = BareArguments(call)
        while True:
            yield from source.space()
            tag = yield from source.expect(_ARGUMENT, _JSON, _CALL_END)
            if tag == _CALL_END:
                break
            attributes = yield from _read_tag(source)
            if tag == _JSON:
                text, _ = yield from source.capture(_JSON_END)
                for key, value in _object(text).items():
                    arguments.put(key, value)
                continue
            if "key" not in attributes:
                raise Malformed
            of_type = attributes.get("type")
            is_text = None if of_type is None else of_type == "string"
            arguments.begin(attributes["key"], is_text=is_text)
            yield from source.pass_to(_ARGUMENT_ENDS, arguments.write)
            arguments.end()
        arguments.close()
        call.end()


def _spell_call(lark: Lark, tool: ToolSchema) -> str:
    """Returns the expression of a call. Raises `UnsupportedConstraint`."""
    name = lark.text(f'{_CALL}tool="{_attribute(tool.name, tool.param)}" index="')
    try:
        arguments = [_spell_argument(lark, each) for each in declared_arguments(tool)]
    except UnsupportedConstraint:
        # The arguments are written as one object, which may have any schema.
        begin = lark.text(f'{_JSON} type="object"{_SEP}')
        arguments = [f"{begin} {arguments_of(lark, tool)} {lark.text(_JSON_END)}"]
    number = lark.regex("[1-9][0-9]{0,2}")
    return lark.rule(
        " ".join((name, number, lark.text(f'"{_SEP}'), *arguments, lark.text(_CALL_END)))
    )


def _spell_argument(lark: Lark, argument: Argument) -> str:
    """Returns the expression of an argument, which is optional if the argument is. Raises
    `UnsupportedConstraint`."""
    place = argument.place
    key = _attribute(argument.name, place.param)
    raw = RawText(_ARGUMENT_END, in_json=(_ARGUMENT_END.removesuffix(_SEP),), loose=())
    written = {"string": spell_string(lark, argument, raw)}
    flats = flat_schemas(argument.schema, place)
    for kind in _TYPES:
        schemas = [_of_kind(flat, kind) for flat in flats if _takes(flat, kind)]
        if schemas:
            schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
            written[kind] = spell_other(lark, argument._replace(schema=schema), raw)
    ways = [f"{_spell_tag(lark, key, kind)} {value}" for kind, value in written.items() if value]
    if not ways:
        raise place.unsupported(f"a value of {argument.name}, which the model cannot write")
    spelled = lark.one_of(ways)
    return spelled if argument.is_required else lark.optional(spelled)


def _takes(flat: Flat, kind: str) -> bool:
    return takes(flat, kind) or (kind == "number" and takes(flat, "integer"))


def _of_kind(flat: Flat, kind: str) -> Flat:
    """Returns the part of a schema for values of one kind, which it must allow."""
    if "enum" in flat:
        values = [each for each in flat["enum"] if has_type(each, {kind})]
        return {**flat, "type": kind, "enum": values}
    is_whole = kind == "number" and not takes(flat, kind)
    return {**flat, "type": "integer" if is_whole else kind}


def _spell_tag(lark: Lark, key: str, kind: str) -> str:
    return lark.text(f'{_ARGUMENT}key="{key}" type="{kind}"{_SEP}')


def _attribute(text: str, param: str) -> str:
    """Returns the text as an attribute's value. Raises `UnsupportedConstraint` for a text that
    would not be read back."""
    if not _REST_OF_TAG.fullmatch(text):
        raise UnsupportedConstraint(f"The model cannot write the name {text}.", param)
    return text.replace("&", "&amp;").replace('"', "&quot;")


def _object(text: str) -> dict[str, Any]:
    try:
        value = read_json(text)
    except ValueError:
        raise Malformed from None
    if not isinstance(value, dict):
        raise Malformed
    return value


KIMI_K3 = KimiK3()

FAMILY = ModelFamily(
    layouts=(KIMI_K3,),
)
