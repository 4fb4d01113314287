"""Parts of prompts that nodes have cached."""

from typing import Protocol

import msgspec

from node.protocol.chain.prefix import Chain


class Coverage(msgspec.Struct, frozen=True):
    """Part of a request's prompt that a node has cached."""

    positions: int = 0
    """Number of leading positions of the request's chain that are cached."""
    usable_tokens: int = 0
    """Prompt tokens that need not be computed."""
    memory_tokens: int = 0
    """Usable tokens that need not be read from disk."""


NOT_COVERED = Coverage()


class Prefixes(Protocol):
    """The prefixes that nodes have reported as cached."""

    def coverage(self, node_id: str, chain: Chain) -> Coverage:
        """The coverage up to the deepest position of the chain that the node has cached."""
