"""The rows inside a `BatchGenerator`, in the order in which it holds them.

The generator's sampler sees logits and no ids. The order of the rows follows from the rules of
`BatchGenerator._next`: it samples all decoding rows; then the prompts of which only the last
token is left start to decode, sampled together; then each other prompt gets one chunk. After each
step the order is compared with the ids in the responses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

RowT = TypeVar("RowT")


class OrderError(Exception):
    """The generator holds its rows in another order than expected."""


@dataclass
class _Prompt(Generic[RowT]):
    row: RowT
    left: int
    """Tokens to prefill; the last token of the prompt is not counted, decoding takes it."""


class RowOrder(Generic[RowT]):
    """Decoding rows in the order of joining, and prompts first in, first out."""

    def __init__(self, chunk_tokens: int, step_tokens: int) -> None:
        """At most `chunk_tokens` of each prompt and `step_tokens` of all prompts in one step."""
        self._chunk_tokens = chunk_tokens
        self._step_tokens = step_tokens
        self._decoding: dict[int, RowT] = {}
        self._prompts: dict[int, _Prompt[RowT]] = {}

    def __len__(self) -> int:
        return len(self._decoding) + len(self._prompts)

    def has_room(self, prompt_tokens: int) -> bool:
        """Whether one more prompt would keep the next step within its tokens. Prompts of one step
        are padded to the longest chunk. A prompt that comes alone always has room."""
        chunks = [self._chunk(prompt.left) for prompt in self._prompts.values()]
        if not chunks:
            return True
        chunks.append(self._chunk(prompt_tokens - 1))
        return len(chunks) * max(chunks) <= self._step_tokens

    def insert(self, number: int, row: RowT, prompt_tokens: int) -> None:
        """A prompt of at least one token has gone in under the generator's number."""
        self._prompts[number] = _Prompt(row, prompt_tokens - 1)

    def remove(self, number: int) -> None:
        """The row has been taken out of the generator between two steps."""
        self._decoding.pop(number, None)
        self._prompts.pop(number, None)

    def sampled_next(self) -> list[tuple[RowT, ...]]:
        """The rows of each call of the sampler during the next step."""
        moving = tuple(prompt.row for prompt in self._prompts.values() if prompt.left == 0)
        calls = (tuple(self._decoding.values()), moving)
        return [call for call in calls if call]

    def prefilled_next(self) -> int:
        """Tokens of prompts that the next step takes in."""
        return sum(self._chunk(prompt.left) for prompt in self._prompts.values())

    def advance(self, numbers: Sequence[int], finished: Sequence[int]) -> None:
        """Follows a step that answered for `numbers` and dropped `finished`.

        Raises `OrderError` if those are not the rows that were decoding.
        """
        if list(numbers) != list(self._decoding):
            raise OrderError(f"rows {list(numbers)} answered where {list(self._decoding)} decode")
        for number in finished:
            del self._decoding[number]
        for number, prompt in list(self._prompts.items()):
            if prompt.left == 0:
                self._decoding[number] = self._prompts.pop(number).row
            else:
                prompt.left -= self._chunk(prompt.left)

    def _chunk(self, left: int) -> int:
        return min(left, self._chunk_tokens)
