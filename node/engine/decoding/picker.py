"""The next token of every row of a batch: penalties, then what a row is held to, then the draw."""

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
    """Tokens on the device, not waited for."""

    tokens: mx.array
    """[rows]."""
    likeliest: list[tuple[list[int | None], Likeliest]]
    """Of rows at these places what they could have drawn; None for a row that has left."""

    def keep(self, places: Sequence[int]) -> None:
        """Only the rows at these places go on."""
        self.tokens = self.tokens[mx.array([*places])]
        moved: dict[int | None, int] = {place: at for at, place in enumerate(places)}
        self.likeliest = [
            ([moved.get(place) for place in told], likeliest) for told, likeliest in self.likeliest
        ]

    def read(self) -> tuple[list[int], dict[int, Likely]]:
        """The token of each row; by their places, what the rows could have drawn that tell it.
        Waits for the device."""
        told: dict[int, Likely] = {}
        for places, likeliest in self.likeliest:
            # As `Likely` orders its fields.
            columns: list[list[Any]] = [array.tolist() for array in likeliest]  # type: ignore[misc]
            for place, *row in zip(places, *columns, strict=True):
                if place is not None:
                    told[place] = Likely(*row)
        return self.tokens.tolist(), told  # type: ignore[return-value]


class Picker:
    """Of one composition of a batch; kept for as long as it stays the same."""

    def __init__(self, rows: Sequence[Row], vocab_size: int) -> None:
        self._rows = rows
        self._sampler = BatchSampler([row.sampling for row in rows], vocab_size)
        self._penalises = any(row.penalties is not None for row in rows)
        self.steers = any(row.steer is not None for row in rows)
        """Whether a row is held to something that its text tells."""

    def pick(self, logits: mx.array) -> Picked:
        """Of logits [rows, V] after all tokens that the rows have taken."""
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
