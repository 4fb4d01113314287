"""Calls of Mistral, Devstral, Magistral and Ministral behind `[TOOL_CALLS]`, and reasoning in
`[THINK]` … `[/THINK]`.

Three generations: a JSON list, `f{…}`, and `f[CALL_ID]id[ARGS]{…}`, each marker for one call. An
answer ends with its calls: what a model says behind them, before it has any result, is not told.
"""

import re
from collections.abc import Mapping

from node.parsing.format import ReasoningFormat, ToolFormat
from node.parsing.json_calls import read_declared_name, read_object
from node.parsing.markers import Markers
from node.parsing.source import Malformed, Source, Step

_OPENER = "[TOOL_CALLS]"
_OPENERS = Markers((_OPENER,))
_ID = re.compile(r"[A-Za-z0-9_-]*")


class Mistral(ToolFormat):
    name = "mistral"
    openers = (_OPENER,)
    orphans = ("[ARGS]", "[CALL_ID]")

    def read(self, source: Source, opener: str) -> Step[None]:
        yield from self._calls(source)
        while (yield from source.skip(_OPENERS)):
            try:
                yield from self._calls(source)
            except Malformed:
                continue

    def _calls(self, source: Source) -> Step[None]:
        yield from source.space()
        while (yield from source.accept(_OPENER)):
            yield from source.space()
        if (yield from source.peek()) in ("[", "{"):
            yield from self._json(source)
        else:
            yield from self._named(source)

    def _named(self, source: Source) -> Step[None]:
        name = yield from read_declared_name(source)
        call_id = ""
        yield from source.space()
        if (yield from source.accept("[CALL_ID]")):
            call_id = yield from source.run(_ID)
        yield from source.accept("[ARGS]")
        yield from source.space()
        arguments = yield from read_object(source)
        source.call(name, arguments, call_id)

    def _json(self, source: Source) -> Step[None]:
        """A list of objects, or objects alone."""
        yield from source.accept("[")
        yield from source.space()
        self._tell(source, (yield from read_object(source)))
        while True:
            yield from source.space()
            yield from source.accept(",")
            yield from source.space()
            if (yield from source.peek()) != "{":
                return
            try:
                self._tell(source, (yield from read_object(source)))
            except Malformed:
                return

    def _tell(self, source: Source, call: Mapping[str, object]) -> None:
        name, call_id = call.get("name"), call.get("id")
        arguments = call.get("arguments", {})
        if not isinstance(name, str) or not isinstance(arguments, Mapping | str):
            raise Malformed
        source.call(name, arguments, call_id if isinstance(call_id, str) else "")


MISTRAL = Mistral()
MISTRAL_REASONING = ReasoningFormat("mistral", ("[THINK]",), ("[/THINK]",), repeats=True)
