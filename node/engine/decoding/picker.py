"""Picks the next token of every row of a batch: applies penalties, then constraints, then draws."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from node.engine.decoding.apply_mask import steered
from node.engine.decoding.row import Row
from node.engine.sampling.logprobs import Likely
from node.engine.sampling.sampler import BatchSampler, Likeliest


@dataclass(slots=True)
class Picked:
    """Picked tokens on the device, which may still be computing them."""

    tokens: mx.array
    """[rows]."""
    likeliest: list[tuple[list[int | None], Likeliest]]
    """Log probabilities, each with the batch indices of its rows; None for a removed row."""

    def keep(self, places: Sequence[int]) -> None:
        """Keeps only the rows at these indices."""
        self.tokens = self.tokens[mx.array([*places])]
        moved: dict[int | None, int] = {place: at for at, place in enumerate(places)}
        self.likeliest = [
            ([moved.get(place) for place in told], likeliest) for told, likeliest in self.likeliest
        ]

    def read(self) -> tuple[list[int], dict[int, Likely]]:
        """Returns the token of each row, and by index the log probabilities of the rows that report
        them. Waits for the device."""
        told: dict[int, Likely] = {}
        for places, likeliest in self.likeliest:
            # In the order of the fields of `Likely`.
            columns: list[list[Any]] = [array.tolist() for array in likeliest]  # type: ignore[misc]
            for place, *row in zip(places, *columns, strict=True):
                if place is not None:
                    told[place] = Likely(*row)
        return self.tokens.tolist(), told  # type: ignore[return-value]


class Picker:
    """Picks tokens for one composition of a batch; replaced when its rows change."""

    def __init__(self, rows: Sequence[Row], vocab_size: int) -> None:
        self._rows = rows
        self._sampler = BatchSampler([row.sampling for row in rows], vocab_size)
        self._penalises = any(row.penalties is not None for row in rows)
        self.steers = any(row.steer is not None for row in rows)
        """True if a row has a constraint that depends on its text."""

    def pick(self, logits: mx.array) -> Picked:
        """Starts picking tokens from logits [rows, V]. The rows must have taken all tokens before
        that."""
        if self._penalises:
            logits = self._penalised(logits)
        if self.steers:
            logits = steered(self._rows, logits)
        tokens, likeliest = self._sampler.sample(logits)
        mx.async_eval(tokens, [each for _, each in likeliest])
        return Picked(tokens, [([*places], each) for places, each in likeliest])

    def _penalised(self, logits: mx.array) -> mx.array:
        out = []
        for place, row in enumerate(self._rows):
            own = logits[place : place + 1]
            out.append(own if row.penalties is None else row.penalties.apply(own))
        return mx.concatenate(out)
