"""What a row's next token is held to: the end of its reasoning, and the grammar of its answer."""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np


class Steer(Protocol):
    """Of one row, which has taken all its tokens whenever `next` is called."""

    def next(self) -> "np.ndarray[tuple[int], np.dtype[np.uint32]] | None":
        """Which tokens may come next, a bit for each, lowest first; None: any."""


class Steered(Protocol):
    """A row, as far as it is steered."""

    @property
    def steer(self) -> Steer | None: ...


def steered(rows: Sequence[Steered], logits: mx.array) -> mx.array:
    """Logits [rows, V] with -inf for the tokens that may not come next."""
    return logits
