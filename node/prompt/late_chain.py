"""The prefix hash chain of a request's body, computed only once the prompt is known to fit."""

import asyncio
from collections.abc import Callable

from node.protocol.chain.prefix import Chain


class LateChain:
    """Computes a chain on the first call of `compute`. `chain` is None before, and for a body that
    has none."""

    def __init__(self, make: Callable[[], Chain | None], *, is_long: bool = False) -> None:
        """`is_long`: the chain is computed in a thread, so that it stalls no stream."""
        self._make: Callable[[], Chain | None] | None = make
        self._is_long = is_long
        self.chain: Chain | None = None

    async def compute(self) -> Chain | None:
        """Returns the chain; computes it on the first call."""
        make, self._make = self._make, None
        if make is not None:
            self.chain = await asyncio.to_thread(make) if self._is_long else make()
        return self.chain
