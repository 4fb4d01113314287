"""Makes rows of requests, and refuses requests that the model cannot serve.

Most requests become rows at once. A request with a structured output waits until its grammar is
compiled in another thread, so that running rows are not delayed.
"""

import logging
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from node.engine.constraints.compile import AnswerGrammars, compile_answer, is_constrained
from node.engine.constraints.grammar import Compiler
from node.engine.constraints.token_constraints import request_constraint
from node.engine.decoding.row import Row, make_row, output_limit
from node.engine.model.load import LoadedModel
from node.engine.scheduling.memory_plan import MemoryPlan
from node.engine.scheduling.refusals import refusal, refused_size, refused_under_pressure
from node.ipc.generate import GenerateRequest
from node.ipc.messages import Loaded, Pressure, Refused
from node.parsing.constraints.schema import UnsupportedConstraint

_NO_TOKEN = 2**31 - 1
_POLL_S = 0.002
"""Seconds between two polls for a compiled grammar while the engine is idle."""

logger = logging.getLogger(__name__)


class _PendingRow(NamedTuple):
    row: Row
    answer: "Future[AnswerGrammars]"


@dataclass(slots=True)
class Intake:
    """Makes the rows of one model's requests."""

    model: LoadedModel
    info: Loaded
    plan: MemoryPlan
    _compiler: Compiler = field(init=False)
    _waiting: dict[str, _PendingRow] = field(default_factory=dict)
    _markers: dict[str, int] = field(init=False)
    """Ids of added tokens by their text."""

    def __post_init__(self) -> None:
        model = self.model
        self._compiler = Compiler(model.vocabulary, model.vocab_size, model.end_tokens)
        self._markers = {token.text: number for number, token in model.vocabulary.added.items()}

    def accept(self, request: GenerateRequest, *, is_running: bool) -> Row | Refused | None:
        """Returns the row of a request or its refusal; None if `finished` returns it later.
        `is_running` is True if the engine has a row of the same id."""
        # Ids beyond 32 bits are outside any vocabulary and must not wrap around.
        tokens = np.asarray(request.tokens, dtype=np.int64).clip(-1, _NO_TOKEN).astype(np.int32)
        is_running = is_running or request.uid in self._waiting
        refused = refusal(request, tokens, self.info, is_running=is_running)
        if refused is not None:
            return refused
        longest = self.plan.longest_tokens(self.info.context_tokens)
        if (refused := refused_size(request, longest)) is not None:
            return refused
        if self.plan.pressure is Pressure.HARD:
            refused = refused_under_pressure(request, self.plan.live_bytes, self.plan.lease)
            if refused is not None:
                return refused
        row = make_row(request, tokens, output_limit(request, longest), self.model.vocabulary)
        if is_constrained(request) and not request.warm:
            job = partial(compile_answer, self._compiler, request, self._markers)
            self._waiting[request.uid] = _PendingRow(row, self._compiler.submit(job))
            return None
        return self._with_constraint(row)

    def finished(self) -> list[Row | Refused]:
        """Returns the rows or refusals of requests whose grammars have been compiled."""
        done = [uid for uid, waiting in self._waiting.items() if waiting.answer.done()]
        return [self._finish(*self._waiting.pop(uid)) for uid in done]

    def drop(self, uid: str) -> Row | None:
        """Drops a request that waits for its grammar and returns its row; None if there is
        none."""
        waiting = self._waiting.pop(uid, None)
        if waiting is None:
            return None
        waiting.answer.cancel()
        return waiting.row

    def wait_s(self) -> float | None:
        """Returns the seconds until the next poll of `finished`; None while no request waits."""
        if not self._waiting:
            return None
        return 0.0 if any(each.answer.done() for each in self._waiting.values()) else _POLL_S

    def close(self) -> None:
        """Drops all waiting requests and stops the compiler."""
        self._waiting.clear()
        self._compiler.close()

    def _finish(self, row: Row, answer: "Future[AnswerGrammars]") -> Row | Refused:
        try:
            return self._with_constraint(row, answer.result())
        except UnsupportedConstraint as error:
            return Refused(row.uid, str(error), error.param)
        except Exception as error:
            # A failure of one grammar must not end the running rows, and its request needs a
            # response.
            logger.exception("A grammar could not be made.")
            reason = f"The engine failed to make a grammar of the request: {error}"
            return Refused(row.uid, reason, is_fault=True)

    def _with_constraint(self, row: Row, answer: AnswerGrammars | None = None) -> Row:
        model = self.model
        shared = request_constraint(
            row.request, model.vocabulary, model.vocab_size, model.end_tokens, answer
        )
        if shared is not None:
            for each in row.choices:
                each.constraint = shared.open(each.reader)
        return row
