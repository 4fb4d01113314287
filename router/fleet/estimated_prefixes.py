"""Estimates what a third-party server has cached from the prompts that it served last."""

from array import array
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field

from node.protocol.chain.prefix import Chain
from router.coverage import NOT_COVERED, Coverage

MAX_TOKENS = 200_000
"""Cached tokens assumed per server: about what an inference server keeps beside a model that fits
its Mac."""
MAX_POSITIONS = 20_000
"""Limit per server. Prompts have fewer positions, unless the server reports too few tokens for
them."""

_NOTHING = (0, 0)


@dataclass(slots=True)
class _Prompts:
    """Chain positions of one server, the least recently used first.

    A chain is touched from its end to its beginning. So every position is more recent than those
    that extend it, and what is dropped first is a prefix of nothing that stays.
    """

    tokens: int = 0
    positions: OrderedDict[int, tuple[int, int]] = field(default_factory=OrderedDict)
    """Usable tokens at each position, and how many of these the previous position lacks."""

    def touch(self, hashes: "array[int]", usable: list[int]) -> None:
        """Records a served chain with the usable tokens at each position."""
        positions, tokens = self.positions, self.tokens
        pop = positions.pop
        for each, here, predecessor in zip(
            reversed(hashes), reversed(usable), reversed([0, *usable[:-1]]), strict=True
        ):
            own = here - predecessor
            tokens += own - pop(each, _NOTHING)[1]
            positions[each] = (here, own)
        self.tokens = tokens

    def shrink(self, max_tokens: int, max_positions: int) -> None:
        while self.tokens > max_tokens or len(self.positions) > max_positions:
            _, (_, own) = self.positions.popitem(last=False)
            self.tokens -= own


class EstimatedPrefixes:
    """Owner of the estimates, by node."""

    def __init__(self, max_tokens: int = MAX_TOKENS, max_positions: int = MAX_POSITIONS) -> None:
        self._max_tokens = max_tokens
        self._max_positions = max_positions
        self._nodes: dict[str, _Prompts] = {}

    def on_served(self, node_id: str, chain: Chain, prompt_tokens: int) -> None:
        """Records a served prompt; its tokens are distributed over the chain by bytes."""
        if not chain.hashes:
            return
        prompts = self._nodes.setdefault(node_id, _Prompts())
        whole_bytes = chain.sizes[-1] or 1
        prompts.touch(chain.hashes, [prompt_tokens * size // whole_bytes for size in chain.sizes])
        prompts.shrink(self._max_tokens, self._max_positions)

    def coverage(self, node_id: str, chain: Chain) -> Coverage:
        prompts = self._nodes.get(node_id)
        if prompts is None:
            return NOT_COVERED
        positions = prompts.positions
        deepest = bisect_left(chain.hashes, 1, key=lambda each: each not in positions)
        if not deepest:
            return NOT_COVERED
        usable, _ = positions[chain.hashes[deepest - 1]]
        if deepest == len(chain.hashes):
            usable = max(0, usable - 1)  # a server computes at least the last token
        return Coverage(deepest, usable, usable)

    def entries_by_node(self) -> dict[str, int]:
        return {node_id: len(prompts.positions) for node_id, prompts in self._nodes.items()}

    def forget_node(self, node_id: str) -> None:
        self._nodes.pop(node_id, None)
