"""The choices of one request: rows with the same prompt, which is prefilled only once."""

from dataclasses import dataclass

import msgspec

from node.ipc.generate import GenerateRequest
from node.ipc.messages import RowUsage


@dataclass(slots=True)
class Tally:
    """The sums of usage over all choices of one request."""

    open_choices: int = 1
    """Number of choices that have not ended."""
    cached_tokens: int = 0
    """Prompt tokens reused from the prefix cache at the first prefill."""
    prefill_began_s: float | None = None
    """Monotonic time."""
    first_token_s: float | None = None
    """Monotonic time of the first token of any choice."""
    completion_tokens: int = 0
    """Output tokens of the choices that have ended; the other counts are of these, too."""
    reasoning_tokens: int = 0
    reasoning_overflow_tokens: int = 0

    def note_token(self, now_s: float) -> None:
        """Records that a choice has received a token."""
        if self.first_token_s is None:
            self.first_token_s = now_s

    def end(self, completion_tokens: int, reasoning_tokens: int, overflow_tokens: int) -> bool:
        """Records the end of a choice and its tokens. Returns True if it was the last one."""
        self.open_choices -= 1
        self.completion_tokens += completion_tokens
        self.reasoning_tokens += reasoning_tokens
        self.reasoning_overflow_tokens += overflow_tokens
        return not self.open_choices

    def usage(self, prompt_tokens: int, accepted_s: float, now_s: float) -> RowUsage:
        """Returns the usage of a request accepted at `accepted_s`, all of whose choices have
        ended."""
        began_s = now_s if self.prefill_began_s is None else self.prefill_began_s
        first_s = now_s if self.first_token_s is None else self.first_token_s
        return RowUsage(
            prompt_tokens=prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            queue_s=began_s - accepted_s,
            prefill_s=first_s - began_s,
            decode_s=now_s - first_s,
            reasoning_tokens=self.reasoning_tokens,
            reasoning_overflow_tokens=self.reasoning_overflow_tokens,
        )


def choice_of(request: GenerateRequest, choice: int) -> GenerateRequest:
    """Returns the request of one choice, with its own id and seed."""
    if choice == 0:
        return request
    sampling, seed = request.sampling, request.sampling.seed
    if seed is not None:
        sampling = msgspec.structs.replace(sampling, seed=seed + choice)
    return msgspec.structs.replace(request, uid=f"{request.uid}-{choice}", sampling=sampling)
