"""Prices of paid servers."""

import msgspec


class Prices(msgspec.Struct, frozen=True):
    """Prices per million tokens of a paid server, in the admin's own currency."""

    input: float
    output: float
    cached: float | None = None
    """Price of cached prompt tokens; None if they cost as much as all others."""

    def cost(self, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float:
        cached_price = self.input if self.cached is None else self.cached
        uncached = max(0, prompt_tokens - cached_tokens)
        spent = uncached * self.input + cached_tokens * cached_price
        return (spent + completion_tokens * self.output) / 1e6
