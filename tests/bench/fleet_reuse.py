"""Reads from the answers of a fleet how many tokens were reused, of those that could be, and how
well the router predicted it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.bench.figures import percentile
from tests.bench.fleet_load import Answer, Chat
from tests.bench.processes import BenchFailure
from tests.bench.replay import Ids, common

SLACK_TOKENS = 256
SLACK_SHARE = 0.02
"""By the larger of the two a prediction may fall short of what was reused, at the 95th
percentile."""


@dataclass(frozen=True, slots=True)
class Reuse:
    prompt_tokens: int
    cached_tokens: int
    ideal_tokens: int
    """Tokens that one node would reuse that evicts nothing."""

    @property
    def of_ideal(self) -> float:
        return self.cached_tokens / self.ideal_tokens

    @property
    def share(self) -> float:
        return self.cached_tokens / self.prompt_tokens

    @property
    def ideal_share(self) -> float:
        return self.ideal_tokens / self.prompt_tokens

    @property
    def uncached_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True, slots=True)
class Foresight:
    """Predicted cached tokens against actual ones."""

    predicted: int
    """Answers that reported what had been predicted."""
    kept: float
    """Share of them where no more was predicted than was reused."""
    shortfall_p95: float
    """Reused less predicted, over the slack of that prompt: passes up to 1."""


def reuse(answers: Sequence[Answer], render: Callable[[Chat], Ids]) -> Reuse:
    """`answers` in the order in which they were requested. Raises `BenchFailure` where a node has
    seen other prompts than `render` makes, since the ideal is computed from these."""
    prompts = [render(answer.chat) for answer in answers]
    for answer, ids in zip(answers, prompts, strict=True):
        if answer.prompt_tokens != len(ids):
            raise BenchFailure(
                f"{answer.session}, turn {answer.turn}: the prompt has {answer.prompt_tokens} "
                f"tokens for its node, and {len(ids)} here."
            )
    return Reuse(
        prompt_tokens=sum(map(len, prompts)),
        cached_tokens=sum(answer.cached_tokens for answer in answers),
        ideal_tokens=sum(ideal_cached(prompts, with_answers(answers, prompts))),
    )


def with_answers(answers: Sequence[Answer], prompts: Sequence[Ids]) -> list[Ids]:
    """Each prompt, and behind it of its answer what the session's next prompt goes on with."""
    kept = list(prompts)
    by_session: dict[str, list[int]] = {}
    for number, answer in enumerate(answers):
        by_session.setdefault(answer.session, []).append(number)
    for numbers in by_session.values():
        for number, following in pairwise(numbers):
            ids, after = prompts[number], prompts[following]
            if common(ids, after) == len(ids):
                kept[number] = after[: len(ids) + answers[number].completion_tokens]
    return kept


def ideal_cached(prompts: Sequence[Ids], kept: Sequence[Ids]) -> list[int]:
    """For each prompt, how many of its tokens begin what was `kept` of an earlier one. At least one
    token has to go through the model, for the first of the answer."""
    return [
        min(max((common(ids, earlier) for earlier in kept[:number]), default=0), len(ids) - 1)
        for number, ids in enumerate(prompts)
    ]


def occupied_share(answers: Sequence[Answer]) -> float:
    """Share of the time, from the first request to the last answer, with a request under way."""
    occupied_s, last_s = 0.0, answers[0].sent_s
    for answer in answers:
        occupied_s += max(0.0, answer.end_s - max(last_s, answer.sent_s))
        last_s = max(last_s, answer.end_s)
    return occupied_s / (last_s - answers[0].sent_s)


def foresight(answers: Sequence[Answer]) -> Foresight | None:
    """None where no answer reports what was predicted."""
    reported = [
        (answer.predicted_tokens, answer)
        for answer in answers
        if answer.predicted_tokens is not None
    ]
    if not reported:
        return None
    return Foresight(
        predicted=len(reported),
        kept=sum(predicted <= answer.cached_tokens for predicted, answer in reported)
        / len(reported),
        shortfall_p95=percentile(
            [
                (answer.cached_tokens - predicted)
                / max(SLACK_TOKENS, SLACK_SHARE * answer.prompt_tokens)
                for predicted, answer in reported
            ],
            95,
        ),
    )
