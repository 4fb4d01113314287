"""A tiny model of random weights behind the real engine: whatever is valid was constrained."""

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from node.engine.model.blas import load_fast_blas

# Before anything imports MLX.
load_fast_blas()

from tokenizers import Tokenizer  # noqa: E402

from node.engine.load import load  # noqa: E402
from node.engine.scheduling.engine import TextEngine  # noqa: E402
from node.ipc.generate import GenerateRequest, SamplingParams  # noqa: E402
from node.ipc.messages import (  # noqa: E402
    EngineSpec,
    MemoryLease,
    Part,
    PartKind,
    Refused,
    RowUsage,
)
from node.protocol.messages import FinishReason  # noqa: E402
from tests.mlx.tiny import make_tiny, tiny_tokenizer  # noqa: E402

T = TypeVar("T")
ROWS = 16
CLOSING = 7.0
"""Added to the logits of what closes strings, lists and objects, so that outputs end."""
_CLOSERS = ('"', "}", "]", ")", '"}', "\n")
ENDING = 12.0
"""The same for what ends the output."""
NEVER = -1000.0
_ENDS = ("<|im_end|>", "<|end|>")
_PROMPT = tuple(range(10, 26))


@dataclass(slots=True)
class Drawn:
    """The result of a request."""

    refused: Refused | None = None
    parts: list[Part] = field(default_factory=list)
    finish: FinishReason | None = None
    usage: RowUsage | None = None
    error: str | None = None

    def text(self, kind: PartKind = PartKind.CONTENT) -> str:
        return "".join(part.text for part in self.parts if part.kind is kind)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """(name, arguments) of each call."""
        calls: list[tuple[str, str]] = []
        for part in self.parts:
            if part.kind is PartKind.TOOL_START:
                calls.append((part.name, ""))
            elif part.kind is PartKind.TOOL_ARGS:
                calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
        return calls


class RandomModel:
    """Belongs to one thread."""

    def __init__(self, engine: TextEngine, folder: Path, closers: Sequence[str]) -> None:
        self._engine = engine
        tokenizer = self._tokenizer = tiny_tokenizer(folder)
        ids = [_token(tokenizer, text) for text in (*_CLOSERS, *closers)]
        ends = map(tokenizer.token_to_id, _ENDS)
        self._end_tokens = tuple(number for number in ends if number is not None)
        self.bias = tuple((number, CLOSING) for number in ids if number is not None)

    def sampling(self, seed: int, *, ends: bool = True) -> SamplingParams:
        """Any token that is allowed, closing ones more often; `ends`: also those that end the
        answer."""
        last = tuple((number, ENDING if ends else NEVER) for number in self._end_tokens)
        return SamplingParams(seed=seed, logit_bias=(*self.bias, *last))

    def count_tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def prompt(self) -> tuple[int, ...]:
        return _PROMPT

    def draw(self, requests: Sequence[GenerateRequest]) -> dict[str, Drawn]:
        """The result of each, by uid; as many at once as the engine takes."""
        drawn = {request.uid: Drawn() for request in requests}
        waiting, open_uids = list(requests), set[str]()
        while waiting or open_uids:
            while waiting and len(open_uids) < 2 * ROWS:
                request = waiting.pop(0)
                answer = self._engine.submit(request)
                if isinstance(answer, Refused):
                    drawn[request.uid].refused = answer
                else:
                    open_uids.add(request.uid)
            time.sleep(self._engine.wait_s() or 0.0)
            for delta in self._engine.step():
                row = drawn[delta.uid]
                row.parts += delta.parts
                if delta.is_last:
                    row.finish, row.usage, row.error = delta.finish, delta.usage, delta.error
                    open_uids.discard(delta.uid)
            for answer in self._engine.take_responses():
                if isinstance(answer, Refused):
                    drawn[answer.uid].refused = answer
                    open_uids.discard(answer.uid)
        return drawn


def with_random_model(work: Callable[[RandomModel], T], markers: Sequence[str] = ()) -> T:
    """Returns the result of the work, in a thread of its own, since an engine belongs to one and
    ends MLX's use there. `markers`: tokens of the model's vocabulary that close something too."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_work, work, markers).result()


def _work(work: Callable[[RandomModel], T], markers: Sequence[str]) -> T:
    with tempfile.TemporaryDirectory(prefix="conformance-") as home:
        folder = make_tiny(Path(home) / "tiny", markers)
        spec = EngineSpec(
            engine="text",
            model="random",
            folder=str(folder),
            max_rows=ROWS,
            lease=MemoryLease(0, live_kv_bytes=1 << 30, stored_kv_bytes=1 << 26),
        )
        engine = load(spec, lambda fraction: None)
        try:
            return work(RandomModel(engine, folder, markers))
        finally:
            engine.close()


def _token(tokenizer: Tokenizer, text: str) -> int | None:
    """The one token of the text; None where it has several."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids[0] if len(ids) == 1 else None
