"""The choices of one request: rows with the same prompt, which is prefilled once."""

from dataclasses import dataclass

import msgspec

from node.ipc.generate import GenerateRequest


@dataclass(slots=True)
class Tally:
    """What the choices of one request have come to, together."""

    open_choices: int = 1
    """How many have not ended."""
    cached_tokens: int = 0
    """Of the prompt, those reused at the first prefill."""
    prefill_began_s: float | None = None
    """Monotonic."""
    first_token_s: float | None = None
    """Monotonic time of the first token of any."""
    completion_tokens: int = 0
    """Of those that have ended; so the others."""
    reasoning_tokens: int = 0
    reasoning_overflow_tokens: int = 0

    def note_token(self, now_s: float) -> None:
        """A choice has got a token."""
        if self.first_token_s is None:
            self.first_token_s = now_s

    def end(self, completion_tokens: int, reasoning_tokens: int, overflow_tokens: int) -> bool:
        """A choice has ended, with so many tokens; whether it was the last one."""
        self.open_choices -= 1
        self.completion_tokens += completion_tokens
        self.reasoning_tokens += reasoning_tokens
        self.reasoning_overflow_tokens += overflow_tokens
        return not self.open_choices


def choice_of(request: GenerateRequest, choice: int) -> GenerateRequest:
    """The request for this choice alone: under an id of its own, and with its own seed."""
    if choice == 0:
        return request
    sampling, seed = request.sampling, request.sampling.seed
    if seed is not None:
        sampling = msgspec.structs.replace(sampling, seed=seed + choice)
    return msgspec.structs.replace(request, uid=f"{request.uid}-{choice}", sampling=sampling)
