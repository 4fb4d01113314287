"""What requests to a paid server cost."""

import msgspec


class Prices(msgspec.Struct, frozen=True):
    """Of a paid server, for a million tokens, in the admin's own currency."""

    input: float
    output: float
    cached: float | None = None
    """Of prompt tokens that it had cached; None: as all others."""

    def cost(self, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float:
        cached_price = self.input if self.cached is None else self.cached
        uncached = max(0, prompt_tokens - cached_tokens)
        spent = uncached * self.input + cached_tokens * cached_price
        return (spent + completion_tokens * self.output) / 1e6
