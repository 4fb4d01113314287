"""Answers of every kind, for the dialects to spell."""

from dataclasses import dataclass

from node.ipc.messages import Delta, Part, PartKind, RowUsage
from node.protocol.messages import FinishReason

USAGE = RowUsage(
    prompt_tokens=31,
    cached_tokens=16,
    completion_tokens=9,
    queue_s=0.01,
    prefill_s=0.2,
    decode_s=0.3,
    reasoning_tokens=4,
)


@dataclass(frozen=True, slots=True)
class Sample:
    """An answer as the engine sends it."""

    name: str
    steps: tuple[tuple[Part, ...], ...]
    """The parts of each engine step."""
    finish: FinishReason = FinishReason.STOP
    stop: str | None = None

    @property
    def last(self) -> Delta:
        return Delta("row", (), USAGE.completion_tokens, self.finish, USAGE, stop=self.stop)

    @property
    def is_text(self) -> bool:
        """Returns True if a completion may contain the answer."""
        return all(part.kind is PartKind.CONTENT for step in self.steps for part in step)


def _content(*texts: str) -> tuple[tuple[Part, ...], ...]:
    return tuple((Part(PartKind.CONTENT, text),) for text in texts)


def _reasoning(*texts: str) -> tuple[tuple[Part, ...], ...]:
    return tuple((Part(PartKind.REASONING, text),) for text in texts)


def _call(index: int, name: str, *pieces: str) -> tuple[tuple[Part, ...], ...]:
    start = Part(PartKind.TOOL_START, "", index, name, f"call_{index:024}")
    arguments = tuple((Part(PartKind.TOOL_ARGS, piece, index),) for piece in pieces)
    return ((start,), *arguments)


FIND = _call(0, "find_ship", '{"name": "Aurora \\"II\\" é', '", "decks": [1, ', "2]}")
DOCK = _call(1, "dock", "{}")

SAMPLES = (
    Sample("text", _content("Good", " morning,\n\n", "\N{SAILBOAT} ahoy \u2028.")),
    Sample("reasoning and text", _reasoning("First", " I look.\n") + _content("It is there.")),
    Sample("one call", FIND),
    Sample("text and parallel calls", _content("I look it up.") + FIND + DOCK),
    Sample("reasoning and a call", _reasoning("A ship?") + FIND),
    Sample("calls within one step", (tuple(part for step in FIND + DOCK for part in step),)),
    Sample("text, a call, text", _content("Before.") + FIND + _content("After.")),
    Sample("length", _content("It goes on and"), FinishReason.LENGTH),
    Sample("length within reasoning", _reasoning("Well, if"), FinishReason.LENGTH),
    Sample("stop string", _content("one two "), stop="three"),
    Sample("empty", ()),
)
