"""From one row's text to its parts: reasoning, content, tool calls, up to a stop string.

The only such machine: an answer that is not streamed is the same parts, collected.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from node.parsing.coercion import fit
from node.parsing.format import Setup
from node.parsing.json_text import is_strict_json, read_json, write_json
from node.parsing.registry import grammar_for
from node.parsing.source import Finished, Malformed, Source, Step
from node.parsing.stops import StopMatcher
from node.types import OutputFormat, Part, PartKind

_CONTENT = PartKind.CONTENT
_REASONING = PartKind.REASONING
_SPACE_LENGTH = 4096
"""Characters of white space that are held; of a longer run the begin is told."""


class TextMachine:
    """One row's text. After `ended` or `finish` nothing is to be fed."""

    def __init__(
        self,
        output: OutputFormat | None,
        stops: tuple[str, ...] = (),
        token_markers: frozenset[str] = frozenset(),
        uid: str = "",
    ) -> None:
        """`token_markers` are the texts of the vocabulary's added tokens; ids of calls are made of
        `uid`. Raises `KeyError` for a format that is not known."""
        self.ended = False
        """A stop string was found, or the one call that was wanted."""
        self._stops = StopMatcher(stops)
        self._teller: _Teller | None = None
        if output is not None:
            self._teller = _Teller(self, output, token_markers, uid)
        self._parts: list[Part] = []

    @property
    def stop(self) -> str | None:
        """The stop string that was found."""
        return self._stops.found

    @property
    def in_reasoning(self) -> bool:
        """Whether the text that comes now is reasoning."""
        return self._teller is not None and self._teller.source.in_reasoning

    @property
    def stop_tokens(self) -> frozenset[str]:
        """Texts of the tokens that end the row, and yet are to be fed."""
        return frozenset() if self._teller is None else self._teller.stop_tokens

    def feed(self, text: str) -> list[Part]:
        """The parts that more text brings."""
        if self._teller is None:
            return self._plain(text)
        self._teller.source.append(text)
        return self._run(self._teller)

    def feed_token(self, text: str, *, special: bool) -> list[Part]:
        """The parts that an added token of the vocabulary brings. A special one is no text, but
        for those that a format means something by."""
        if self._teller is None:
            return [] if special else self._plain(text)
        self._teller.source.append_token(text, special=special)
        return self._run(self._teller)

    def finish(self) -> list[Part]:
        """The parts that were held back; no more text comes."""
        if self.ended:
            return []
        if self._teller is None:
            rest = self._stops.flush()
            return [Part(_CONTENT, rest)] if rest else []
        self._teller.source.end()
        return self._run(self._teller, last=True)

    def _plain(self, text: str) -> list[Part]:
        text, self.ended = self._stops.feed(text)
        return [Part(_CONTENT, text)] if text else []

    def _run(self, teller: "_Teller", *, last: bool = False) -> list[Part]:
        if not self.ended:
            try:
                next(teller.steps)
            except StopIteration:
                pass
            except Finished:
                self.ended = True
            if last and not self.ended:
                teller.close()
        return self._take()

    def _take(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def put(self, part: Part) -> None:
        """Of the same kind as the one before, it becomes one with it."""
        if (
            self._parts
            and part.kind is self._parts[-1].kind
            and part.kind in (_CONTENT, _REASONING)
        ):
            part = Part(part.kind, self._parts.pop().text + part.text)
        self._parts.append(part)

    def until_stop(self, text: str) -> str:
        """The text up to the first stop string. Sets `ended` if there is one."""
        text, self.ended = self._stops.feed(text)
        return text

    def unheld(self) -> str:
        """What was held because a stop string might begin with it."""
        return self._stops.flush()


class _Teller:
    """What a grammar finds, as parts. White space next to markup is part of that."""

    def __init__(
        self, machine: TextMachine, output: OutputFormat, token_markers: frozenset[str], uid: str
    ) -> None:
        self._machine = machine
        self._output = output
        self._uid = uid
        schemas = {tool.name: tool.parameters for tool in output.tools}
        self._schemas = schemas
        reads_calls = bool(schemas) and output.tool_calls != "none"
        grammar = grammar_for(output.reasoning, output.tool_calls, reads_calls=reads_calls)
        strict = grammar.strict & token_markers
        self.source = Source(self, schemas, strict)
        # Where calls are content, so are their ends.
        orphans = frozenset(grammar.orphans)
        self.source.orphans = orphans if reads_calls else orphans & grammar.strict
        self.stop_tokens = frozenset(grammar.stop_tokens)
        setup = Setup(output.prompt_tail, output.reasoning != "none", reads_calls)
        self.steps = self._read(grammar.read(self.source, setup))
        self._space: dict[PartKind, str] = {_CONTENT: "", _REASONING: ""}
        self._at_edge: dict[PartKind, bool] = {_CONTENT: False, _REASONING: True}
        """Whether there was markup since the last text of the kind, other than white space."""
        self._told: set[PartKind] = set()
        """Of which there was such text. Only then white space before more of it counts."""
        self._calls: set[tuple[str, str]] = set()
        self._call_ids: set[str] = set()
        self._count = 0

    def _read(self, steps: Step[None]) -> Step[None]:
        yield from steps
        yield from self.source.rest(_CONTENT)

    # --- Sink ---------------------------------------------------------------------------------

    def say(self, kind: PartKind, text: str) -> None:
        if kind is _CONTENT:
            text = self._machine.until_stop(text)
        if self._at_edge[kind] and kind not in self._told:
            text = text.lstrip()
        if text:
            text = self._space[kind] + text
            shown = text.rstrip()
            if shown:
                self._put(kind, shown)
            space = text[len(shown) :]
            while len(space) > _SPACE_LENGTH:
                self._put(kind, space[:_SPACE_LENGTH])
                space = space[_SPACE_LENGTH:]
            self._space[kind] = space
        if kind is _CONTENT and self._machine.ended:
            self._tell_space()
            raise Finished

    def edge(self) -> None:
        held = self._machine.unheld()
        if shown := held.rstrip():
            self._show(shown)
        self._space[_CONTENT] += held[len(shown) :]
        for kind in self._space:
            self._at_edge[kind] = True
            if kind not in self._told:
                self._space[kind] = ""

    def call(self, name: str, arguments: str | Mapping[str, Any], call_id: str) -> None:
        text = self._arguments(name, arguments)
        self.edge()
        said = (name, json.dumps(read_json(text), sort_keys=True))
        if said not in self._calls or self._output.repeated_calls:
            self._calls.add(said)
            index, self._count = self._count, self._count + 1
            put = self._machine.put
            if not call_id or call_id in self._call_ids:
                call_id = self._call_id(index)
            self._call_ids.add(call_id)
            put(Part(PartKind.TOOL_START, "", index, name, call_id))
            put(Part(PartKind.TOOL_ARGS, text, index))
        if not self._output.parallel_calls:
            raise Finished

    def check(self, name: str, arguments: str | Mapping[str, Any]) -> None:
        self._arguments(name, arguments)

    # --- ends ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Tells what was held: nothing more can follow it."""
        held = self._machine.unheld()
        if held:
            self._show(held)
        self._tell_space()

    def _show(self, held: str) -> None:
        self._put(_CONTENT, self._space[_CONTENT] + held)
        self._space[_CONTENT] = ""

    def _put(self, kind: PartKind, text: str) -> None:
        self._told.add(kind)
        self._at_edge[kind] = False
        self._machine.put(Part(kind, text))

    def _tell_space(self) -> None:
        # Behind reasoning it is the white space before its closing marker.
        space = self._space[_CONTENT]
        if space and not self._at_edge[_CONTENT]:
            self._space[_CONTENT] = ""
            self._machine.put(Part(_CONTENT, space))

    def _arguments(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """The arguments' JSON text. Raises `Malformed`."""
        schema = self._schemas.get(name)
        if schema is None:
            raise Malformed
        text = arguments if isinstance(arguments, str) else None
        value: Any = arguments
        try:
            # Some models write the object as a string.
            for _ in range(2):
                if isinstance(value, str):
                    text = value
                    value = read_json(value)
            if not isinstance(value, Mapping):
                raise Malformed
            fitted = fit(dict(value), schema)
            if text is None or fitted != value or not is_strict_json(text):
                text = write_json(fitted)
                # Values may have been put together to something that is too deep.
                read_json(text)
        except ValueError:
            raise Malformed from None
        return text.strip()

    def _call_id(self, index: int) -> str:
        digest = hashlib.blake2b(f"{self._uid}:{index}".encode(), digest_size=12)
        return f"call_{digest.hexdigest()}"
