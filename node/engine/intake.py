"""Requests on their way to rows: what the model does not take is refused here."""

import time
from dataclasses import dataclass, field

import numpy as np

from node.engine.model import LoadedModel
from node.engine.output import OutputReader
from node.engine.refusals import refusal, too_long
from node.engine.room import Room
from node.engine.row import Row, output_limit
from node.engine.sampler import RowSampling
from node.generate import GenerateRequest
from node.types import Loaded, Refused

_NO_TOKEN = 2**31 - 1


@dataclass(slots=True)
class Intake:
    """Makes the rows of one model."""

    model: LoadedModel
    info: Loaded
    room: Room
    _refused: list[Refused] = field(default_factory=list)

    def take(self, request: GenerateRequest, *, is_running: bool) -> Row | Refused | None:
        """The row of a request; None where `finished` will tell."""
        # Ids beyond 32 bits are beyond any vocabulary, and must not wrap round.
        tokens = np.asarray(request.tokens, dtype=np.int64).clip(-1, _NO_TOKEN).astype(np.int32)
        refused = refusal(request, tokens, self.info, is_running=is_running)
        if refused is not None:
            return refused
        longest = self.room.longest_tokens(self.info.context_tokens)
        if len(tokens) >= longest:
            return Refused(request.uid, too_long(len(tokens), longest), "messages")
        return Row(
            request=request,
            prompt=tokens,
            tokens=tokens,
            limit=output_limit(request, longest),
            reader=OutputReader(self.model.vocabulary, request),
            sampling=RowSampling.of(request.sampling),
            accepted_s=time.monotonic(),
        )

    def finished(self) -> list[Row | Refused]:
        """What has become of requests that `take` said nothing of."""
        refused, self._refused = self._refused, []
        return [*refused]

    def drop(self, uid: str) -> Row | None:
        """Forgets a request that is not finished; its row, to be ended."""
        return None

    def wait_s(self) -> float | None:
        """Seconds until `finished` is to be asked; None while there is nothing to tell."""
        return 0.0 if self._refused else None
