"""Agent sessions for a fleet: growing conversations over a few system prompts, with time to think
between the turns. Written beforehand but for the answers, which go into the next turn's prompt."""

import random
from dataclasses import dataclass

_WORDS = tuple(
    word
    for sentence in (
        "the file has a test that fails when read twice after one write so change it",
        "list all names under this folder with size and date then open each line for review",
        "plan next step before any edit because two parts share their state and order matters",
    )
    for word in sentence.split()
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The number of sessions and their course."""

    kinds: tuple[int, ...]
    """Sessions over each system prompt, one entry for each prompt."""
    turns: int
    system_words: int
    turn_words: int
    answer_tokens: int
    think_s: float
    """Mean time between an answer and the next turn; from half to one and a half of it."""
    begin_s: float
    """Within which all sessions begin."""

    @property
    def sessions(self) -> int:
        return sum(self.kinds)


@dataclass(frozen=True, slots=True)
class Turn:
    think_s: float
    """Before it."""
    text: str


@dataclass(frozen=True, slots=True)
class Session:
    name: str
    system: str
    turns: tuple[Turn, ...]


def write(shape: Shape, seed: int) -> list[Session]:
    """The same for the same seed; another one shares no prefix with it."""
    chance = random.Random(seed)
    systems = [
        f"You are agent {seed}.{kind}: {words(chance, shape.system_words)}"
        for kind in range(len(shape.kinds))
    ]
    kinds = [kind for kind, count in enumerate(shape.kinds) for _ in range(count)]
    chance.shuffle(kinds)
    return [
        Session(f"s{number}", systems[kind], turns(chance, shape, number))
        for number, kind in enumerate(kinds)
    ]


def turns(chance: random.Random, shape: Shape, number: int) -> tuple[Turn, ...]:
    waits_s = [chance.uniform(0.0, shape.begin_s)]
    waits_s += [shape.think_s * chance.uniform(0.5, 1.5) for _ in range(shape.turns - 1)]
    return tuple(
        Turn(wait_s, f"Result {number}.{turn}: {words(chance, shape.turn_words)}")
        for turn, wait_s in enumerate(waits_s)
    )


def words(chance: random.Random, count: int) -> str:
    """Nobody else's `count` words, unless by the same chance."""
    return " ".join(chance.choices(_WORDS, k=count))
