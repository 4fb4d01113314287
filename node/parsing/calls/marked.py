"""Reads and spells outputs in which a reasoning format and a tool format are marked apart."""

from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.ipc.messages import PartKind
from node.parsing.constraints.lark import Lark
from node.parsing.constraints.schema import UnsupportedConstraint
from node.parsing.format import OutputLayout, ReasoningFormat, Setup, ToolFormat, has_begun_answer
from node.parsing.parsed_calls import emit_calls
from node.parsing.scanning.added_tokens import TokenFamily
from node.parsing.scanning.markers import Markers
from node.parsing.scanning.sink import ParsedCall
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step

_BLANK_DEPTH = 2
"""Deepest nesting of blocks without calls: a section, and a call in it."""
_LINE_ENDS = r"\n\n?"
"""Line ends next to markers of reasoning; they are not part of the answer."""


class MarkedLayout(OutputLayout):
    """Reads and spells outputs of a reasoning format and a tool format."""

    def __init__(
        self, reasoning: ReasoningFormat, tools: ToolFormat, *, reads_calls: bool = True
    ) -> None:
        """Without `reads_calls`, calls are text."""
        self.name = f"{reasoning.name}+{tools.name}"
        self.opener = reasoning.opener
        self.openers = tools.openers
        self.orphans = (*tools.orphans, *reasoning.closers)
        self.stop_tokens = tools.stop_tokens if reads_calls else ()
        self.strict = reasoning.markers
        self.closing = reasoning.closers[0] if reasoning.closers else ""
        self.reasoning_ends = reasoning.closers
        self._reasoning = reasoning
        self._tools = tools
        self._reads_calls = reads_calls
        self._starts = tools.starts if reads_calls else ()
        self._blank_ends = (*tools.blank_ends, *tools.orphans)
        calls = Markers(tools.openers if reads_calls else ())
        unread = Markers(() if calls.texts else reasoning.unread_calls)
        self._in_reasoning = Markers(reasoning.closers) | calls | unread
        dropped = Markers(reasoning.dropped)
        # Openers of calls that are not read may still begin a block without calls.
        self._after = Markers(tools.openers) | dropped
        self._before = self._after | Markers(reasoning.openers)
        """Markers to look for before any reasoning."""
        if reasoning.repeats:
            self._after = self._before
        self._interrupted = self._before | Markers(reasoning.closers)
        """Markers to look for behind reasoning that calls have ended."""
        self._ends = (*reasoning.closers, *reasoning.dropped, *reasoning.openers)
        """Markers that may follow calls which end an output within reasoning."""

    # --- spelling -----------------------------------------------------------------------------

    def reasoning_openings(self, prompt_tail: str) -> tuple[str, ...]:
        reasoning = self._reasoning
        begun = reasoning.begins_within(prompt_tail) or reasoning.closes(prompt_tail)
        if begun or has_begun_answer(prompt_tail):
            return ()
        # A text that may become another marker has not begun reasoning yet.
        texts = (*reasoning.openers, *reasoning.closers, *reasoning.dropped)
        longer = [(text, each) for text in texts for each in texts if text != each]
        begins = {text for text, each in longer if each.startswith(text)}
        return tuple(each for each in reasoning.openers if each not in begins)

    def spell_text(self, lark: Lark, content: str, prompt_tail: str | None) -> str:
        return self._spell_answer(lark, content, prompt_tail)

    def spell_answer_calls(
        self,
        lark: Lark,
        tools: Sequence[ToolSchema],
        prompt_tail: str | None,
        *,
        parallel: bool,
    ) -> str:
        if self._tools.spells_bare and prompt_tail is not None and has_begun_answer(prompt_tail):
            reason = "The model cannot call a tool behind an answer that was begun for it."
            raise UnsupportedConstraint(reason, "tool_choice")
        calls = self._tools.calls_grammar(lark, tools, parallel=parallel)
        return self._spell_answer(lark, calls, prompt_tail)

    def _spell_answer(self, lark: Lark, answer: str, prompt_tail: str | None) -> str:
        """Returns the answer with the markers that models write around it."""
        reasoning = self._reasoning
        line_ends = lark.optional(lark.regex(_LINE_ENDS))
        # If the prompt has ended the reasoning, the model may still write line ends.
        is_at_end = prompt_tail is None or prompt_tail.endswith(reasoning.closers)
        before = [line_ends] if is_at_end else []
        if prompt_tail is not None and reasoning.closes_first:
            within = reasoning.begins_within(prompt_tail) or reasoning.closes(prompt_tail)
            if not within:
                before = [lark.optional(f"{lark.text(self.closing)} {line_ends}")]
        begin, end = reasoning.wrap
        if begin:
            before.append(lark.optional(f"{lark.text(begin)} {line_ends}"))
        after = lark.optional(f"{line_ends} {lark.text(end)}") if end else ""
        return " ".join((*before, answer, after)).rstrip()

    # --- reading ------------------------------------------------------------------------------

    def families(self, *, reads_calls: bool) -> tuple[TokenFamily, ...]:
        tools, reasoning = self._tools, self._reasoning
        return (
            TokenFamily(frozenset(tools.openers), frozenset(tools.orphans), drops_ends=reads_calls),
            TokenFamily(
                frozenset(reasoning.openers), frozenset(reasoning.closers), drops_ends=True
            ),
        )

    def read(self, source: Source, setup: Setup) -> Step[None]:
        is_over = self._reasoning.closes(setup.prompt_tail)
        markers = self._after if is_over else self._before
        reasons = yield from self._begins_within(source, setup)
        while True:
            while reasons:
                markers = yield from self._read_reasoning(source)
                reasons = yield from self._read_seam(source)
            if (
                self._starts
                and not source.output.has_text
                and (yield from self._read_starts(source))
            ):
                markers = self._behind_calls(markers)
            marker = yield from source.until(PartKind.CONTENT, markers)
            if not marker:
                return
            if marker in self._reasoning.closers:
                source.output.mark_edge()
                markers = self._after
                continue
            reasons = yield from self._read_marked(source, marker)
            if marker in self._tools.openers and not source.output.has_text:
                markers = self._behind_calls(markers)

    def _behind_calls(self, markers: Markers) -> Markers:
        """Returns the markers to look for behind calls, where a model may reason again."""
        return markers if markers is self._interrupted else self._before

    def _read_marked(self, source: Source, marker: str) -> Step[bool]:
        """Reads the piece that a marker in the answer begins; returns True if it begins
        reasoning."""
        reasoning = self._reasoning
        if marker in reasoning.openers:
            # An opener counts only before any content; later it is text about reasoning.
            if source.output.has_text and not reasoning.repeats:
                source.output.emit_marker(PartKind.CONTENT, marker)
                return False
            source.output.mark_edge()
            return True
        if marker in reasoning.dropped:
            if not source.output.has_text:
                source.output.mark_edge()
            elif marker == reasoning.wrap[0]:
                source.output.emit_marker(PartKind.CONTENT, marker)
            return False
        yield from source.attempt(marker, self._read_block(source, marker), PartKind.CONTENT)
        return False

    def _read_block(self, source: Source, opener: str) -> Step[None]:
        is_token = source.was_token(opener)
        may_be_blank = is_token or not source.output.has_text
        if may_be_blank and opener not in self._tools.never_blank:
            blank = self._read_blank(source, is_token=is_token)
            if (yield from source.maybe(blank)):
                source.output.mark_edge()
                return
        if not self._reads_calls:
            raise Malformed
        yield from self._tools.read(source, opener)

    def _read_blank(self, source: Source, *, is_token: bool) -> Step[bool]:
        """Reads a block without calls to its end, or one with an empty list in their place. Raises
        `Malformed`."""
        depth, ends, is_listed = 1, self._blank_ends, False
        while depth:
            step = self._read_blank_mark(source)
            if is_listed and is_token:
                mark = yield from source.maybe(step)
            else:
                mark = yield from step
            if not mark:
                break
            if mark == "[":
                yield from source.space()
                yield from source.expect("]")
                is_listed = True
            elif mark in ends:
                depth -= 1
            elif depth < _BLANK_DEPTH:
                depth += 1
            else:
                raise Malformed
        return True

    def _read_blank_mark(self, source: Source) -> Step[str]:
        yield from source.space()
        return (yield from source.expect("[", *self._blank_ends, *self._tools.openers))

    def _begins_within(self, source: Source, setup: Setup) -> Step[bool]:
        """Returns True if the output begins within reasoning, after reading the markers that may
        come first."""
        reasoning = self._reasoning
        # This is known before any text comes.
        source.output.in_reasoning = reasoning.begins_within(setup.prompt_tail)
        if reasoning.has_begun_text(setup.prompt_tail):
            source.output.resume(PartKind.REASONING)
            return True
        if has_begun_answer(setup.prompt_tail):
            source.output.resume(PartKind.CONTENT)
        opened = reasoning.opens(setup.prompt_tail)
        begins = reasoning.begins_within(setup.prompt_tail)
        # The opener may be missing in the prompt and come in the output.
        first = reasoning.openers if begins and not opened else ()
        if not begins and reasoning.closes_first:
            first = reasoning.closers
        if first:
            space = yield from source.space()
            found = yield from source.accept(*first)
            if found:
                source.output.mark_edge()
            else:
                source.output.emit(PartKind.REASONING if begins else PartKind.CONTENT, space)
        return begins

    def _read_reasoning(self, source: Source) -> Step[Markers]:
        """Reads reasoning until it is closed or something else ends it; returns the markers to look
        for behind it."""
        thought: list[ParsedCall] = []
        while True:
            marker = yield from source.until(PartKind.REASONING, self._in_reasoning)
            if not marker:
                self._emit_thought(source, thought)
                return self._after
            if marker in self._reasoning.closers:
                source.output.mark_edge()
                return self._after
            if marker in self._reasoning.unread_calls and not self._reads_calls:
                block = self._read_unread_calls(source, marker)
            else:
                block = self._read_last_calls(source, marker, thought)
            if (yield from source.attempt(marker, block, PartKind.REASONING)):
                return self._interrupted

    def _read_seam(self, source: Source) -> Step[bool]:
        """Reads repeated closers, or an opener, between reasoning and answer; returns True if
        reasoning continues."""
        reasoning = self._reasoning
        while not source.output.has_text:
            space = yield from source.space()
            marker = yield from source.accept(*reasoning.closers, *reasoning.openers)
            if not marker:
                source.output.emit(PartKind.CONTENT, space)
                return False
            source.output.mark_edge()
            if marker in reasoning.openers:
                return True
        return False

    def _emit_thought(self, source: Source, thought: Sequence[ParsedCall]) -> None:
        """Emits the calls of an output that ends within its reasoning, which would be empty without
        them. If the output was cut, the model might still have decided otherwise."""
        if thought and not source.is_cut:
            source.output.mark_edge()
            emit_calls(source, thought)

    def _read_last_calls(
        self, source: Source, opener: str, thought: list[ParsedCall]
    ) -> Step[None]:
        """Reads calls within reasoning. They count only if the output ends with them, or with the
        end of reasoning behind them; otherwise they are part of the reasoning, and are added to
        `thought`."""
        source.calls.keep_back()
        try:
            yield from self._read_kept_calls(source, opener)
        except Malformed:
            thought += source.calls.take_kept()
            raise
        emit_calls(source, source.calls.take_kept())

    def _read_kept_calls(self, source: Source, opener: str) -> Step[None]:
        marker = opener
        while marker in self._tools.openers:
            yield from self._tools.read(source, marker)
            # Text behind the last of them makes all of them reasoning.
            source.block.settle()
            yield from source.space()
            marker = yield from source.accept(*self._tools.openers, *self._ends)
        yield from self._read_end(source, marker)

    def _read_unread_calls(self, source: Source, opener: str) -> Step[None]:
        """Reads calls within reasoning that are text, since the request has no tools; see
        `_read_last_calls`."""
        calls_text, marker = "", opener
        while marker in self._reasoning.unread_calls:
            body, end = yield from source.capture(self._reasoning.unread_end)
            source.block.settle()
            calls_text += marker + body + end
            space = yield from source.space()
            marker = yield from source.accept(*self._reasoning.unread_calls, *self._ends)
            if marker in self._reasoning.unread_calls:
                calls_text += space
        yield from self._read_end(source, marker)
        source.output.mark_edge()
        source.output.emit(PartKind.CONTENT, calls_text)

    def _read_end(self, source: Source, marker: str) -> Step[None]:
        """Reads from behind an end of the reasoning up to the end of the output. Raises `Malformed`
        if the output goes on."""
        while marker:
            source.output.in_reasoning = False
            yield from source.space()
            marker = yield from source.accept(*self._ends)
        if not source.at_end:
            raise Malformed

    def _read_starts(self, source: Source) -> Step[bool]:
        """Reads calls without markup at the start of the answer; returns True if there are any."""
        found = False
        while (yield from source.attempt("", self._read_start(source), PartKind.CONTENT)):
            found = True
        return found

    def _read_start(self, source: Source) -> Step[None]:
        yield from source.space()
        start = yield from source.expect(*self._starts)
        yield from self._tools.read(source, start)
