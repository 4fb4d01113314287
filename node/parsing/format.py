"""What a wire format is: how reasoning and tool calls are marked in an output.

Most models mark both apart: a `ReasoningFormat` is data, a `ToolFormat` reads one block of calls,
and `read_marked` reads an output of any two of them. Where an output as a whole has another
structure, such as channels with headers, a `Grammar` reads all of it.
"""

from dataclasses import dataclass
from typing import Protocol

from node.parsing.markers import Markers
from node.parsing.source import Malformed, Source, Step
from node.types import PartKind


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning between markers, at the begin of an output."""

    name: str
    openers: tuple[str, ...]
    """The first one is what models write; the others are seen too."""
    closers: tuple[str, ...]
    implicit: bool = False
    """An output begins within reasoning although the prompt does not say so."""
    repeats: bool = False
    """Reasoning may come again after the answer began."""
    dropped: tuple[str, ...] = ()
    """Markers around the answer that are no part of it."""
    closes_first: bool = False
    """An output without reasoning may begin with the closer."""
    interrupters: tuple[str, ...] = ()
    """What ends reasoning although it is text: calls where none are to be read."""

    @property
    def opener(self) -> str:
        """What a prompt ends with that begins the reasoning."""
        return self.openers[0]

    @property
    def markers(self) -> frozenset[str]:
        return frozenset((*self.openers, *self.closers, *self.dropped))

    def opens(self, prompt_tail: str) -> bool:
        """Whether a prompt that ends so has begun the reasoning."""
        return _last(prompt_tail, self.openers) > _last(prompt_tail, self.closers)

    def begins_within(self, prompt_tail: str) -> bool:
        """Whether an output after a prompt that ends so begins within reasoning."""
        return self.opens(prompt_tail) or (self.implicit and _last(prompt_tail, self.closers) < 0)


def _last(text: str, markers: tuple[str, ...]) -> int:
    return max((text.rfind(each) for each in markers), default=-1)


class ToolFormat(Protocol):
    """Reads blocks of tool calls. One object serves all requests: it has no state."""

    name: str
    openers: tuple[str, ...] = ()
    """What a block begins with, wherever it stands."""
    starts: tuple[str, ...] = ()
    """What a block begins with only where the answer or another call begins or has just ended: too
    common within a text."""
    orphans: tuple[str, ...] = ()
    """What ends blocks, and is dropped where it comes as a token of its own without one."""
    stop_tokens: tuple[str, ...] = ()
    """Tokens that end the output, and are read before it does."""

    def read(self, source: Source, opener: str) -> Step[None]:
        """Reads on behind the opener, and tells each call as soon as it is complete. Raises
        `Malformed` where there is none."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is wanted of an output."""

    prompt_tail: str = ""
    splits_reasoning: bool = True
    """Else it is content, with its markers."""
    reads_calls: bool = True
    """Else their markup is content."""


class Grammar(Protocol):
    """Reads a whole output. One object serves all requests: it has no state."""

    name: str
    opener: str = ""
    """What a prompt ends with that begins the reasoning."""
    openers: tuple[str, ...] = ()
    """Markup that calls begin with."""
    orphans: tuple[str, ...] = ()
    """As of a `ToolFormat`."""
    stop_tokens: tuple[str, ...] = ()
    """As of a `ToolFormat`."""
    strict: frozenset[str] = frozenset()
    """Markers that count only as tokens where the vocabulary has them as such."""

    def read(self, source: Source, setup: Setup) -> Step[None]:
        """Reads until the text ends."""


class NoCalls(ToolFormat):
    """The tool format of outputs without calls."""

    name = "none"

    def read(self, source: Source, opener: str) -> Step[None]:
        raise AssertionError("it has no opener")
        yield


NO_REASONING = ReasoningFormat("none", (), ())


