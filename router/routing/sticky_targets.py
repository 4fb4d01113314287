"""Remembers which of an alias's targets served each session last, so that the session stays with
it. These are hints: nothing breaks if they are wrong or lost."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

import msgspec

from node.protocol.chain.prefix import Chain
from router.types import Target

MAX_KNOWN = 20_000
TTL_S = 86_400.0
"""Seconds without a turn after which a session counts as new."""
MOST_ITEMS = 256
"""Most items that one turn is assumed to add to its prompt."""


class Turn(msgspec.Struct, frozen=True):
    """A request to an alias, with what identifies its session."""

    scope: str
    """The alias and the caller, so that no caller influences the sessions of another."""
    session: str = ""
    """The session's name in the client's headers."""
    stored_as: str = ""
    """Id under which a later request may refer to this one."""
    follows: str = ""
    """Id of the request whose stored response this one continues."""
    chain: Chain | None = None

    def lookup_keys(self) -> Iterator[str]:
        """Keys under which the session may be known, the most reliable first. A chain counts only
        if it extends an earlier one: equal first prompts do not make one session."""
        if self.session:
            yield f"{self.scope}={self.session}"
            return
        if self.follows:
            yield f"{self.scope}<{self.follows}"
        chain = self.chain
        if chain is None:
            return
        for end in islice(reversed(chain.items), MOST_ITEMS):
            if 0 < end < len(chain):
                yield f"{self.scope}#{chain.hashes[end - 1]:x}"

    def stored_keys(self) -> Iterator[str]:
        """Keys under which the session's next request may find it."""
        if self.session:
            yield f"{self.scope}={self.session}"
            return
        if self.stored_as:
            yield f"{self.scope}<{self.stored_as}"
        if self.chain:
            yield f"{self.scope}#{self.chain.head:x}"


class StickyTargets:
    """Owner of the last targets, the least recently used first."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()
        """Key of the target, and the time at which it served the session."""

    def __len__(self) -> int:
        return len(self._known)

    def find(self, turn: Turn, now_s: float) -> str:
        """Key of the target that served the session last; empty for a new session."""
        for key in turn.lookup_keys():
            target, at_s = self._known.get(key, ("", 0.0))
            if target and now_s - at_s < TTL_S:
                return target
        return ""

    def served(self, turn: Turn, target: Target, now_s: float) -> None:
        for key in turn.stored_keys():
            self._known[key] = (target.key, now_s)
            self._known.move_to_end(key)
        while self._known:
            at_s = next(iter(self._known.values()))[1]
            if len(self._known) <= MAX_KNOWN and now_s - at_s < TTL_S:
                return
            self._known.popitem(last=False)
