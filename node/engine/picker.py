"""The next token of every row of a batch: penalties, then what a row is held to, then the draw."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from node.engine.row import Row
from node.engine.sampler import BatchSampler
from node.engine.steering import steered


@dataclass(slots=True)
class Picked:
    """Tokens on the device, not waited for."""

    tokens: mx.array
    """[rows]."""

    def keep(self, places: mx.array) -> None:
        """Only the rows at these places go on."""
        self.tokens = self.tokens[places]


class Picker:
    """Of one composition of a batch; kept for as long as it stays the same."""

    def __init__(self, rows: Sequence[Row], vocab_size: int) -> None:
        self._rows = rows
        self._sampler = BatchSampler([row.sampling for row in rows], vocab_size)
        self._penalises = any(row.penalties is not None for row in rows)
        self._steers = any(row.steer is not None for row in rows)

    def pick(self, logits: mx.array) -> Picked:
        """Of logits [rows, V] after all tokens that the rows have taken."""
        if self._penalises:
            logits = self._penalised(logits)
        if self._steers:
            logits = steered(self._rows, logits)
        picked = Picked(self._sampler.sample(logits))
        mx.async_eval(picked.tokens)
        return picked

    def _penalised(self, logits: mx.array) -> mx.array:
        out = []
        for place, row in enumerate(self._rows):
            own = logits[place : place + 1]
            out.append(own if row.penalties is None else row.penalties.apply(own))
        return mx.concatenate(out)
