"""UI-TARS: `Thought: …⏎Action: click(point='<point>1 2</point>')`.

An action is a call of the tool `computer` with the verb as its argument `action`, or a call of a
declared tool with the verb's name. Points are lists of two numbers.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from node.ipc.generate import ToolSchema
from node.ipc.messages import PartKind
from node.parsing.calls.json_calls import NAME, WORD
from node.parsing.calls.python_blocks import read_brackets
from node.parsing.calls.python_calls import NotPythonCalls, PythonCall, read_calls
from node.parsing.calls.spelled_json import bare_name
from node.parsing.coercion import property_schema, types_of
from node.parsing.constraints.arguments import arguments_of
from node.parsing.constraints.lark import Lark
from node.parsing.constraints.values import Argument, flat_schemas, with_definitions
from node.parsing.format import ModelFamily, OutputLayout, Setup
from node.parsing.scanning.markers import Markers
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step
from node.parsing.values.raw_values import in_order, written_name

_ACTION = "Action:"
_NEXT_ACTION = "\nAction:"
_ACTIONS = Markers((_NEXT_ACTION,))
_NOTHING = Markers(())
_COMPUTER = "computer"
_VERB = "action"
"""The tool's argument that takes the name of the call."""
_THOUGHT = "Thought:"
_QUOTED = r"'([^'\\\x00-\x1f]|\\[\\'nt])*'"
_COORDINATE = r"-?(0|[1-9][0-9]{0,4})"
_POINT_PATTERN = rf"'<point>{_COORDINATE} {_COORDINATE}</point>'"
_NUMBER = r"\s*(-?\d+(?:\.\d+)?)\s*"
_POINT = re.compile(
    rf"<point>{_NUMBER}[\s,]{_NUMBER}</point>"
    rf"|(?:<\|box_start\|>)?\({_NUMBER},{_NUMBER}\)(?:<\|box_end\|>)?"
)


class UiTars(OutputLayout):
    name = "ui_tars"
    opener = _THOUGHT
    openers = (_NEXT_ACTION,)
    closing = _NEXT_ACTION
    reasoning_ends = (_NEXT_ACTION,)

    def spell_answer_calls(
        self,
        lark: Lark,
        tools: Sequence[ToolSchema],
        prompt_tail: str | None,
        *,
        parallel: bool,
    ) -> str:
        names = {tool.name for tool in tools}
        call = lark.one_of([way for tool in tools for way in _calls_grammar(lark, tool, names)])
        calls = lark.many(call, lark.text("\n\n")) if parallel else call
        if prompt_tail is None:
            return f"{lark.text(' ')} {calls}"
        # Only an action may follow a thought, so an answer of another kind must not begin with one.
        thought = f"{lark.text(_THOUGHT)} {lark.until(_NEXT_ACTION)}"
        begin = lark.one_of([lark.text(_ACTION), thought])
        return f"{begin} {lark.text(' ')} {calls}"

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
                source.output.emit(PartKind.CONTENT, marker)
            marker = yield from source.until(PartKind.CONTENT, actions)
            if not marker:
                return

    def _read_thought(self, source: Source) -> Step[str]:
        """Reads the thought before the actions and the marker of the first action."""
        space = yield from source.space()
        if not (yield from source.accept(_THOUGHT, "Reflection:")):
            source.output.emit(PartKind.CONTENT, space)
            return ""
        source.output.mark_edge()
        marker = yield from source.until(PartKind.REASONING, _ACTIONS)
        source.output.mark_edge()
        return marker

    def _read_actions(self, source: Source) -> Step[None]:
        """Reads one or more actions. Raises `Malformed`, also for any text behind the last."""
        while True:
            yield from source.space()
            verb = yield from source.run(NAME)
            begun = verb + (yield from source.expect("("))
            source.calls.declared_schema(verb if verb in source.calls.schemas else _COMPUTER)
            for call in _calls((yield from read_brackets(source, begun))):
                source.calls.emit(*self._as_tool(call, source.calls.schemas))

    def _as_tool(
        self, call: PythonCall, schemas: Mapping[str, Mapping[str, Any]]
    ) -> tuple[str, dict[str, Any]]:
        name = call.name if call.name in schemas else _COMPUTER
        schema = schemas.get(name, {})
        arguments = {
            key: value if _takes_text(schema, key) else _read_point(value)
            for key, value in call.arguments.items()
        }
        return name, arguments if name == call.name else {_VERB: call.name, **arguments}


def _calls(text: str) -> list[PythonCall]:
    try:
        return read_calls(text)
    except NotPythonCalls:
        raise Malformed from None


def _read_point(value: Any) -> Any:
    """Returns the point that a text spells, or else the value itself."""
    match = _POINT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return value
    numbers = [float(each) for each in match.groups() if each is not None]
    return [int(each) if each.is_integer() else each for each in numbers]


def _takes_text(parameters: Mapping[str, Any], name: str) -> bool:
    """True if a value written as text is certainly meant as text."""
    return "string" in types_of(property_schema(parameters, name), parameters)


def _calls_grammar(lark: Lark, tool: ToolSchema, names: set[str]) -> list[str]:
    """Returns the expressions of the calls of a tool. Raises `UnsupportedConstraint`."""
    arguments = arguments_of(tool)
    verbs = _verbs(arguments) if tool.name == _COMPUTER else []
    if verbs and not names & set(verbs):
        others = [each for each in arguments if each.name != _VERB]
        return [_spell_call(lark, verb, others) for verb in verbs]
    return [_spell_call(lark, bare_name(tool, WORD), arguments)]


def _verbs(arguments: Sequence[Argument]) -> list[str]:
    """Returns the actions that the tool `computer` allows, if each can be the name of a call."""
    for argument in arguments:
        if argument.name == _VERB:
            flats = flat_schemas(argument.schema, argument.place)
            values = [value for flat in flats for value in flat.get("enum", [None])]
            if all(isinstance(value, str) and WORD.fullmatch(value) for value in values):
                return values
    return []


def _spell_call(lark: Lark, name: str, arguments: Sequence[Argument]) -> str:
    written = []
    for each in arguments:
        key = written_name(each.name, r"[A-Za-z0-9_.\-]+", each.place)
        written.append((f"{lark.text(f'{key}=')} {_spell_value(lark, each)}", each.is_required))
    body = in_order(lark, written, lark.text(", "))
    return f"{lark.text(f'{name}(')} {body} {lark.text(')')}"


def _spell_value(lark: Lark, argument: Argument) -> str:
    """Returns the expression of a value. JSON is read like Python; strings and points may also be
    written in the spelling that the model has learned."""
    schema, place = argument.schema, argument.place
    ways = [lark.json(with_definitions(schema, place), place.param)]
    for flat in flat_schemas(schema, place):
        if flat == {"type": "string"}:
            ways.append(lark.regex(_QUOTED))
        elif _is_point(flat):
            ways.append(lark.regex(_POINT_PATTERN))
    return lark.one_of(ways)


def _is_point(flat: Mapping[str, Any]) -> bool:
    """True if any list of two integers fits the schema."""
    return (
        flat.get("type") == "array"
        and flat.get("items") in ({"type": "integer"}, {"type": "number"})
        and flat.keys() <= {"type", "items", "minItems", "maxItems"}
        and flat.get("minItems", 0) <= 2 <= flat.get("maxItems", 2)
    )


UI_TARS = UiTars()

FAMILY = ModelFamily(
    layouts=(UI_TARS,),
)
