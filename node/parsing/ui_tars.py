"""Outputs of UI-TARS: `Thought: …⏎Action: click(point='<point>1 2</point>')`.

An action is a call of the tool `computer`, with the verb as its argument `action`; of a tool of
the verb's name where one is declared. Points are lists of two numbers.
"""

import re
from collections.abc import Mapping
from typing import Any

from node.parsing.format import Grammar, Setup
from node.parsing.json_calls import NAME
from node.parsing.markers import Markers
from node.parsing.python_blocks import read_brackets
from node.parsing.python_calls import Call, NoCalls, read_calls
from node.parsing.source import Malformed, Source, Step
from node.types import PartKind

_ACTION = "Action:"
_NEXT_ACTION = "\nAction:"
_ACTIONS = Markers((_NEXT_ACTION,))
_NOTHING = Markers(())
_COMPUTER = "computer"
_NUMBER = r"\s*(-?\d+(?:\.\d+)?)\s*"
_POINT = re.compile(
    rf"<point>{_NUMBER}[\s,]{_NUMBER}</point>"
    rf"|(?:<\|box_start\|>)?\({_NUMBER},{_NUMBER}\)(?:<\|box_end\|>)?"
)


class UiTars(Grammar):
    name = "ui_tars"
    opener = "Thought:"
    openers = (_NEXT_ACTION,)

    def read(self, source: Source, setup: Setup) -> Step[None]:
        marker = ""
        if setup.splits_reasoning:
            marker = yield from self._read_thought(source)
        if not marker:
            marker = yield from source.accept(_ACTION)
        actions = _ACTIONS if setup.reads_calls else _NOTHING
        while True:
            if marker and setup.reads_calls:
                block = self._read_actions(source)
                yield from source.attempt(marker, block, PartKind.CONTENT)
            else:
                source.say(PartKind.CONTENT, marker)
            marker = yield from source.until(PartKind.CONTENT, actions)
            if not marker:
                return

    def _read_thought(self, source: Source) -> Step[str]:
        """What the actions are to do, and the marker of the first."""
        space = yield from source.space()
        if not (yield from source.accept("Thought:", "Reflection:")):
            source.say(PartKind.CONTENT, space)
            return ""
        source.edge()
        marker = yield from source.until(PartKind.REASONING, _ACTIONS)
        source.edge()
        return marker

    def _read_actions(self, source: Source) -> Step[None]:
        """One action or several. Raises `Malformed`, also at what follows the last."""
        while True:
            yield from source.space()
            verb = yield from source.run(NAME)
            begun = verb + (yield from source.expect("("))
            for call in _calls((yield from read_brackets(source, begun))):
                source.call(*self._as_tool(call, source.schemas))

    def _as_tool(
        self, call: Call, schemas: Mapping[str, Mapping[str, Any]]
    ) -> tuple[str, dict[str, Any]]:
        arguments = {key: _read_point(value) for key, value in call.arguments.items()}
        if call.name in schemas:
            return call.name, arguments
        return _COMPUTER, {"action": call.name, **arguments}


def _calls(text: str) -> list[Call]:
    try:
        return read_calls(text)
    except NoCalls:
        raise Malformed from None


def _read_point(value: Any) -> Any:
    """The point that a text spells, else the value."""
    match = _POINT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return value
    numbers = [float(each) for each in match.groups() if each is not None]
    return [int(each) if each.is_integer() else each for each in numbers]


UI_TARS = UiTars()
