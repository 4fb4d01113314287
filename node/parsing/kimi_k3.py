"""Outputs of Kimi K3: `<|open|>think<|sep|>…<|close|>think<|sep|>`, then `response`, then `tools`
with a `call` each, whose arguments have a type."""

import re
from typing import Any

from node.parsing.channels import Channel, Channels
from node.parsing.coercion import property_schema
from node.parsing.invoke import as_tag_says
from node.parsing.json_text import read_json
from node.parsing.source import Malformed, Source, Step
from node.types import PartKind

_SEP = "<|sep|>"
_THINK = "<|open|>think<|sep|>"
_RESPONSE = "<|open|>response<|sep|>"
_TOOLS = "<|open|>tools<|sep|>"
_TOOLS_END = "<|close|>tools<|sep|>"
_CALL = "<|open|>call "
_CALL_END = "<|close|>call<|sep|>"
_ARGUMENT = "<|open|>argument "
_ARGUMENT_END = "<|close|>argument<|sep|>"
_JSON = "<|open|>json"
_JSON_END = "<|close|>json<|sep|>"

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
        "<|close|>think<|sep|>",
        "<|close|>response<|sep|>",
        _TOOLS_END,
        "<|close|>message<|sep|>",
        "<|end_of_msg|>",
    )

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

    def _call(self, source: Source) -> Step[None]:
        name = (yield from _read_tag(source)).get("tool", "")
        if name not in source.schemas:
            raise Malformed
        schema = source.schemas[name]
        arguments: dict[str, Any] = {}
        while True:
            yield from source.space()
            tag = yield from source.expect(_ARGUMENT, _JSON, _CALL_END)
            if tag == _CALL_END:
                break
            attributes = yield from _read_tag(source)
            if tag == _JSON:
                text, _ = yield from source.capture(_JSON_END)
                arguments |= _object(text)
                continue
            if "key" not in attributes:
                raise Malformed
            key = attributes["key"]
            text, _ = yield from source.capture(_ARGUMENT_END)
            of_type = attributes.get("type")
            is_text = None if of_type is None else of_type == "string"
            said = property_schema(schema, key)
            arguments[key] = as_tag_says(text, said, schema, is_text=is_text)
        source.call(name, arguments)


def _object(text: str) -> dict[str, Any]:
    try:
        value = read_json(text)
    except ValueError:
        raise Malformed from None
    if not isinstance(value, dict):
        raise Malformed
    return value


KIMI_K3 = KimiK3()
