"""Which of an alias's models each session was answered by last, so that no other one goes on with
it. Hints: nothing breaks where they are wrong or lost."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

import msgspec

from node.protocol.prefix import Chain
from router.types import Target

MAX_KNOWN = 20_000
TTL_S = 86_400.0
"""A session that was quiet for so long is a new one."""
MOST_ITEMS = 256
"""That a turn is taken to add to its prompt."""


class Turn(msgspec.Struct, frozen=True):
    """A request to an alias, and what tells which session it belongs to."""

    scope: str
    """The alias, and the caller: none steers the sessions of another."""
    session: str = ""
    """As the client's headers name it."""
    stored_as: str = ""
    """Id of the request, where a later one may name it."""
    follows: str = ""
    """The same of the request whose stored response it goes on from."""
    chain: Chain | None = None

    def found_by(self) -> Iterator[str]:
        """What its session may be known by, the surest first. A chain counts where it goes on from
        an earlier one: equal first prompts are no one session."""
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

    def kept_as(self) -> Iterator[str]:
        """What the session's next request may find it by."""
        if self.session:
            yield f"{self.scope}={self.session}"
            return
        if self.stored_as:
            yield f"{self.scope}<{self.stored_as}"
        if self.chain:
            yield f"{self.scope}#{self.chain.head:x}"


class LastTargets:
    """Owner of the table, the least recently used first."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()
        """Key of the target, and when it answered."""

    def __len__(self) -> int:
        return len(self._known)

    def find(self, turn: Turn, now_s: float) -> str:
        """The key of the target that answered the session last; empty for a new session."""
        for key in turn.found_by():
            target, at_s = self._known.get(key, ("", 0.0))
            if target and now_s - at_s < TTL_S:
                return target
        return ""

    def answered(self, turn: Turn, target: Target, now_s: float) -> None:
        for key in turn.kept_as():
            self._known[key] = (target.key, now_s)
            self._known.move_to_end(key)
        while self._known:
            at_s = next(iter(self._known.values()))[1]
            if len(self._known) <= MAX_KNOWN and now_s - at_s < TTL_S:
                return
            self._known.popitem(last=False)
