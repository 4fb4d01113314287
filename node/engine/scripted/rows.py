"""Makes the rows of a scripted engine from requests."""

import zlib
from array import array
from collections.abc import Callable

from node.engine.decoding.choices import Tally, choice_of
from node.engine.scripted.row import ScriptedRow, pieces_of
from node.engine.scripted.script import Script
from node.ipc.generate import GenerateRequest
from node.parsing.output_parser import OutputParser

UNLIMITED_TOKENS = 32
"""Length of an output without a text or a limit."""


class RowMaker:
    """Gives each choice of each request its scripted output, in order."""

    def __init__(self, script: Script, context_tokens: int, clock: Callable[[], float]) -> None:
        self._script = script
        self._context_tokens = context_tokens
        self._clock = clock
        self._made = 0

    def row(self, request: GenerateRequest, tally: Tally) -> ScriptedRow:
        """Returns the row of the first choice, which has those of the others."""
        row, *others = (self._choice(request, tally, number) for number in range(request.choices))
        row.others = others
        return row

    def _choice(self, request: GenerateRequest, tally: Tally, choice: int) -> ScriptedRow:
        pieces = self._pieces()
        room_tokens = self._context_tokens - len(request.tokens)
        prompt_hash = zlib.crc32(array("q", request.tokens).tobytes())
        if choice:
            prompt_hash = zlib.crc32(choice.to_bytes(8, "little"), prompt_hash)
        return ScriptedRow(
            request=request,
            pieces=pieces,
            limit_tokens=min(request.max_tokens or room_tokens, room_tokens),
            natural_tokens=self._natural_tokens(request, room_tokens, len(pieces)),
            arrived_s=self._clock(),
            parser=OutputParser(request.output, request.stops, uid=choice_of(request, choice).uid),
            prompt_hash=prompt_hash,
            tally=tally,
            choice=choice,
        )

    def _pieces(self) -> tuple[str, ...]:
        """Returns the next choice's scripted tokens; empty means words that depend on the
        prompt."""
        script = self._script
        number, self._made = self._made, self._made + 1
        if script.outputs:
            return tuple(pieces_of(script.outputs[number % len(script.outputs)]))
        words = [] if script.text is None else script.text.split()
        return tuple(word if at == 0 else f" {word}" for at, word in enumerate(words))

    def _natural_tokens(self, request: GenerateRequest, room_tokens: int, count: int) -> int:
        if self._script.tokens is not None and request.max_tokens is None:
            return self._script.tokens
        if count:
            return count
        # Without a text to end, only the request's own limit ends it.
        return UNLIMITED_TOKENS if request.max_tokens is None else room_tokens + 1
