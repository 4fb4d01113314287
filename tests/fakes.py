"""Doubles that more than one test folder needs; the scripted engine itself ships in the product."""

from dataclasses import dataclass


@dataclass(slots=True)
class FakeClock:
    """A clock that moves only when told."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
