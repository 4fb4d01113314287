"""The one-time code of an agent, and what a router gets for it."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from enum import Enum, auto

from node.errors import (
    BadRequest,
    NodeError,
    NoPairingCode,
    PairingCodeExpired,
    PairingCodeUsed,
    PairingCodeVoid,
    WrongPairingCode,
)
from node.protocol.names import is_name
from node.protocol.pairing import (
    CODE_S,
    TRIES,
    Code,
    PairReply,
    PairRequest,
    Proofs,
    is_salt,
)
from node.server.pairings import Pairings


class _Is(Enum):
    MISSING = auto()
    VALID = auto()
    USED = auto()
    VOID = auto()


class PairingCodes:
    """Owner of the newest code, which is in memory only."""

    def __init__(self, fingerprint: bytes, clock: Callable[[], float] = time.time) -> None:
        """`clock` goes on while the machine sleeps."""
        self._fingerprint = fingerprint
        self._clock = clock
        self._code = Code.new(fingerprint)
        self._state = _Is.MISSING
        self._made_s = 0.0
        self._tries = 0

    def renew(self) -> Code:
        """A new code; the one before it is void."""
        self._code = Code.new(self._fingerprint)
        self._state = _Is.VALID
        self._made_s = self._clock()
        self._tries = 0
        return self._code

    def begin_try(self) -> Code:
        """The code that a try has to prove; counts the try. Raises the error that says why there is
        none."""
        if self._state is _Is.VALID and not 0 <= self._clock() - self._made_s < CODE_S:
            raise PairingCodeExpired
        if self._state is not _Is.VALID:
            raise _WHY_NOT[self._state]
        self._tries += 1
        if self._tries >= TRIES:
            self._state = _Is.VOID  # unless this last one is right
        return self._code

    def on_wrong(self) -> NodeError:
        """The error of a try with another code."""
        left = TRIES - self._tries
        if left <= 0:
            return PairingCodeVoid()
        tries = "1 more try" if left == 1 else f"{left} more tries"
        return WrongPairingCode(
            f"The code is wrong; there {'is' if left == 1 else 'are'} {tries} before it is void."
        )

    def use(self) -> None:
        self._state = _Is.USED


_WHY_NOT: dict[_Is, type[NodeError]] = {
    _Is.MISSING: NoPairingCode,
    _Is.USED: PairingCodeUsed,
    _Is.VOID: PairingCodeVoid,
}


class PairingDesk:
    """Pairs routers that prove to know the code; one try at a time."""

    def __init__(self, node_id: str, fingerprint: bytes, pairings: Pairings) -> None:
        self.codes = PairingCodes(fingerprint)
        self.pairings = pairings
        self._node_id = node_id
        self._fingerprint = fingerprint
        self._busy = asyncio.Lock()

    async def pair(self, asked: PairRequest) -> PairReply:
        """Raises `BadRequest`, and the errors of a code that is missing, wrong or not valid any
        more."""
        if not (is_name(asked.router_id) and is_name(asked.router_name) and is_salt(asked.salt)):
            raise BadRequest("The request to pair is not one.")
        # Two tries at once could both be the last one.
        async with self._busy:
            code = self.codes.begin_try()
            proofs = await asyncio.to_thread(Proofs, code, self._fingerprint, asked.salt)
            expected = proofs.of_router(asked.router_id, asked.router_name)
            if not hmac.compare_digest(asked.proof, expected):
                raise self.codes.on_wrong()
            secret = await self.pairings.add(asked.router_id, asked.router_name)
            self.codes.use()
        return PairReply(self._node_id, secret, proofs.of_agent(self._node_id, secret))
