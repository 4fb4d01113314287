"""Picks the next token of every row of a batch: applies penalties, then constraints, then draws."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from node.engine.decoding.apply_mask import constrain
from node.engine.decoding.row import Row
from node.engine.sampling.logprobs import TopLogprobs
from node.engine.sampling.sampler import BatchSampler, DeviceLogprobs


@dataclass(slots=True)
class Picked:
    """Picked tokens on the device, which may still be computing them."""

    tokens: mx.array
    """[rows]."""
    logprobs: list[tuple[list[int | None], DeviceLogprobs]]
    """Log probabilities, each with the batch indices of its rows; None for a removed row."""

    def keep(self, places: Sequence[int]) -> None:
        """Keeps only the rows at these indices."""
        self.tokens = self.tokens[mx.array([*places])]
        moved: dict[int | None, int] = {place: at for at, place in enumerate(places)}
        self.logprobs = [
            ([moved.get(place) for place in before], logprobs) for before, logprobs in self.logprobs
        ]

    def read(self) -> tuple[list[int], dict[int, TopLogprobs]]:
        """Returns the token of each row, and by index the log probabilities of the rows that report
        them. Waits for the device."""
        found: dict[int, TopLogprobs] = {}
        for places, logprobs in self.logprobs:
            # In the order of the fields of `TopLogprobs`.
            columns: list[list[Any]] = [array.tolist() for array in logprobs]  # type: ignore[misc]
            for place, *row in zip(places, *columns, strict=True):
                if place is not None:
                    found[place] = TopLogprobs(*row)
        return self.tokens.tolist(), found  # type: ignore[return-value]


class Picker:
    """Picks tokens for one composition of a batch; replaced when its rows change."""

    def __init__(self, rows: Sequence[Row], vocab_size: int) -> None:
        self._rows = rows
        self._sampler = BatchSampler([row.sampling for row in rows], vocab_size)
        self._penalizes = any(row.penalties is not None for row in rows)
        self.has_constraints = any(row.constraint is not None for row in rows)
        """True if a row has a constraint that depends on its text."""

    def pick(self, logits: mx.array) -> Picked:
        """Starts picking tokens from logits [rows, V]. The rows must have taken all tokens before
        that."""
        if self._penalizes:
            logits = self._penalized(logits)
        if self.has_constraints:
            logits = constrain(self._rows, logits)
        tokens, logprobs = self._sampler.sample(logits)
        mx.async_eval(tokens, [each for _, each in logprobs])
        return Picked(tokens, [([*places], each) for places, each in logprobs])

    def _penalized(self, logits: mx.array) -> mx.array:
        out = []
        for place, row in enumerate(self._rows):
            own = logits[place : place + 1]
            out.append(own if row.penalties is None else row.penalties.apply(own))
        return mx.concatenate(out)