class Marked(Grammar):
    """Reads outputs of a reasoning format and a tool format."""

    def __init__(self, reasoning: ReasoningFormat, tools: ToolFormat) -> None:
        self.name = f"{reasoning.name}+{tools.name}"
        self.openers = tools.openers
        self.orphans = (*tools.orphans, *reasoning.closers)
        self.stop_tokens = tools.stop_tokens
        self.strict = reasoning.markers
        self._reasoning = reasoning
        self._tools = tools
        calls = Markers(tools.openers)
        interrupters = () if tools.openers else reasoning.interrupters
        self._in_reasoning = Markers((*reasoning.closers, *interrupters)) | calls
        dropped = Markers(reasoning.dropped)
        self._before = Markers(reasoning.openers) | calls | dropped
        """Before any reasoning."""
        self._after = self._before if reasoning.repeats else calls | dropped
        self._interrupted = self._after | Markers(reasoning.closers)
        """Behind reasoning that something else than its closer has ended."""

    def read(self, source: Source, setup: Setup) -> Step[None]:
        markers = self._before
        reasons = yield from self._begins_within(source, setup)
        while True:
            while reasons:
                markers = yield from self._read_reasoning(source)
                reasons = yield from self._read_seam(source)
            if self._tools.starts and not source.has_spoken:
                yield from self._read_starts(source)
            marker = yield from source.until(PartKind.CONTENT, markers)
            if not marker:
                return
            if marker in self._reasoning.closers:
                source.edge()
                markers = self._after
            else:
                reasons = yield from self._read_marked(source, marker)

    def _read_marked(self, source: Source, marker: str) -> Step[bool]:
        """What a marker in the answer begins; whether that is reasoning."""
        reasoning = self._reasoning
        if marker in reasoning.openers:
            # Only where nothing was said: later it is talk about reasoning.
            if source.has_spoken and not reasoning.repeats:
                source.say(PartKind.CONTENT, marker)
                return False
            source.edge()
            return True
        if marker in reasoning.dropped:
            if not source.has_spoken:
                source.edge()
            return False
        yield from source.attempt(marker, self._tools.read(source, marker), PartKind.CONTENT)
        return False

    def _begins_within(self, source: Source, setup: Setup) -> Step[bool]:
        """Whether the output begins within reasoning. Reads what it may begin with besides."""
        reasoning = self._reasoning
        opened = reasoning.opens(setup.prompt_tail)
        begins = reasoning.begins_within(setup.prompt_tail)
        # The opener that the prompt lacks.
        first = reasoning.openers if begins and not opened else ()
        if not begins and reasoning.closes_first:
            first = reasoning.closers
        if first:
            space = yield from source.space()
            found = yield from source.accept(*first)
            if found:
                source.edge()
            else:
                source.say(PartKind.REASONING if begins else PartKind.CONTENT, space)
        return begins

    def _read_reasoning(self, source: Source) -> Step[Markers]:
        """Until it is closed, or something else ends it; what is to be looked for behind it."""
        while True:
            marker = yield from source.until(PartKind.REASONING, self._in_reasoning)
            if not marker:
                return self._after
            if marker in self._reasoning.closers:
                source.edge()
                return self._after
            if marker in self._reasoning.interrupters:
                source.edge()
                source.say(PartKind.CONTENT, marker)
                return self._interrupted
            block = self._read_last_calls(source, marker)
            if (yield from source.attempt(marker, block, PartKind.REASONING)):
                return self._interrupted

    def _read_seam(self, source: Source) -> Step[bool]:
        """Between reasoning and answer: closers that come again, or an opener: whether reasoning
        goes on."""
        reasoning = self._reasoning
        while not source.has_spoken:
            space = yield from source.space()
            marker = yield from source.accept(*reasoning.closers, *reasoning.openers)
            if not marker:
                source.say(PartKind.CONTENT, space)
                return False
            source.edge()
            if marker in reasoning.openers:
                return True
        return False

    def _read_last_calls(self, source: Source, opener: str) -> Step[None]:
        """Calls within reasoning: only where the output ends with them, or with the reasoning's
        end behind them. Else they are what the model thinks about."""
        source.keep_calls()
        ends = (*self._reasoning.closers, *self._reasoning.dropped)
        marker = opener
        while marker in self._tools.openers:
            yield from self._tools.read(source, marker)
            yield from source.space()
            marker = yield from source.accept(*self._tools.openers, *ends)
        while marker:
            yield from source.space()
            marker = yield from source.accept(*ends)
        if not source.at_end:
            raise Malformed
        source.tell_kept()

    def _read_starts(self, source: Source) -> Step[None]:
        """Calls at the begin of the answer that nothing marks."""
        while (yield from source.attempt("", self._read_start(source), PartKind.CONTENT)):
            pass

    def _read_start(self, source: Source) -> Step[None]:
        yield from source.space()
        start = yield from source.expect(*self._tools.starts)
        yield from self._tools.read(source, start)
