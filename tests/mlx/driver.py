"""Runs a `TextEngine` in a thread of its own, as the worker does."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tokenizers import Tokenizer

from node.engine.model import LoadedModel, load_folder
from node.engine.text import TextEngine
from node.protocol.messages import FinishReason
from node.types import (
    Accepted,
    Delta,
    EngineSpec,
    GenerateRequest,
    Refused,
    RowUsage,
    SamplingParams,
)

GREEDY = SamplingParams(temperature=0.0)
_TIMEOUT_S = 60
T = TypeVar("T")


@dataclass
class Row:
    """What an engine has said about one request."""

    pieces: list[str] = field(default_factory=list)
    token_count: int = 0
    finish: FinishReason | None = None
    usage: RowUsage | None = None
    error: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def read(self, delta: Delta) -> None:
        assert self.finish is None, "a delta after the last one"
        assert all(part.text for part in delta.parts), "an empty part"
        self.pieces += [part.text for part in delta.parts]
        self.token_count = delta.token_count
        self.finish, self.usage, self.error = delta.finish, delta.usage, delta.error


class Driver:
    """An engine and everything it has said. Its steps run when a test asks for them."""

    def __init__(
        self,
        folder: Path,
        *,
        max_rows: int = 4,
        lease_bytes: int = 0,
        kv_bytes_per_token: int = 0,
        change: Callable[[LoadedModel], LoadedModel] = lambda model: model,
    ) -> None:
        self.rows: dict[str, Row] = {}
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._thread = ThreadPoolExecutor(1)
        spec = EngineSpec(
            engine="text",
            model="m",
            folder=str(folder),
            max_rows=max_rows,
            lease_bytes=lease_bytes,
            kv_bytes_per_token=kv_bytes_per_token,
        )
        self.engine = self.call(
            lambda: TextEngine(change(load_folder(folder, lambda fraction: None)), spec)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.call(self.engine.close)
        self._thread.shutdown()

    def call(self, function: Callable[[], T]) -> T:
        """Runs the function in the engine's thread."""
        return self._thread.submit(function).result(_TIMEOUT_S)

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def submit(
        self,
        uid: str,
        prompt: str | tuple[int, ...],
        sampling: SamplingParams = GREEDY,
        *,
        max_tokens: int | None = 24,
        stops: tuple[str, ...] = (),
    ) -> Accepted | Refused:
        tokens = self.ids(prompt) if isinstance(prompt, str) else prompt
        request = GenerateRequest(uid, tokens, max_tokens, sampling, stops)
        reply = self.call(lambda: self.engine.submit(request))
        if isinstance(reply, Accepted):
            self.rows[uid] = Row()
        return reply

    def step(self) -> list[Delta]:
        deltas = self.call(self.engine.step)
        self.read(deltas)
        return deltas

    def read(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            self.rows[delta.uid].read(delta)

    def cancel(self, uid: str) -> Delta | None:
        delta = self.call(lambda: self.engine.cancel(uid))
        self.read([delta] if delta is not None else [])
        return delta

    def run(self) -> dict[str, Row]:
        """Steps until nothing is left to do."""
        while self.engine.wait_s() is not None:
            self.step()
        return self.rows

    def steps_until(self, uid: str, token_count: int) -> None:
        """Steps until the row has told of so many tokens."""
        while self.rows[uid].token_count < token_count:
            self.step()

    def alone(self, prompt: str | tuple[int, ...], *args: Any, **options: Any) -> Row:
        """The row that the prompt gives with nothing beside it."""
        self.submit("alone", prompt, *args, **options)
        self.run()
        return self.rows.pop("alone")
